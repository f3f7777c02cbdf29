"""What every policy has: settings, a memory, a normaliser and a distribution of actions.

    observation -> raw state -> Normaliser -> mean mu -> N(mu, sigma) -> action

Where actions are discrete the "mean" are logits (`imel.distributions`), and where observations are
no vectors the state is what a frozen features extractor returns (`imel.policies.spaces`).

A policy owns everything that differs between kinds: its settings, how its mean is made, its update,
its explanation, what it is without some of its experience, and its graph for export.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor

from imel import registry
from imel import settings as declared
from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.data.rollout import FloatArray
from imel.distributions import distribution_for
from imel.errors import ImelError, SettingsError
from imel.policies.names import Dimensions
from imel.policies.spaces import check_spaces, make_extractor, state_names

if TYPE_CHECKING:
    from imel.checkpoints.checkpoint import Source
    from imel.explain.explanation import Readable
    from imel.learner import LearnerState
    from imel.policies.names import DimensionNames
    from imel.policies.ridge.ledger import Lessons
    from imel.policies.update import Update

T = TypeVar("T")

Rows = Sequence[int] | Sequence[bool] | NDArray[Any]
"""Places in the memory, or for each of them whether it is meant; or numbers of episodes."""


class Policy(BasePolicy):
    """The base of all policies.

    A subclass says how its mean is made (`_act`), how it learns (`make_update`) and what is behind
    its actions (`explain`, `without`).

    :param settings: an instance of the class's `Settings`; its defaults if not given
    :param changes: settings that are to differ from those
    """

    Settings: ClassVar[type[declared.Settings]] = declared.Settings
    """The settings of IMeL that this policy uses, with its defaults."""
    name: ClassVar[str] = ""
    """What commands and files call a registered policy."""
    label: ClassVar[str] = ""
    """What reports call it."""

    std: Tensor  # [d_a]
    lessons: Lessons | None
    """What each episode taught; None of a policy that is no sum of lessons."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        settings: Any = None,
        **changes: Any,
    ) -> None:
        check_spaces(observation_space, action_space)
        extractor = make_extractor(observation_space)
        # squash_output: predictions in [-1, 1] are rescaled to the action space by the base class
        squash_output = isinstance(action_space, spaces.Box)
        super().__init__(
            observation_space,
            action_space,
            features_extractor=extractor,
            squash_output=squash_output,
        )
        self.settings = self.make_settings(changes) if settings is None else settings
        self.distribution = distribution_for(action_space)
        self.require_usable(self.settings, action_space)
        self.action_dim = self.distribution.width
        if extractor is None:
            assert observation_space.shape is not None
            self.state_dim = observation_space.shape[0]
        else:
            self.state_dim = extractor.features_dim
        self.normaliser = Normaliser(self.state_dim)
        self.memory = Memory(self.settings.memory_size, self.state_dim, self.action_dim)
        self.register_buffer(
            "std", torch.full((self.action_dim,), 0.5 if self.distribution.has_std else 1.0)
        )
        self.lessons = None
        self.generator = torch.Generator().manual_seed(0)
        self.cache: dict[str, Any] = {}
        """What was computed from the policy as it stands; `invalidate` empties it."""

    # --- settings ---

    @classmethod
    def make_settings(cls, changes: Mapping[str, Any], also: Iterable[str] = ()) -> Any:
        """Return the policy's settings with some changed: the one place that checks them.

        :param also: names of something else that a misspelt one may have meant
        """
        own = declared.setting_names(cls.Settings)
        for name in changes:
            users = [] if name in own else _users_of(name)
            if users:
                raise SettingsError(
                    f"{cls.__name__} does not use '{name}'; {', '.join(users)} "
                    f"{'does' if len(users) == 1 else 'do'}"
                )
        settings = cls.Settings().updated(changes, cls.__name__, also)
        cls.check_settings(settings)
        return settings

    @classmethod
    def check_settings(cls, settings: Any) -> None:
        """Refuse values of settings that this policy cannot have together."""

    @classmethod
    def require_usable(cls, settings: Any, action_space: spaces.Space[Any]) -> None:
        """Refuse another sigma than the default where actions are discrete and have none."""
        if isinstance(action_space, spaces.Box):
            return
        defaults = cls.Settings()
        for name in declared.marked(settings, "sigma"):
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

    def prepare(self) -> None:
        """Compute what acting needs beside the state, once."""

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

    def forward(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        """Return the action in policy units, clipped to the action range, or the choice."""
        return self._predict(observation, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        mean, std = (column.numpy(force=True) for column in self.act(self._extract(observation)))
        if deterministic:
            actions = self.distribution.mode(mean)
        else:
            noise = self.distribution.noise(mean.shape[:-1], self.generator)
            actions = self.distribution.sample(mean, std, noise.numpy())
        return torch.as_tensor(self.distribution.emit(actions), device=self.device)

    # --- explaining: by memories, unless a policy is made of something else ---

    def explain(self, states: Tensor, names: DimensionNames) -> Sequence[Readable]:
        """Explain the deterministic means at raw states."""  # [T, d_s]
        from imel.explain.by_memories import explain_memories

        return explain_memories(self, states, names)

    def without(
        self,
        lessons: Rows | None = None,
        rows: Rows | None = None,
        episodes: Rows | None = None,
    ) -> Self:
        """Return a copy that lacks some memories: see `imel.explain.policy_without`."""
        from imel.explain.reduced import without_memories

        if lessons is not None:
            raise ImelError(
                f"{type(self).__name__} has memories and no lessons: leave out memories by "
                "without=[...] (rows) or without_episodes=[...]"
            )
        return without_memories(self, rows, episodes)

    @property
    def dimensions(self) -> Dimensions:
        """What names are given to."""
        observed = state_names(self.observation_space, self.features_extractor)
        firsts, sizes = self.distribution.starts, self.distribution.sizes
        choices = [range(k, k + n) for k, n in zip(firsts, sizes, strict=True)]
        return Dimensions(self.state_dim, self.action_dim, choices, observed)

    # --- export ---

    def write_graph(self, graph: Any, state: str) -> str:
        """Add the mean's nodes at a normalised state to an ONNX graph; return their output."""
        del graph, state
        raise ImelError(f"{type(self).__name__} cannot be exported to act")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the mean is computed from, for acting with NumPy alone."""
        raise ImelError(f"{type(self).__name__} is not a few arrays; export it as onnx")

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


def _users_of(name: str) -> list[str]:
    """Return the policies that have a setting."""
    return [
        policy_class.__name__
        for policy_class in registry.policies().values()
        if name in declared.setting_names(policy_class.Settings)
    ]
