"""What every policy has: settings, a memory, a normaliser, a distribution of actions, an update.

    observation -> raw state -> Normaliser -> mean mu -> N(mu, sigma) -> action

Where actions are discrete the "mean" are logits (`imel.distributions`), and where observations are
no vectors the state is what a frozen features extractor returns (`imel.policies.spaces`).

A policy owns everything that differs between kinds. How it learns is made once by `make_update`: an
`Update` reads and changes the learner's state, owns the optimizers, and returns statistics.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import explained_variance
from torch import Tensor
from torch.optim import Optimizer

from imel import registry
from imel.data.advantage import standardise
from imel.data.critic import fit_critic
from imel.data.experience import Rollout
from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.data.rollout import FloatArray
from imel.distributions import distribution_for
from imel.errors import ImelError, SettingsError
from imel.policies.names import DimensionNames, Dimensions
from imel.policies.spaces import check_spaces, make_extractor, state_names
from imel.settings import Settings as CommonSettings
from imel.settings import marked, setting_names

if TYPE_CHECKING:
    from imel.checkpoints.checkpoint import Source
    from imel.explain.explanation import Readable
    from imel.learner import LearnerState
    from imel.policies.ridge.ledger import Lessons

T = TypeVar("T")

Stats = dict[str, float]
"""What is logged, by the names of docs/metrics.md."""
Rows = Sequence[int] | Sequence[bool] | NDArray[Any] | None
"""Places in the memory, or for each of them whether it is meant; or numbers of episodes."""


class _Cache(dict[str, Any]):
    """What was computed from a policy as it stands. A copy of the policy begins without it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Cache:
        return _Cache()


class Policy(BasePolicy):
    """The base of all policies: a subclass says how its mean is made, and how it learns.

    :param settings: an instance of the class's `Settings`; its defaults if not given
    :param changes: settings that are to differ from those
    """

    Settings: ClassVar[type[CommonSettings]] = CommonSettings
    name: ClassVar[str] = ""  # what commands and files call a registered policy
    label: ClassVar[str] = ""  # what reports call it

    std: Tensor  # [d_a]
    lessons: Lessons | None  # what each episode taught; None of a policy that is no sum of lessons
    conditioned: Any = None  # what answers with the memories in place, where they are interpolated

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        settings: Any = None,
        **changes: Any,
    ) -> None:
        check_spaces(observation_space, action_space)
        extractor = make_extractor(observation_space)
        super().__init__(
            observation_space,
            action_space,
            features_extractor=extractor,
            # Predictions in [-1, 1] are rescaled to the action space by the base class
            squash_output=isinstance(action_space, spaces.Box),
        )
        self.settings = self.make_settings(changes) if settings is None else settings
        self.distribution = distribution_for(action_space)
        self.require_usable(self.settings, action_space)
        self.action_dim = self.distribution.width
        width = observation_space.shape[0] if observation_space.shape else 0
        self.state_dim: int = width if extractor is None else extractor.features_dim
        self.normaliser = Normaliser(self.state_dim)
        self.memory = Memory(self.settings.memory_size, self.state_dim, self.action_dim)
        std = 0.5 if self.distribution.has_std else 1.0
        self.register_buffer("std", torch.full((self.action_dim,), std))
        self.lessons = None
        self.generator = torch.Generator().manual_seed(0)
        self.cache = _Cache()
        self.make_parts()

    def make_parts(self) -> None:
        """Make what the mean is computed from."""

    # --- settings ---

    @classmethod
    def make_settings(cls, changes: Mapping[str, Any], also: Iterable[str] = ()) -> Any:
        """Return the policy's settings with some changed: the one place that checks them.

        :param also: names of something else that a misspelt one may have meant
        """
        for name in sorted(changes.keys() - set(setting_names(cls.Settings))):
            every = registry.policies().values()
            users = [each.__name__ for each in every if name in setting_names(each.Settings)]
            if users:
                said = f"{', '.join(users)} {'does' if len(users) == 1 else 'do'}"
                raise SettingsError(f"{cls.__name__} does not use '{name}'; {said}")
        settings = cls.Settings().updated(changes, cls.__name__, also)
        cls.check_settings(settings)
        return settings

    @classmethod
    def check_settings(cls, settings: Any) -> None:
        """Refuse values of settings that this policy cannot have together."""

    @classmethod
    def require_usable(cls, settings: Any, action_space: spaces.Space[Any]) -> None:
        """Refuse another sigma than the default where actions are discrete and have none."""
        defaults = cls.Settings()
        for name in [] if isinstance(action_space, spaces.Box) else marked(settings, "sigma"):
            if getattr(settings, name) != getattr(defaults, name):
                raise SettingsError(f"{action_space} has no sigma and does not use '{name}'")

    # --- learning ---

    @abstractmethod
    def make_update(self, learner: LearnerState) -> Update:
        """Return how this policy learns from a rollout."""

    # --- acting ---

    @abstractmethod
    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and sigma at raw states."""

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu, the deterministic action, and sigma at raw states, in policy units."""
        with torch.no_grad():
            return self._act(states.to(self.std.device))

    def embed(self, states: Tensor) -> Tensor:
        """Return raw states in the space in which the policy compares them."""
        normalised: Tensor = self.normaliser(states)
        return normalised

    def observe(self, observations: Any) -> FloatArray:
        """Return one or several observations of the environment as raw states."""  # [T, d_s]
        if self.features_extractor is None:
            with np.errstate(over="ignore"):  # what overflows is found where it is used
                return np.asarray(observations, dtype=np.float32).reshape(-1, self.state_dim)
        return self._extract(self.obs_to_tensor(observations)[0]).numpy(force=True)

    def _extract(self, observations: PyTorchObs) -> Tensor:
        if self.features_extractor is None:
            assert isinstance(observations, Tensor)
            return observations.float()
        with torch.no_grad():
            return self.extract_features(observations, self.features_extractor)

    def to_environment(self, actions: FloatArray) -> FloatArray:
        """Convert policy units to the environment's, clipped to its bounds."""
        emitted = self.distribution.emit(actions)
        return self.unscale_action(emitted) if self.squash_output else emitted

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        mean, std = (column.numpy(force=True) for column in self.act(self._extract(observation)))
        if deterministic:
            actions = self.distribution.mode(mean)
        else:
            noise = self.distribution.noise(mean.shape[:-1], self.generator)
            actions = self.distribution.sample(mean, std, noise.numpy())
        return torch.as_tensor(self.distribution.emit(actions), device=self.device)

    forward = _predict
    """The action in policy units, clipped to the action range, or the choice."""

    # --- explaining: by lessons where there are some, else by memories ---

    def explain(self, states: Tensor, names: DimensionNames) -> Sequence[Readable]:
        """Explain the deterministic means at raw states."""  # [T, d_s]
        from imel.explain.by_lessons import explain_lessons
        from imel.explain.by_memories import explain_memories

        by: Any = explain_memories if self.lessons is None else explain_lessons
        explained: Sequence[Readable] = by(self, states, names)
        return explained

    def without(self, lessons: Rows = None, rows: Rows = None, episodes: Rows = None) -> Self:
        """Return a copy that lacks lessons or memories: see `imel.explain.policy_without`."""
        from imel.explain.reduced import without_lessons, without_memories

        if self.lessons is None and lessons is None:
            return without_memories(self, rows, episodes)
        if self.lessons is None:
            raise ImelError(
                f"{type(self).__name__} has memories and no lessons: leave out memories by "
                "without=[...] (rows) or without_episodes=[...]"
            )
        if rows is not None or episodes is not None:
            raise ImelError(
                f"{type(self).__name__} is a sum of lessons, which stay when memories go: leave "
                "lessons out by policy_without(lessons=[...]) or explain(..., without_lessons=...)"
            )
        reduced: Self = without_lessons(self, lessons)
        return reduced

    def mean_by_values(self, state: Tensor, values: Tensor) -> Tensor:
        """Return the mean at a raw state if the improved means in memory were these values.

        By torch alone, where memories are explained by the slopes of the mean along their values.
        """  # [1, d_s], [N, d_a] -> [d_a]
        memory, improved, cache = self.memory, self.memory.improved_means, self.cache
        try:
            memory.improved_means, self.cache = values, _Cache()
            return self._act(state)[0][0]
        finally:
            memory.improved_means, self.cache = improved, cache

    @property
    def dimensions(self) -> Dimensions:
        """What names are given to."""
        observed = state_names(self.observation_space, self.features_extractor)
        firsts, sizes = self.distribution.starts, self.distribution.sizes
        choices = [range(k, k + n) for k, n in zip(firsts, sizes, strict=True)]
        return Dimensions(self.state_dim, self.action_dim, choices, observed)

    # --- what depends on memory, normaliser or weights ---

    def invalidate(self) -> None:
        """Drop what was computed from memory, normaliser or weights: they have changed."""
        self.cache.clear()

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """Return what is computed once from the policy as it stands."""
        if name not in self.cache:
            self.cache[name] = make()
        value: T = self.cache[name]
        return value

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self.invalidate()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights, memory, normaliser and sigma."""
        result = super().load_state_dict(*args, **kwargs)
        self.invalidate()
        return result

    def shapes_for(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the shapes that `load_state_dict` accepts in place of some state."""
        del state
        return dict(self.state_dict())

    @property
    def device(self) -> torch.device:
        """The device of the policy."""
        return self.std.device

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a checkpoint file, without pickle."""
        from imel.checkpoints.model_file import save_policy

        save_policy(self, path)

    @classmethod
    def load(cls, path: Source, device: torch.device | str = "cpu") -> Self:
        """Read a policy from a checkpoint of a policy or of a whole model."""
        from imel.checkpoints.model_file import load_policy

        return load_policy(cls, path, device)


class Update(ABC):
    """How a policy learns; a subclass may replace how advantages are weighted."""

    def __init__(self, learner: LearnerState) -> None:
        self.learner = learner
        self.policy: Any = learner.policy
        self.settings: Any = learner.policy.settings
        weights, rate = learner.critic.parameters(), self.settings.critic_learning_rate
        self.optimizers: dict[str, Optimizer] = {  # by the names that files know them by
            "critic_optimizer": torch.optim.Adam(weights, lr=rate, fused=True)
        }

    @abstractmethod
    def start(self) -> None:
        """Prepare the policy before the first step."""

    def before_rollout(self) -> Stats:
        """Follow schedules before a rollout."""
        return {}

    @abstractmethod
    def __call__(self, rollout: Rollout) -> Stats:
        """Learn from a rollout."""

    @abstractmethod
    def warm_start(self, logged: Any) -> None:
        """Learn from logged data that are in memory already.

        :param logged: says by its `kind` whether they are `annotated` (improved), `acted` (they can
            be) or `shown` (only actions are known), and whether rewards are known by `rewarded`
        """

    def shape_advantages(self, advantages: Tensor) -> Tensor:
        """Change advantages [N], in deviations of the return, before they are standardised."""
        return advantages

    def weigh_advantages(self, advantages: Tensor) -> Tensor:
        """Change standardised advantages [N]: the weights of the experiences' improvements."""
        return advantages

    def standardised(self, advantages: Tensor) -> Tensor:
        """Return advantages centred, scaled and clipped, between the two hooks."""
        shaped = self.shape_advantages(advantages)
        return self.weigh_advantages(standardise(shaped, self.settings.advantage_clip))

    def fit_critic(self, states: Tensor, values: Tensor, returns: Tensor) -> Stats:
        """Regress the critic on returns at normalised states; `values` are its own before."""
        # states [n, d_s], values and returns of any equal shape with n entries
        known = (column.double().flatten().numpy(force=True) for column in (values, returns))
        critic, optimizer = self.learner.critic, self.optimizers["critic_optimizer"]
        fitted = (states, returns.flatten().to(states.device), self.settings)
        loss = fit_critic(critic, optimizer, *fitted, self.learner.generator)
        explained = float(explained_variance(*known))
        return {"train/explained_variance": explained, "train/value_loss": loss}
