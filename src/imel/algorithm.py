"""IMeL: the loop of the paper (Alg. 1-2) as a Stable-Baselines3 algorithm.

env -> rollout -> advantages -> improvement -> memory -> policy -> env
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv

from imel import registry
from imel.checkpoints import checkpoint, model_file
from imel.checkpoints.checkpoint import Checkpoint, Contents, Source
from imel.checkpoints.contents import spaces_from_tensors
from imel.data.arithmetic import denormals_flushed
from imel.data.critic import Critic
from imel.data.experience import Rollout
from imel.data.rollout import Sampler, collect
from imel.environments.making import environments_for
from imel.errors import CheckpointError, EnvironmentFaultError, ImelError, SettingsError, SpaceError
from imel.keywords import Keywords
from imel.learner import LearnerState
from imel.policies.base import Policy, Rows
from imel.settings import Settings, settings_table

if TYPE_CHECKING:
    from imel.datasets import Dataset
    from imel.policies.names import DimensionNames


def _of_learner(name: str) -> Any:
    """Return a property: what Stable-Baselines3 keeps in the algorithm is the learner's here."""

    def get(model: IMeL) -> Any:
        return getattr(model.learner, name)

    def put(model: IMeL, value: Any) -> None:
        setattr(model.learner, name, value)

    return property(get, put)


class IMeL(BaseAlgorithm):
    """Improved Memories Learning (arXiv 2008.10433), with the interface of Stable-Baselines3.

    An iteration gathers a rollout, estimates advantages, improves experiences by a KL-bounded step
    along their policy gradients, and computes the policy from the improved experiences.

    :param policy: `"RidgePolicy"`, or one of the paper's: `"MkiPolicy"`, `"NpPolicy"`,
        `"AnpPolicy"`, `"NearestPolicy"`, `"RegressorPolicy"`; a policy class of your own, or its
        name as `"module:Class"`
    :param env: an environment id (then `n_envs` copies are made), an environment, or a vector one
    :param settings: see the table below; a setting that the policy does not use is refused
    :param policy_kwargs: more settings, for those used to Stable-Baselines3
    :param sampler: gathers experience elsewhere, such as `imel.distributed.RaySampler`
    :param device: small networks and memories are fastest on the CPU, hence the default
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {}

    policy_class: type[Policy]
    policy: Policy = _of_learner("policy")
    critic: Critic = _of_learner("critic")
    iteration: int = _of_learner("iteration")
    learned_timesteps: int = _of_learner("learned_timesteps")
    num_timesteps = _of_learner("num_timesteps")
    ep_info_buffer = _of_learner("episodes")
    ep_success_buffer = _of_learner("successes")
    _total_timesteps = _of_learner("total_timesteps")
    _n_updates = _of_learner("n_updates")
    _current_progress_remaining = _of_learner("progress_remaining")

    run_id: str
    """Made when the algorithm was; every file of the run carries it."""
    plan: Mapping[str, Any]
    """What else decides the outcome, such as the environment's id, where a command has set it."""
    checkpointed: bool = False
    """Whether a callback takes checkpoints of the run: then a snapshot precedes each rollout."""
    snapshot: Contents | None = None
    resumed_iteration: int | None = None
    """The iteration at which this process took the run up again."""
    _dimension_names: DimensionNames | None = None

    def __init__(
        self,
        policy: str | type[Policy],
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
        self.learner = LearnerState()
        policy_class = self._get_policy_from_name(policy)
        self.settings: Settings = policy_class.make_settings({**settings, **(policy_kwargs or {})})
        self.sampler = sampler
        made = environments_for(env, self.settings, sampler)
        if made is not None:
            policy_class.require_usable(self.settings, made.action_space)
        super().__init__(
            policy_class,
            made,
            learning_rate=self.settings.critic_learning_rate,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
        )
        self.gamma, self.gae_lambda = self.settings.gamma, self.settings.gae_lambda
        self.run_id, self.plan = uuid.uuid4().hex, {}
        if _init_setup_model:
            self._require_env()
            self._setup_model()

    def _get_policy_from_name(self, policy_name: str | type[Policy]) -> type[Policy]:
        if policy_name == "MlpPolicy":
            raise SettingsError(
                "IMeL has no 'MlpPolicy': its policies are computed from memories. Use "
                "'RidgePolicy' (or the paper's MkiPolicy, NpPolicy, AnpPolicy, NearestPolicy; "
                "RegressorPolicy is the plain network, for ablation)"
            )
        return registry.find_policy(policy_name)

    def _require_room(self, n_envs: int) -> None:
        size = n_envs * self._steps_for(n_envs)
        if size > self.settings.memory_size:
            raise SettingsError(
                f"memory_size={self.settings.memory_size} is smaller than one rollout: {size} "
                f"transitions of {n_envs} environments"
            )

    def _setup_model(self) -> None:
        self._require_room(self.n_envs)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        seed = self.seed
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        spaces = self.observation_space, self.action_space
        self.learner.set_up(self.policy_class, spaces, self.settings, seed)
        self.learner.begin(self.device, self.n_envs)

    def _require_env(self) -> VecEnv:
        if self.env is None:
            raise ImelError("an environment is needed to learn")
        return self.env

    @property
    def n_steps(self) -> int:
        """Steps each environment takes per iteration."""
        return self._steps_for(self.n_envs)

    def _steps_for(self, n_envs: int) -> int:
        return max(1, self.settings.rollout_size // n_envs)

    @property
    def remaining_timesteps(self) -> int:
        """Environment steps that the last call of `learn` was asked for and has not taken yet."""
        return max(0, self.learner.total_timesteps - self.learner.num_timesteps)

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
        from imel.datasets import warm_start

        warm_start(self.learner, dataset)
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
        learner, update = self.learner, self.learner.update
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        with denormals_flushed():
            while self.num_timesteps < total_timesteps:
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                self._record(update.before_rollout())
                rollout = self._collect(callback)  # Alg. 1 l. 4-7
                if rollout is None:
                    break
                self._record(update(rollout))  # l. 8-12 and 3
                learner.iteration += 1
                learner.learned_timesteps = learner.num_timesteps
                if log_interval and learner.iteration % log_interval == 0:
                    self.dump_logs()
        callback.on_training_end()
        return self

    def _record(self, stats: Mapping[str, float]) -> None:
        for name, value in stats.items():
            self.logger.record(name, value)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._require_env()
        before = self._last_obs
        result = super()._setup_learn(*args, **kwargs)
        self.learned_timesteps = min(self.learned_timesteps, self.num_timesteps)
        if self._last_obs is not before:
            self.learner.environments_were_reset(self.n_envs)
        return result

    def _collect(self, callback: BaseCallback) -> Rollout | None:
        assert self.env is not None
        self._take_snapshot()
        callback.on_rollout_start()

        def on_step(step: dict[str, Any]) -> bool:
            self.num_timesteps += self.n_envs
            self._update_info_buffer(step["infos"], step["dones"])
            callback.update_locals(step)
            return bool(callback.on_step())

        gather = collect if self.sampler is None else self.sampler.collect
        while True:
            self._take_snapshot()  # environments may have been restarted since
            # Should the rollout fail, no later one may start from observations of before
            observations, self._last_obs = self._last_obs, None
            assert observations is not None
            try:
                rollout, self._last_obs = gather(
                    self.env,
                    observations,
                    self.policy,
                    self.n_steps,
                    self.learner.clock,
                    self.learner.generator,
                    on_step,
                )
                break
            except EnvironmentFaultError as fault:
                self._survive(fault)
        callback.on_rollout_end()
        if rollout is not None:
            seen = (rollout.actions, rollout.means, rollout.stds)
            diagnosed = self.policy.distribution.diagnose(*seen)
            self._record({f"rollout/{name}": value for name, value in diagnosed.items()})
        return rollout

    def _take_snapshot(self) -> None:
        if self.checkpointed:
            self.snapshot = model_file.take_snapshot(self)

    def _survive(self, fault: EnvironmentFaultError) -> None:
        """Drop the batch and what is remembered of the episode; restart the environments.

        Raises the fault if there have been too many.
        """
        learner, memory = self.learner, self.policy.memory
        learner.faults += 1
        if learner.faults > self.settings.max_faults:
            raise fault
        warnings.warn(
            f"{fault}; fault {learner.faults} of {self.settings.max_faults} that are survived",
            RuntimeWarning,
            stacklevel=2,
        )
        running = torch.from_numpy(learner.clock.episodes)
        spoiled = running if fault.environment is None else running[[fault.environment]]
        memory.forget_episodes(spoiled)
        self.policy.invalidate()
        if len(memory) == 0:
            learner.update.start()
        try:
            self.restart_environments()
        except EnvironmentFaultError as another:
            self._survive(another)

    def restart_environments(self) -> None:
        """Reset every environment, seeded by run and iteration; running episodes end here."""
        env = self._require_env()
        if self.seed is not None:
            sequence = np.random.SeedSequence([self.seed, self.iteration, self.learner.faults])
            env.seed(int(sequence.generate_state(1)[0]))
        self._last_obs = env.reset()  # type: ignore[assignment]
        self.learner.environments_were_reset(self.n_envs)

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

    # --- explaining ---

    def explain(
        self,
        observation: NDArray[Any],
        without: Rows | None = None,
        without_episodes: Rows | None = None,
        without_lessons: Rows | None = None,
    ) -> Any:
        """Why this action: what is behind the policy's mean at one or several observations.

        A `RidgePolicy` gives an `imel.LessonExplanation`, one of the paper's policies an
        `imel.Explanation`; several observations [T, d_s] give a list of them.

        :param without: rows of the memory, or a mask, that one of the paper's policies is to do
            without
        :param without_episodes: episodes whose memories one of the paper's is to do without
        :param without_lessons: episodes whose lessons a `RidgePolicy` is to do without
        """
        from imel.explain import explain

        names = self.dimension_names
        return explain(self.policy, observation, without, without_episodes, without_lessons, names)

    def policy_without(self, lessons: Rows) -> Policy:
        """Return a copy of a `RidgePolicy` without the lessons of some episodes.

        It is what this policy would do without what it was taught there, to be played, evaluated
        and saved; not what a run that never saw those episodes would have become. An episode that
        was merged into a period is taken back with the whole of it. Of the paper's policies,
        `imel.explain.policy_without` leaves out memories.
        """
        return self.policy.without(lessons=lessons)

    @property
    def dimension_names(self) -> DimensionNames:
        """Names of the state's and the action's dimensions, for explanations.

        Unless set, those of the environment (its attributes `state_names` and `action_names`),
        those built in for Gymnasium's tasks, or numbers.
        """
        from imel.policies.names import names_of

        if self._dimension_names is not None:
            return self._dimension_names
        env = None if self.env is None else getattr(self.env, "envs", [self.env])[0]
        return names_of(env, self.policy.dimensions)

    @dimension_names.setter
    def dimension_names(self, names: DimensionNames) -> None:
        widths = (self.policy.state_dim, self.policy.action_dim)
        self._dimension_names = type(names).checked(names.state, names.action, widths)

    def __repr__(self) -> str:
        name = self.policy_class.__name__
        if not hasattr(self.learner, "policy"):
            return f"<IMeL with {name}, not set up>"
        policy, memory = self.policy, self.policy.memory
        (spec,) = ("",) if self.env is None else self.env.get_attr("spec", [0])
        named = getattr(spec, "id", None) or (
            "no environment" if self.env is None else "an unregistered environment"
        )
        learned = f"  learned {self.num_timesteps:,} steps in {self.iteration:,} iterations"
        if self.ep_info_buffer:
            returns = [episode["r"] for episode in self.ep_info_buffer]
            learned += f"; mean return of the last {len(returns)} episodes {safe_mean(returns):.1f}"
        held = f"  {0 if memory.holds_prior else len(memory):,} of {memory.capacity:,} memories"
        if policy.lessons is not None:
            held += f", {len(policy.lessons):,} lessons"
        if policy.distribution.has_std:
            held += f", sigma {float(policy.std.mean()):.2f}"
        return (
            f"IMeL with {name} on {named}, {self.n_envs} environments\n"
            f"  observations {self.observation_space}, actions {self.action_space}\n"
            f"{learned}\n{held}"
        )

    # --- files ---

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        optimizers = [f"optimizers.{name}" for name in self.learner.optimizers]
        return ["policy", "critic", "learner.return_scale", *optimizers], []

    @property
    def optimizers(self) -> SimpleNamespace:
        """The optimizers, as attributes: `get_parameters()` has them as `optimizers.…`."""
        return SimpleNamespace(**self.learner.optimizers)

    def save(  # type: ignore[override]
        self,
        path: str | os.PathLike[str],
        exclude: Any = None,
        include: Any = None,
    ) -> None:
        """Write the whole model to one checkpoint file, without pickle."""
        if exclude or include:
            raise ImelError("a checkpoint always holds the whole model: no include, no exclude")
        checkpoint.write(path, *model_file.contents_of(self))

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: Source,
        env: GymEnv | str | None = None,
        device: torch.device | str = "cpu",
        *,
        policy_class: type[Policy] | None = None,
        force_reset: bool = True,
        seed: int | None = None,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        **settings: Any,
    ) -> Self:
        """Read a model written by `save`; settings given here replace the saved ones.

        Files hold no code: a policy class of your own is named by `policy_class`, or its module has
        been imported before. Random numbers go on where they were when the model was saved, or
        start anew from a `seed`.
        """
        file = Checkpoint.read(path)
        model_file.require_model(file)
        found = policy_class or model_file.policy_class_of(file)
        with checkpoint.building(file.path):
            found.make_settings(file.document["settings"])
        model = cls(
            found,
            None,
            stats_window_size=file.document["stats_window_size"],
            device=device,
            seed=file.document["seed"],
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            _init_setup_model=False,
            **{**file.document["settings"], **settings},
        )
        spaces = spaces_from_tensors(file.tensors, file.path)
        model.observation_space, model.action_space = spaces
        model.n_envs = file.document["n_envs"]
        model_file.check_sizes(file, model.policy_class, spaces, model.settings)
        with checkpoint.building(file.path):
            model._setup_model()
        model_file.load_contents(model, file)
        if seed is not None:
            model.seed = seed
            model.learner.generator.manual_seed(seed)
            model.policy.generator.manual_seed(seed)
        if env is not None:
            try:
                model.set_env(env, force_reset)
            except SpaceError as error:
                raise SpaceError(f"{file.path}: {error}") from None
            if model.env is not None and model.seed is not None:
                model.env.seed(model.seed + model.iteration)  # continuations of one file agree
        return model

    @classmethod
    def resume(
        cls,
        path: Source,
        env: GymEnv | str,
        device: torch.device | str = "cpu",
        **arguments: Any,
    ) -> Self:
        """Return a model that goes on as if it had never stopped, from a file of `RunCheckpoints`.

        Continue with `learn(model.remaining_timesteps, reset_num_timesteps=False)` and the same
        `RunCheckpoints` callback, on the same environments. Those given by an id go on in the
        midst of their episodes.
        """
        file = Checkpoint.read(path)
        model = cls.load(file, env, device, **arguments)
        if model_file.PART not in file.document:  # then the run itself has begun new episodes there
            model.restart_environments()
        elif model_file.restorable(model):
            model_file.restore_environments(model, file)
        else:
            raise CheckpointError(
                f"{file.path} was made with environments of its own, given by an id"
            )
        model.resumed_iteration = model.iteration
        return model

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
            model_file.load_tensors(self.learner, Checkpoint.read(load_path_or_dict))
        self.policy.invalidate()


_CLASSES = ((kind.__name__, kind.Settings) for kind in registry.policies().values())
IMeL.__doc__ = f"{IMeL.__doc__}\n{settings_table(_CLASSES)}"
