"""What every policy has: a memory, a normaliser and a distribution of actions, as in SB3.

    observation -> raw state -> Normaliser -> mean mu -> N(mu, sigma) -> action

Where actions are discrete the "mean" are logits (`imel.distributions`), and where observations are
no vectors the state is what a frozen features extractor returns (`imel.policies.spaces`).

Policies differ in how the mean is made: `imel.policies.ridge`, `imel.policies.paper`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor

from imel.data.memory import Memory
from imel.data.normaliser import Normaliser
from imel.data.rollout import FloatArray
from imel.distributions import distribution_for
from imel.errors import ImelError
from imel.policies.names import DimensionNames, Dimensions
from imel.policies.spaces import check_spaces, make_extractor, state_names
from imel.settings import Settings
from imel.settings.validation import updated

if TYPE_CHECKING:
    from imel.explain.explanation import Readable
    from imel.explain.reduced import Rows

T = TypeVar("T")


class ImelPolicy(BasePolicy):
    """The base of all policies.

    :param memory_size: capacity of the memory in transitions
    :param min_std: sigma never falls below this
    :param options: fields of the class's `options_class`
    """

    options_class: ClassVar[type[Any]]
    settings_class: ClassVar[type[Settings]]
    """The settings of IMeL that this policy uses, with its defaults."""

    std: Tensor  # [d_a]

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        memory_size: int = 2048,
        min_std: float = 0.05,
        **options: Any,
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
        self.distribution = distribution_for(action_space)
        self.action_dim = self.distribution.width
        if extractor is None:
            assert observation_space.shape is not None
            self.state_dim = observation_space.shape[0]
        else:
            self.state_dim = extractor.features_dim
        self.options = self.make_options(options)
        self.min_std = min_std
        self.normaliser = Normaliser(self.state_dim)
        self.memory = Memory(memory_size, self.state_dim, self.action_dim)
        self.register_buffer(
            "std", torch.full((self.action_dim,), 0.5 if self.distribution.scaled else 1.0)
        )
        self.generator = torch.Generator().manual_seed(0)
        self.cache: dict[str, Any] = {}
        """What was computed from the policy as it stands; `invalidate` empties it."""

    @classmethod
    def make_options(cls, options: Mapping[str, Any]) -> Any:
        """Return the policy's options; refuse an unknown name with the nearest valid one."""
        return updated(cls.options_class(), options, cls.__name__, {})

    @classmethod
    def settings_arguments(cls, settings: Any) -> dict[str, Any]:
        """Return the constructor's arguments that come from the settings of IMeL."""
        return {"memory_size": settings.memory_size, "min_std": settings.min_std}

    @classmethod
    def check_settings(cls, settings: Any) -> None:
        """Refuse values of settings that this policy cannot have."""

    @property
    def dimensions(self) -> Dimensions:
        """What names are given to."""
        observed = state_names(self.observation_space, self.features_extractor)
        firsts, sizes = self.distribution.starts, self.distribution.sizes
        choices = [range(k, k + n) for k, n in zip(firsts, sizes, strict=True)]
        return Dimensions(self.state_dim, self.action_dim, choices, observed)

    # --- acting ---

    @abstractmethod
    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and sigma at raw states."""

    def invalidate(self) -> None:
        """Drop what was computed from memory, normaliser or weights: they have changed."""
        self.cache.clear()

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """Return what is computed once from the policy as it stands."""
        if name not in self.cache:
            self.cache[name] = make()
        value: T = self.cache[name]
        return value

    @abstractmethod
    def prepare(self) -> None:
        """Compute what acting needs beside the state, once."""

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

    # --- memory of another device, weights of another run ---

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

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "memory_size": self.memory.capacity,
            "min_std": self.min_std,
            **asdict(self.options),
        }

    def save(self, path: str) -> None:
        """Write the policy to a checkpoint file, without pickle."""
        from imel.checkpoints.policy_file import save_policy

        save_policy(self, path)

    @classmethod
    def load(cls, path: str, device: torch.device | str = "cpu") -> Self:
        """Read a policy from a checkpoint of a policy or of a whole model."""
        from imel.checkpoints.policy_file import load_policy

        return load_policy(cls, path, device)
