"""A whole model in a file and back: saving, loading and resuming an algorithm without pickle."""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from torch.optim import Optimizer

from imel.checkpoints import checkpoint
from imel.checkpoints.contents import check_tensors
from imel.checkpoints.model_file import (
    MODULES,
    generators_of,
    load_tensors,
    model_document,
    model_tensors,
    progress_of,
    require_entries,
    restore_progress,
)
from imel.checkpoints.policy_file import require_finite_answers
from imel.checkpoints.snapshot import (
    PART,
    Standing,
    check_environments,
    environments_of,
    pasts_of,
    restorable,
    restore_environments,
    standing_parts,
)
from imel.checkpoints.space_tensors import spaces_from_tensors
from imel.data.critic import Critic
from imel.data.normaliser import ReturnScale
from imel.data.rollout import EpisodeClock
from imel.errors import CheckpointError, ImelError, SpaceError
from imel.policies import ImelPolicy
from imel.policies.update import Update
from imel.settings import Settings


class SavedAlgorithm(BaseAlgorithm, ABC):
    """An algorithm whose files are checkpoints of ours; those of Stable-Baselines3 are pickles."""

    policy: ImelPolicy
    critic: Critic
    return_scale: ReturnScale
    critic_optimizer: Optimizer
    interpolator_optimizer: Optimizer | None
    """None where the policy has no interpolator to learn."""
    generator: torch.Generator
    clock: EpisodeClock
    settings: Settings
    gamma: float
    gae_lambda: float
    update: Update
    iteration: int
    learned_timesteps: int
    """Environment steps learned from; fewer than `num_timesteps` if a rollout was cut short."""
    faults: int
    """Faults of environments survived so far."""
    run_id: str
    """Made when the algorithm was; every file of the run carries it."""
    plan: Mapping[str, Any]
    """What else decides the outcome, such as the environment's id, where a command has set it."""
    checkpointed: bool = False
    """Whether a callback takes checkpoints of the run: then it has to know where it stands."""
    standing: Standing | None = None
    """What the rollout under way has changed, as it was before."""
    resumed_iteration: int | None = None
    """The iteration at which this process took the run up again."""

    def _make_policy(self) -> ImelPolicy:
        policy: ImelPolicy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            **self.policy_class.settings_arguments(self.settings),  # type: ignore[attr-defined]
            **self.policy_kwargs,
        )
        return policy

    def _require_env(self) -> VecEnv:
        if self.env is None:
            raise ImelError("an environment is needed to learn")
        return self.env

    def restart_environments(self) -> None:
        """Reset every environment, seeded by run and iteration; running episodes end here."""
        env = self._require_env()
        if self.seed is not None:
            sequence = np.random.SeedSequence([self.seed, self.iteration, self.faults])
            env.seed(int(sequence.generate_state(1)[0]))
        self._last_obs = env.reset()  # type: ignore[assignment]
        self._environments_were_reset()

    def _environments_were_reset(self) -> None:
        self.clock.restart(self.n_envs)
        self.return_scale.restart()

    @property
    def optimizer_names(self) -> list[str]:
        """The attributes that are optimizers."""
        learned = self.interpolator_optimizer is not None
        return ["critic_optimizer", *(["interpolator_optimizer"] if learned else [])]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return [*MODULES, *self.optimizer_names], []

    def set_parameters(
        self,
        load_path_or_dict: str | Mapping[str, Any],
        exact_match: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Load parameters from `get_parameters()` or from a checkpoint of ours."""
        if isinstance(load_path_or_dict, Mapping):
            super().set_parameters(dict(load_path_or_dict), exact_match, device)
        else:
            tensors, _ = checkpoint.read(load_path_or_dict)
            load_tensors(self, _without_environments(tensors), load_path_or_dict)
        self.policy.invalidate()

    def save(  # type: ignore[override]
        self,
        path: str | os.PathLike[str],
        exclude: Any = None,
        include: Any = None,
    ) -> None:
        """Write the whole model to one checkpoint file, without pickle."""
        if exclude or include:
            raise ImelError("a checkpoint always holds the whole model: no include, no exclude")
        checkpoint.write(path, *self.contents())

    def contents(self) -> checkpoint.Contents:
        """Return what a file of this model holds."""
        return model_tensors(self), model_document(self)

    def stand(self) -> None:
        """Keep what the rollout that is about to begin will change."""
        self.standing = Standing(progress_of(self), generators_of(self), environments_of(self))

    def standing_contents(self) -> checkpoint.Contents | None:
        """Return the model as it was before the rollout under way, environments included.

        None where environments cannot be put back where they were.
        """
        pasts = pasts_of(self)
        if pasts is None:
            return None
        assert self.standing is not None
        tensors, document = standing_parts(self.standing, pasts)
        return model_tensors(self) | tensors, model_document(self) | document

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | os.PathLike[str],
        env: GymEnv | str | None = None,
        device: torch.device | str = "cpu",
        *,
        policy_class: type[ImelPolicy] | None = None,
        force_reset: bool = True,
        seed: int | None = None,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        **settings: Any,
    ) -> Self:
        """Read a model written by `save`; settings given here replace the saved ones.

        A policy class of your own has to be named by `policy_class`: files hold no code. Random
        numbers go on where they were when the model was saved, or start anew from a `seed`.
        """
        tensors, document = checkpoint.read(path)
        require_entries(document, path)
        blank: dict[str, Any] = {
            "env": None,
            "policy_kwargs": document["policy_kwargs"],
            "stats_window_size": document["stats_window_size"],
            "device": device,
            "seed": document["seed"],
            "tensorboard_log": tensorboard_log,
            "verbose": verbose,
            "_init_setup_model": False,
        }
        with checkpoint.building(path):
            policy = policy_class or document["policy"]
            model = cls(policy, **blank, **document["settings"])
        if settings:
            model = cls(policy, **blank, **{**document["settings"], **settings})
        model.observation_space, model.action_space = spaces_from_tensors(tensors, path)
        model.n_envs = document["n_envs"]
        model._check_sizes(tensors, path)
        model._setup_model()
        load_tensors(model, _without_environments(tensors), path)
        if PART in document:
            check_environments(model, tensors, document[PART], path)
        restore_progress(model, document["progress"])
        model.run_id, model.plan = document["run"]["id"], document["run"]["plan"]
        require_finite_answers(model.policy, path)
        if seed is not None:
            model.seed = seed
            model.generator.manual_seed(seed)
            model.policy.generator.manual_seed(seed)
        if env is not None:
            try:
                model.set_env(env, force_reset)  # type: ignore[arg-type]  # IMeL takes ids as well
            except SpaceError as error:
                raise SpaceError(f"{path}: {error}") from None
            if model.env is not None and model.seed is not None:
                model.env.seed(model.seed + model.iteration)  # continuations of one file agree
        return model

    def _check_sizes(self, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
        # On the device that holds nothing: what a file claims about sizes is not believed
        with torch.device("meta"), checkpoint.building(path):
            found = checkpoint.under("policy", tensors)
            policy = self._make_policy()
            shapes = {
                "policy": policy.shapes_for(found),
                "critic": Critic(policy.state_dim, self.settings.critic_hidden).state_dict(),
            }
        for part, expected in shapes.items():
            check_tensors(expected, checkpoint.under(part, tensors), part, path, f"{part}/")

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        env: GymEnv | str,
        device: torch.device | str = "cpu",
        **arguments: Any,
    ) -> Self:
        """A model that goes on as if it had never stopped, from a file of `RunCheckpoints`.

        Continue with `learn(model.remaining_timesteps, reset_num_timesteps=False)` and the same
        `RunCheckpoints` callback, on the same environments. Those given by an id go on in the
        midst of their episodes.
        """
        model = cls.load(path, env, device, **arguments)
        tensors, document = checkpoint.read(path)
        if PART not in document:  # then the run itself has begun new episodes there
            model.restart_environments()
        elif restorable(model):
            restore_environments(model, tensors, document[PART], path)
        else:
            raise CheckpointError(f"{path} was made with environments of its own, given by an id")
        model.resumed_iteration = model.iteration
        return model

    @property
    def remaining_timesteps(self) -> int:
        """Environment steps that the last call of `learn` was asked for and has not taken yet."""
        return max(0, self._total_timesteps - self.num_timesteps)


def _without_environments(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if not name.startswith(f"{PART}/")}
