"""IMeL: the loop of the paper (Alg. 1-2) as a Stable-Baselines3 algorithm.

env -> rollout -> advantages -> improvement -> memory -> policy -> env
"""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import safe_mean

from imel.checkpoints.saving import SavedAlgorithm
from imel.data.critic import Critic
from imel.data.experience import Rollout
from imel.data.normaliser import ReturnScale
from imel.data.rollout import EpisodeClock, Sampler, collect
from imel.datasets.source import Dataset
from imel.datasets.warm_start import warm_start
from imel.environments.making import environments_for, survive
from imel.errors import (
    EnvironmentFaultError,
    SettingsError,
    SpaceError,
    nearest_name,
)
from imel.explain.explained_model import ExplainedAlgorithm
from imel.policies import POLICIES, ImelPolicy
from imel.policies.paper.kernels import denormals_flushed
from imel.policies.paper.paper_policy import PaperPolicy
from imel.policies.paper.paper_update import PaperUpdate
from imel.policies.refusal import checked_settings, refuse_sigma
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.policies.ridge.ridge_update import RidgeUpdate
from imel.settings import FitSettings, Keywords
from imel.settings.description import settings_table


class IMeL(ExplainedAlgorithm, SavedAlgorithm):
    """Improved Memories Learning (arXiv 2008.10433), with the interface of Stable-Baselines3.

    An iteration gathers a rollout, estimates advantages, improves experiences by a KL-bounded step
    along their policy gradients, and computes the policy from the improved experiences.

    :param policy: `"RidgePolicy"`, or one of the paper's: `"MkiPolicy"`, `"NpPolicy"`,
        `"AnpPolicy"`, `"NearestPolicy"`, `"RegressorPolicy"`; or a subclass of `ImelPolicy`
    :param env: an environment id (then `n_envs` copies are made), an environment, or a vector one
    :param settings: see the table below; a setting that the policy does not use is refused
    :param policy_kwargs: options of the policy
    :param sampler: gathers experience elsewhere, such as `imel.distributed.RaySampler`
    :param device: small networks and memories are fastest on the CPU, hence the default
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = dict(POLICIES)

    def __init__(
        self,
        policy: str | type[ImelPolicy],
        env: GymEnv | str | None,
        *,
        policy_kwargs: dict[str, Any] | None = None,
        sampler: Sampler | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        _init_setup_model: bool = True,
        **settings: Unpack[Keywords],
    ) -> None:
        policy_class = self._get_policy_from_name(policy) if isinstance(policy, str) else policy
        if not issubclass(policy_class, ImelPolicy):
            raise SettingsError(
                f"{policy_class.__name__} is no policy of imel; use one of {', '.join(POLICIES)}"
            )
        self.settings = checked_settings(policy_class, settings)
        self.sampler = sampler
        options = dict(policy_kwargs or {})
        policy_class.make_options(options)  # refuse before an environment is made
        made = environments_for(env, self.settings, sampler)
        if made is not None and not isinstance(made.action_space, spaces.Box):
            refuse_sigma(self.settings, made.action_space)
        super().__init__(
            policy_class,
            made,
            learning_rate=self.settings.critic_learning_rate,
            policy_kwargs=options,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
        )
        self.gamma, self.gae_lambda = self.settings.gamma, self.settings.gae_lambda
        self.iteration = 0
        self.learned_timesteps = 0
        self.faults = 0
        self.run_id, self.plan = uuid.uuid4().hex, {}
        if _init_setup_model:
            self._require_env()
            self._setup_model()

    def _get_policy_from_name(self, policy_name: str) -> type[ImelPolicy]:
        if policy_name in POLICIES:
            return POLICIES[policy_name]
        if policy_name == "MlpPolicy":
            raise SettingsError(
                "IMeL has no 'MlpPolicy': its policies are computed from memories. Use "
                "'RidgePolicy' (or the paper's MkiPolicy, NpPolicy, AnpPolicy, NearestPolicy; "
                "RegressorPolicy is the plain network, for ablation)"
            )
        raise SettingsError(
            f"unknown policy '{policy_name}'; {nearest_name(policy_name, POLICIES)}"
        )

    def _require_room(self, n_envs: int) -> None:
        size = n_envs * self._steps_for(n_envs)
        if size > self.settings.memory_size:
            raise SettingsError(
                f"memory_size={self.settings.memory_size} is smaller than one rollout: {size} "
                f"transitions of {n_envs} environments"
            )

    def _setup_model(self) -> None:
        settings: Any = self.settings
        self._require_room(self.n_envs)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        seed = self.seed
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # torch's layers draw their initial weights from the global one
            self.policy = self._make_policy().to(self.device)
            self.critic = Critic(self.policy.state_dim, settings.critic_hidden).to(self.device)
        self.policy.generator.manual_seed(seed)
        self.return_scale = ReturnScale(settings.gamma)
        self.critic_optimizer = torch.optim.Adam(
            self.critic.parameters(), lr=settings.critic_learning_rate, fused=True
        )
        self.interpolator_optimizer = None
        if isinstance(self.policy, RidgePolicy):
            self.update = RidgeUpdate(settings, self.policy)
        else:
            assert isinstance(self.policy, PaperPolicy)
            self.update = PaperUpdate(settings, self.policy)
            if isinstance(settings, FitSettings):
                parameters = self.policy.interpolator.parameters()
                self.interpolator_optimizer = torch.optim.Adam(parameters, fused=True)
        self.update.start(self)
        self.clock = EpisodeClock(self.n_envs)

    @property
    def n_steps(self) -> int:
        """Steps each environment takes per iteration."""
        return self._steps_for(self.n_envs)

    def _steps_for(self, n_envs: int) -> int:
        return max(1, self.settings.rollout_size // n_envs)

    def warm_start(self, dataset: Dataset) -> Self:
        """Begin with memories of logged data or demonstrations, before the first step.

        What has improved means is remembered as logged. What has mu, sigma and rewards is improved
        first by one of the paper's policies; `RidgePolicy` imitates mu. Of anything else the
        actions are imitated: mu* is the action, the advantage zero. Normaliser, critic (given
        rewards) and policy are fitted to it; without rewards `RidgePolicy` keeps no memory of it.
        If there is more than fits into the memory, its newest episodes are taken. On an error
        nothing is changed.

        :param dataset: a Parquet file of `imel export`, a Minari dataset or the id of a local one,
            or a list of episodes: `imel.datasets.Episode`, or dicts with the same names
        """
        warm_start(self, dataset)
        return self

    # --- the loop ---

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "IMeL",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learn for `total_timesteps` more environment steps (Alg. 1-2)."""
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        with denormals_flushed():
            while self.num_timesteps < total_timesteps:
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                self.update.before_rollout(self)
                rollout = self._collect(callback)  # Alg. 1 l. 4-7
                if rollout is None:
                    break
                self.update(self, rollout)  # l. 8-12 and 3
                self.iteration += 1
                self.learned_timesteps = self.num_timesteps
                if log_interval and self.iteration % log_interval == 0:
                    self.dump_logs()
        callback.on_training_end()
        return self

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._require_env()
        before = self._last_obs
        result = super()._setup_learn(*args, **kwargs)
        self.learned_timesteps = min(self.learned_timesteps, self.num_timesteps)
        if self._last_obs is not before:
            self._environments_were_reset()
        return result

    def _collect(self, callback: BaseCallback) -> Rollout | None:
        assert self.env is not None
        if self.checkpointed:
            self.stand()
        callback.on_rollout_start()

        def on_step(step: dict[str, Any]) -> bool:
            self.num_timesteps += self.n_envs
            self._update_info_buffer(step["infos"], step["dones"])
            callback.update_locals(step)
            return bool(callback.on_step())

        gather = collect if self.sampler is None else self.sampler.collect
        while True:
            if self.checkpointed:  # environments may have begun anew since
                self.stand()
            # Should the rollout fail, no later one may start from observations of before
            observations, self._last_obs = self._last_obs, None
            assert observations is not None
            try:
                rollout, self._last_obs = gather(
                    self.env,
                    observations,
                    self.policy,
                    self.n_steps,
                    self.clock,
                    self.generator,
                    on_step,
                )
                break
            except EnvironmentFaultError as fault:
                survive(self, fault)
        callback.on_rollout_end()
        if rollout is not None:
            seen = (rollout.actions, rollout.means, rollout.stds)
            for name, value in self.policy.distribution.diagnose(*seen).items():
                self.logger.record(f"rollout/{name}", value)
        return rollout

    def dump_logs(self) -> None:
        """Write what was recorded, with progress and speed."""
        assert self.ep_info_buffer is not None
        assert self.ep_success_buffer is not None
        record = self.logger.record
        seconds = max((time.time_ns() - self.start_time) / 1e9, 1e-9)
        steps = self.num_timesteps - self._num_timesteps_at_start
        record("time/iterations", self.iteration)
        record("time/fps", int(steps / seconds))
        record("time/time_elapsed", int(seconds))
        record("time/total_timesteps", self.num_timesteps)
        record("train/n_updates", self._n_updates)
        if self.ep_info_buffer:
            record("rollout/ep_rew_mean", safe_mean([ep["r"] for ep in self.ep_info_buffer]))
            record("rollout/ep_len_mean", safe_mean([ep["l"] for ep in self.ep_info_buffer]))
        if self.ep_success_buffer:
            record("rollout/success_rate", safe_mean(self.ep_success_buffer))
        self.logger.dump(step=self.num_timesteps)

    def set_env(self, env: GymEnv | str, force_reset: bool = True) -> None:
        """Learn on another environment with the same spaces, any number of copies of it."""
        made = environments_for(env, self.settings, self.sampler)
        assert made is not None
        vector = self._wrap_env(made, self.verbose)
        self._require_room(vector.num_envs)
        before, self.n_envs = self.n_envs, vector.num_envs  # the base class wants them equal
        try:
            super().set_env(vector, force_reset or vector.num_envs != before)
        except ValueError as error:
            self.n_envs = before
            raise SpaceError(f"not the spaces this model was made for: {error}") from None


IMeL.__doc__ = f"{IMeL.__doc__}\n{settings_table()}"
