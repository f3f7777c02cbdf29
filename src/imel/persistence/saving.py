"""A whole model in a file and back: saving, loading and resuming an algorithm without pickle."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor
from torch.optim import Optimizer

from imel.critic import Critic
from imel.errors import CheckpointError, ImelError, SpaceError
from imel.normaliser import ReturnScale
from imel.persistence import checkpoint
from imel.persistence.contents import check_tensors
from imel.persistence.spaces import spaces_from_tensors, spaces_to_tensors
from imel.persistence.standing import (
    PART,
    Standing,
    check_environments,
    environments_of,
    pasts_of,
    restorable,
    restore_environments,
    standing_parts,
)
from imel.policy import POLICIES, ImelPolicy
from imel.policy.files import require_finite_answers
from imel.policy.refusal import refuse_unused
from imel.rollout import EpisodeClock
from imel.settings import Settings
from imel.updates.common import Update

MODULES = ("policy", "critic", "return_scale")
_COUNTERS = {
    **{name: name for name in ("num_timesteps", "learned_timesteps", "iteration", "faults")},
    "total_timesteps": "_total_timesteps",
    "n_updates": "_n_updates",
}
"""Names of counters in a file, and the model's attributes behind them."""


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

    @classmethod
    @abstractmethod
    def _blank(cls, policy: str | type[ImelPolicy], **arguments: Any) -> Self:
        """One without environment, spaces or networks yet."""

    @abstractmethod
    def _make_policy(self) -> ImelPolicy: ...

    @abstractmethod
    def _make_critic(self, state_dim: int) -> Critic: ...

    @abstractmethod
    def restart_environments(self) -> None:
        """Reset every environment, seeded by run and iteration; running episodes end here."""

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
        checkpoint.write(path, model_tensors(self), model_document(self))

    def stand(self) -> None:
        """Keep what the rollout that is about to begin will change."""
        self.standing = Standing(progress_of(self), generators_of(self), environments_of(self))

    def save_standing(self, path: str | os.PathLike[str]) -> bool:
        """Write the model as it was before the rollout under way, environments included.

        Return False, with nothing written, where environments cannot be put back where they were.
        """
        pasts = pasts_of(self)
        if pasts is None:
            return False
        assert self.standing is not None
        tensors, document = standing_parts(self.standing, pasts)
        checkpoint.write(path, model_tensors(self) | tensors, model_document(self) | document)
        return True

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
        model, _, _ = cls._load(
            path,
            device,
            policy_class,
            {"tensorboard_log": tensorboard_log, "verbose": verbose},
            settings,
        )
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

    @classmethod
    def _load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str,
        policy_class: type[ImelPolicy] | None,
        arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> tuple[Self, dict[str, Tensor], dict[str, Any]]:
        """Build the model of a file, all of it checked; return what the file holds as well."""
        tensors, document = checkpoint.read(path)
        require_entries(document, path)
        blank: dict[str, Any] = {
            "policy_kwargs": document["policy_kwargs"],
            "stats_window_size": document["stats_window_size"],
            "device": device,
            "seed": document["seed"],
            **arguments,
        }
        with checkpoint.building(path):
            policy = policy_class or document["policy"]
            model = cls._blank(policy, **blank, **document["settings"])
        if settings:
            model = cls._blank(policy, **blank, **{**document["settings"], **settings})
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
        return model, tensors, document

    def _check_sizes(self, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
        # On the device that holds nothing: what a file claims about sizes is not believed
        with torch.device("meta"), checkpoint.building(path):
            found = checkpoint.under("policy", tensors)
            policy = self._make_policy()
            shapes = {
                "policy": policy.shapes_for(found),
                "critic": self._make_critic(policy.state_dim).state_dict(),
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


def model_tensors(model: SavedAlgorithm) -> dict[str, Tensor]:
    """Weights, memory, normaliser, optimisers, random states and spaces, by flat name."""
    tensors = spaces_to_tensors(model.observation_space, model.action_space)
    for name in MODULES:
        tensors |= checkpoint.prefixed(name, getattr(model, name).state_dict())
    for name in model.optimizer_names:
        state = checkpoint.optimizer_to_tensors(getattr(model, name))
        tensors |= checkpoint.prefixed(name, state)
    return tensors | generators_of(model)


def generators_of(model: SavedAlgorithm) -> dict[str, Tensor]:
    """Return the random states, by flat name."""
    return {
        "generators/algorithm": model.generator.get_state(),
        "generators/policy": model.policy.generator.get_state(),
    }


def load_tensors(
    model: SavedAlgorithm, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]
) -> None:
    """What `model_tensors` gathered. All is checked before anything is changed."""
    expected = model_tensors(model)
    shapes = model.policy.shapes_for(checkpoint.under("policy", tensors))
    expected |= checkpoint.prefixed("policy", shapes)
    for name in model.optimizer_names:  # Adam has its moments from the first step on, or none
        if checkpoint.under(name, tensors):
            moments = checkpoint.adam_state(getattr(model, name))
            expected |= checkpoint.prefixed(name, moments)
        else:
            expected = {key: t for key, t in expected.items() if not key.startswith(f"{name}/")}
    check_tensors(expected, tensors, "the model", path)
    for name in MODULES:
        getattr(model, name).load_state_dict(checkpoint.under(name, tensors))
    for name in model.optimizer_names:
        checkpoint.load_optimizer(getattr(model, name), checkpoint.under(name, tensors))
    model.generator.set_state(tensors["generators/algorithm"])
    model.policy.generator.set_state(tensors["generators/policy"])


def model_document(model: SavedAlgorithm) -> dict[str, Any]:
    """Configuration and progress, as JSON."""
    return {
        "kind": "model",
        "policy": model.policy_class.__name__,
        "policy_arguments": model.policy._get_constructor_parameters(),
        "policy_kwargs": model.policy_kwargs,
        "settings": model.settings.as_json(),
        "seed": model.seed,
        "run": {"id": model.run_id, "plan": dict(model.plan)},
        "circumstances": {**checkpoint.circumstances(), "device": str(model.device)},
        "n_envs": model.n_envs,
        "stats_window_size": model._stats_window_size,
        "progress": progress_of(model),
    }


def progress_of(model: SavedAlgorithm) -> dict[str, Any]:
    """Return counters and episode statistics, as JSON."""
    return {
        **{name: getattr(model, attribute) for name, attribute in _COUNTERS.items()},
        "next_episode": model.clock.next_episode,
        "progress_remaining": model._current_progress_remaining,
        "episodes": [
            {key: float(value) for key, value in episode.items()}
            for episode in model.ep_info_buffer or ()
        ],
        "successes": [float(success) for success in model.ep_success_buffer or ()],
    }


def require_entries(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a document that `model_document` cannot have made."""
    if document["kind"] != "model":
        raise CheckpointError(f"{path} holds a {document['kind']}, not a whole model")
    plain = {"policy_kwargs": dict, "settings": dict, "progress": dict, "run": dict}
    checkpoint.require_entries(document, plain, path)
    checkpoint.require_entries(document["progress"], {"episodes": list, "successes": list}, path)
    checkpoint.require_entries(document["run"], {"id": str, "plan": dict}, path)
    policy_class = POLICIES.get(document["policy"])
    if policy_class is not None:  # a class of the user's own checks when it is built
        with checkpoint.building(path):
            refuse_unused(document["settings"], policy_class)
            policy_class.settings_class().updated(document["settings"], document["policy"])
    progress = document["progress"]
    numbers = {
        "seed": (0 if document.get("seed", -1) is None else document.get("seed"), 0, 2**32 - 1),
        "n_envs": (document.get("n_envs"), 1, 2**20),
        "stats_window_size": (document.get("stats_window_size"), 1, 2**31),
        **{name: (progress.get(name), 0, 2**62) for name in (*_COUNTERS, "next_episode")},
    }
    for name, (value, low, high) in numbers.items():
        if type(value) is not int or not low <= value <= high:
            raise CheckpointError(f"{path} has a manifest without a valid '{name}'")
    entries = [*progress["successes"], progress.get("progress_remaining")]
    for episode in progress["episodes"]:
        entries += episode.values() if isinstance(episode, dict) else [None]
    if not all(type(entry) in (int, float) and abs(entry) <= 1e300 for entry in entries):
        raise CheckpointError(f"{path} has a manifest with invalid episodes or progress")


def restore_progress(model: SavedAlgorithm, progress: Mapping[str, Any]) -> None:
    """Counters and episode statistics as they were saved."""
    for name, attribute in _COUNTERS.items():
        setattr(model, attribute, progress[name])
    model.clock.next_episode = progress["next_episode"]
    model._current_progress_remaining = progress["progress_remaining"]
    model.ep_info_buffer = deque(progress["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(progress["successes"], maxlen=model._stats_window_size)
