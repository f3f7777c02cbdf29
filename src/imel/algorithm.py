"""IMeL: the loop of the paper (Alg. 1-2) as a Stable-Baselines3 algorithm.

env -> rollout -> advantages -> improvement -> memory -> interpolator -> policy -> env
"""

from __future__ import annotations

import inspect
import time
import warnings
from dataclasses import fields
from typing import Any, ClassVar, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import safe_mean
from torch import nn

from imel.critic import Critic
from imel.datasets.source import Dataset
from imel.datasets.warm_start import warm_start
from imel.environments import make_environments
from imel.errors import (
    EnvironmentFaultError,
    ImelError,
    SettingsError,
    SpaceError,
    nearest_name,
)
from imel.experience import Rollout
from imel.explain import Explanation, Many, One, Rows, explain
from imel.kernels import denormals_flushed
from imel.normaliser import ReturnScale, RunningMoments
from imel.persistence.saving import SavedAlgorithm
from imel.policy import POLICIES, ImelPolicy, check_spaces
from imel.rollout import EpisodeClock, Sampler, collect
from imel.schedules import parse_schedule
from imel.settings import Settings, defaults
from imel.updates import anchored, plain

_UPDATES = {"plain": plain, "anchored": anchored}


class IMeL(SavedAlgorithm):
    """Improved Memories Learning (arXiv 2008.10433).

    :param policy: `"MkiPolicy"`, `"NpPolicy"`, `"AnpPolicy"`, `"RegressorPolicy"`,
        `"NearestPolicy"`, `"RidgePolicy"`, or a subclass of `ImelPolicy`
    :param env: an environment id (then `n_envs` copies are made), an environment, or a vector one
    :param preset: a named set of settings (`imel.settings.PRESETS`); settings given beside it win
    :param settings: see `imel.settings.Settings`; what is not given is the policy's recommendation
    :param policy_kwargs: options of the policy's interpolator
    :param sampler: gathers experience elsewhere, such as `imel.distributed.RaySampler`
    :param device: small networks and memories are fastest on the CPU, hence the default
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = dict(POLICIES)

    def __init__(
        self,
        policy: str | type[ImelPolicy],
        env: GymEnv | str | None,
        *,
        preset: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        sampler: Sampler | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        _init_setup_model: bool = True,
        **settings: Any,
    ) -> None:
        policy_class = self._get_policy_from_name(policy) if isinstance(policy, str) else policy
        if not issubclass(policy_class, ImelPolicy):
            raise SettingsError(
                f"{policy_class.__name__} is no policy of imel; use one of {', '.join(POLICIES)}"
            )
        changes = {**defaults(policy_class.recommended, preset, settings), **settings}
        self.settings = Settings().updated(changes)
        if self.settings.std_mode == "model" and not policy_class.interpolator_class.predicts_std:
            raise SettingsError(
                f"std_mode='model' needs an interpolator with a sigma of its own (NpPolicy, "
                f"AnpPolicy), which {policy_class.__name__} is not"
            )
        self.sampler = sampler
        options = dict(policy_kwargs or {})
        policy_class.make_options(options)  # refuse before an environment is made
        super().__init__(
            policy_class,
            _make_env(env, self.settings, sampler),
            learning_rate=parse_schedule("learning_rate", self.settings.learning_rate),
            policy_kwargs=options,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
        )
        self.trust_region_schedule = parse_schedule("trust_region", self.settings.trust_region)
        self.kl_budget_schedule = parse_schedule("kl_budget", self.settings.kl_budget)
        self.std_schedule = parse_schedule("std", self.settings.std)
        self.iteration = 0
        self.learned_timesteps = 0
        self.faults = 0
        if _init_setup_model:
            self._require_env()
            self._setup_model()

    def _get_policy_from_name(self, policy_name: str) -> type[ImelPolicy]:
        if policy_name in POLICIES:
            return POLICIES[policy_name]
        if policy_name == "MlpPolicy":
            raise SettingsError(
                "IMeL has no 'MlpPolicy': its policies are interpolators of memories. Use "
                "'MkiPolicy' (or RidgePolicy, NpPolicy, AnpPolicy, NearestPolicy; "
                "RegressorPolicy is the plain network, for ablation)"
            )
        raise SettingsError(
            f"unknown policy '{policy_name}'; {nearest_name(policy_name, POLICIES)}"
        )

    def _require_env(self) -> None:
        if self.env is None:
            raise ImelError("an environment is needed to learn")

    def _require_room(self, n_envs: int) -> None:
        batch = n_envs * self._steps_for(n_envs)
        if batch > self.settings.memory_size:
            raise SettingsError(
                f"memory_size={self.settings.memory_size} is smaller than one batch: {batch} "
                f"transitions of {n_envs} environments"
            )

    def _setup_model(self) -> None:
        settings = self.settings
        self._require_room(self.n_envs)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        seed = (
            self.seed
            if self.seed is not None
            else int(np.random.SeedSequence().generate_state(1)[0])
        )
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # torch's layers draw their initial weights from the global one
            self.policy = self._make_policy().to(self.device)
            self.critic = self._make_critic().to(self.device)
        self.policy.generator.manual_seed(seed)
        self.return_scale = ReturnScale(settings.gamma)
        self.usual_gain = RunningMoments(1)
        self.policy.std.fill_(self._std_at(1.0))
        # An interpolator that learns nothing still has an optimizer, over a parameter of no use
        parameters = list(self.policy.interpolator.parameters()) or [nn.Parameter(torch.zeros(1))]
        self.optimizer = torch.optim.Adam(parameters, lr=self.lr_schedule(1.0), fused=True)
        self.critic_optimizer = torch.optim.Adam(
            self.critic.parameters(), lr=settings.critic_learning_rate, fused=True
        )
        self.clock = EpisodeClock(self.n_envs)
        self._set_prior_context()

    @classmethod
    def _blank(cls, policy: str | type[ImelPolicy], **arguments: Any) -> Self:
        return cls(policy, env=None, _init_setup_model=False, **arguments)

    def _make_policy(self) -> ImelPolicy:
        settings = self.settings
        policy: ImelPolicy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            memory_size=settings.memory_size,
            own_std=settings.std_mode == "model",
            min_std=settings.min_std,
            update=settings.update,
            anchor_size=settings.anchor_size,
            **self.policy_kwargs,
        )
        return policy

    def _make_critic(self) -> Critic:
        assert self.observation_space.shape is not None
        return Critic(self.observation_space.shape[0], self.settings.critic_hidden)

    def _set_prior_context(self) -> None:
        """C^0 (Alg. 1 l. 1): normalised states from N(0, 1), means from N(0, prior_std^2)."""
        # Paper note 5: U(S) does not exist for unbounded states
        memory, settings = self.policy.memory, self.settings
        count = min(settings.prior_size, memory.capacity)
        states = torch.randn(count, memory.states.shape[1], generator=self.generator)
        means = torch.randn(count, memory.means.shape[1], generator=self.generator)
        states = self.policy.normaliser.inverse(states.to(self.device))
        memory.set_prior(states, settings.prior_std * means.to(self.device))
        self.policy.changed()

    def _std_at(self, progress: float) -> float:
        """`std` as it is when so much of the run remains, of each dimension."""
        std = self.std_schedule(progress)
        if self.settings.std_of == "action":
            # Above 1, half the action range, most draws would only be cut off
            std = min(1.0, std / self.policy.std.numel())
        return max(std, self.settings.min_std)

    @property
    def n_steps(self) -> int:
        """Steps each environment takes per iteration."""
        return self._steps_for(self.n_envs)

    def _steps_for(self, n_envs: int) -> int:
        return max(1, self.settings.batch_size // n_envs)

    def warm_start(self, dataset: Dataset) -> Self:
        """Begin with memories of logged data or demonstrations, before the first step.

        What has improved means is remembered as logged. What has mu, sigma and rewards is improved
        first. Of anything else the actions are imitated: mu* is the action, the advantage zero.
        Normaliser, critic (given rewards) and interpolator are fitted to it. If there is more than
        fits into the memory, its newest episodes are taken. On an error nothing is changed.

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
            self._learn(total_timesteps, callback, log_interval)
        callback.on_training_end()
        return self

    def _learn(self, total_timesteps: int, callback: BaseCallback, log_interval: int) -> None:
        update = _UPDATES[self.settings.update]
        while self.num_timesteps < total_timesteps:
            self._update_schedules(total_timesteps)
            rollout = self._collect(callback)  # Alg. 1 l. 4-7
            if rollout is None:
                break
            update.improve(self, rollout)  # l. 8-12
            # l. 3 stands at the end of an iteration, not at its start: the model is then whole
            # between iterations, and the first fit is to experience rather than to the prior
            update.fit(self, rollout)
            self.iteration += 1
            self.learned_timesteps = self.num_timesteps
            if log_interval and self.iteration % log_interval == 0:
                self.dump_logs()

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._require_env()
        before = self._last_obs
        result = super()._setup_learn(*args, **kwargs)
        if self._last_obs is not before:
            self._environments_were_reset()
        return result

    def _update_schedules(self, total_timesteps: int) -> None:
        self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
        progress = self._current_progress_remaining
        self._update_learning_rate(self.optimizer)
        self.trust_region = self.trust_region_schedule(progress)
        self.kl_budget = self.kl_budget_schedule(progress)
        self.logger.record("improve/kl_budget", self.kl_budget)
        self.max_std = self._std_at(progress)
        if self.settings.std_mode == "schedule":
            self.policy.std.fill_(self.max_std)
        elif self.settings.std_mode == "adaptive":
            self.policy.std.clamp_max_(self.max_std)

    def _collect(self, callback: BaseCallback) -> Rollout | None:
        assert self.env is not None
        callback.on_rollout_start()

        def on_step(step: dict[str, Any]) -> bool:
            self.num_timesteps += self.n_envs
            self._update_info_buffer(step["infos"], step["dones"])
            callback.update_locals(step)
            return bool(callback.on_step())

        gather = collect if self.sampler is None else self.sampler.collect
        while True:
            # Should the rollout fail, no later one may start from observations of before
            observations, self._last_obs = self._last_obs, None
            assert isinstance(observations, np.ndarray)
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
                self._survive(fault)
        callback.on_rollout_end()
        if rollout is not None:
            outside = (rollout.actions.abs() > 1.0).any(dim=-1)
            self.logger.record("rollout/clipped_actions", float(outside.float().mean()))
            self.logger.record("rollout/std", float(rollout.stds.mean()))
        return rollout

    def _survive(self, fault: EnvironmentFaultError) -> None:
        """Drop the batch and what is remembered of the episode, and start the environments again.

        Raises the fault if there have been too many.
        """
        self.faults += 1
        if self.faults > self.settings.max_faults:
            raise fault
        warnings.warn(
            f"{fault}; fault {self.faults} of {self.settings.max_faults} that are survived",
            RuntimeWarning,
            stacklevel=2,
        )
        running = torch.from_numpy(self.clock.episodes)
        spoiled = running if fault.environment is None else running[[fault.environment]]
        self.policy.memory.forget_episodes(spoiled)
        if len(self.policy.memory) == 0:
            self._set_prior_context()
        self.policy.changed()
        try:
            self.restart_environments()
        except EnvironmentFaultError as another:
            self._survive(another)

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

    @overload
    def explain(
        self, observation: One, without: Rows | None = None, without_episodes: Rows | None = None
    ) -> Explanation: ...

    @overload
    def explain(
        self, observation: Many, without: Rows | None = None, without_episodes: Rows | None = None
    ) -> list[Explanation]: ...

    def explain(
        self,
        observation: NDArray[Any],
        without: Rows | None = None,
        without_episodes: Rows | None = None,
    ) -> Explanation | list[Explanation]:
        """Why this action: the memories behind the policy's mean at one or several observations.

        :param without: rows of the memory, or a mask, that the policy is to do without
        :param without_episodes: episodes that it is to do without
        """
        found: Explanation | list[Explanation]
        found = explain(self.policy, observation, without, without_episodes)
        return found

    # --- environments ---

    def restart_environments(self) -> None:
        """Reset every environment, seeded by run and iteration; running episodes end here."""
        self._require_env()
        assert self.env is not None
        if self.seed is not None:
            sequence = np.random.SeedSequence([self.seed, self.iteration, self.faults])
            self.env.seed(int(sequence.generate_state(1)[0]))
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self._environments_were_reset()

    def _environments_were_reset(self) -> None:
        self.clock.restart(self.n_envs)
        self.return_scale.restart()

    def set_env(self, env: GymEnv | str, force_reset: bool = True) -> None:
        """Learn on another environment with the same spaces, any number of copies of it."""
        made = _make_env(env, self.settings, self.sampler)
        assert made is not None
        vector = self._wrap_env(made, self.verbose)
        self._require_room(vector.num_envs)
        before, self.n_envs = self.n_envs, vector.num_envs  # the base class wants them equal
        try:
            super().set_env(vector, force_reset or vector.num_envs != before)
        except ValueError as error:
            self.n_envs = before
            raise SpaceError(f"not the spaces this model was made for: {error}") from None


def _make_env(
    env: GymEnv | str | None, settings: Settings, sampler: Sampler | None
) -> GymEnv | None:
    """An id becomes copies of that environment; anything else is taken as it is."""
    if sampler is not None and env is not None:
        if not isinstance(env, str):
            raise SettingsError("a sampler makes its own environments: give an environment's id")
        env = sampler.make_environments(env, settings.n_envs)
    elif isinstance(env, str):
        env = make_environments(env, settings.n_envs, settings.workers, settings.worker_timeout)
    if env is not None:
        check_spaces(env.observation_space, env.action_space)
    return env


def _signature() -> inspect.Signature:
    """The constructor's signature with every setting in the place of `**settings`."""
    own = list(inspect.signature(IMeL.__init__).parameters.values())[1:-1]
    flat = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(Settings)
    ]
    return inspect.Signature([p for p in own if p.name != "_init_setup_model"] + flat)


IMeL.__signature__ = _signature()  # type: ignore[attr-defined]
