"""The policy: normaliser, interpolator and memory together, as Stable-Baselines3 expects one.

    raw state -> Normaliser -> Interpolator conditioned on the Memory -> N(mu, sigma) -> action

Plainly, as in the paper, mu interpolates the improved means of all memories. Anchored, it is
where the policy was, moved by a bounded step (`imel.interpolators.anchored`). A policy's
behaviour is in its memory. One class a kind of interpolator; each names the settings of `IMeL`
under which that kind learns well on all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor

from imel.errors import CheckpointError, SpaceError
from imel.experience import Context
from imel.improvement import Update
from imel.interpolators.anchored import Anchored, AnchoredTrend, Trend, WeightedAnchored
from imel.interpolators.attentive import AttentiveNeuralProcess, AttentiveOptions
from imel.interpolators.base import Conditioned, Interpolator, Weighted
from imel.interpolators.mki import MeanKernelInterpolation, MkiOptions
from imel.interpolators.nearest import NearestNeighbours, NearestOptions
from imel.interpolators.neural_process import NeuralProcess, NeuralProcessOptions
from imel.interpolators.regressor import Regressor, RegressorOptions
from imel.interpolators.ridge import Basis, Design, Ridge, RidgeOptions, RidgeRegression
from imel.memory import Memory
from imel.normaliser import Normaliser
from imel.persistence import checkpoint
from imel.presets import ANCHORED
from imel.rollout import FloatArray
from imel.validation import updated

_WAVES = 64
"""Random functions of the state, beside the state itself, on which steps are smoothed."""

_RANGES = {"waves": (0, 2**31)}
"""Options that may be what others of their type may not: a basis of the state alone."""

_FAITHFUL = 1e-4
"""The first penalty on coefficients of a trended policy's anchor, whose values have no noise."""
_LEAST = 1e-4
"""The least share of it: without any, there may be no one solution."""


@dataclass(frozen=True)
class Acting:
    """A policy as it stands: what rollouts and predictions use until memory or weights change."""

    normalise: Callable[[Tensor], Tensor]
    interpolate: Conditioned
    std: Tensor | None  # [d_a], or None where the interpolator's own sigma is used
    min_std: float

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """mu and sigma at raw states."""  # [T, d_s] -> [T, d_a], [T, d_a]
        mean, own_std = self.interpolate(self.normalise(states))
        if self.std is not None:
            return mean, self.std.expand_as(mean)
        assert own_std is not None
        return mean, own_std.clamp_min(self.min_std)


class ImelPolicy(BasePolicy):
    """Normaliser, interpolator and memory; the base of the six policies.

    :param memory_size: capacity of the memory in transitions
    :param own_std: act with the interpolator's own sigma (Alg. 1) instead of the policy's
    :param min_std: sigma never falls below this
    :param update: what the mean is made of, `plain` or `anchored`
    :param anchor_size: how many of the newest memories the anchor is made of
    :param options: fields of the class's `options_class`
    """

    interpolator_class: ClassVar[type[Any]]  # of Interpolator; constructors differ in options
    options_class: ClassVar[type[Any]]
    recommended: ClassVar[Mapping[str, Any]] = {}
    """Settings of IMeL that differ from the general defaults for this kind of interpolator."""

    std: Tensor  # [d_a]
    step_scale: Tensor  # [] beta of an anchored policy

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        memory_size: int = 2048,
        own_std: bool = False,
        min_std: float = 0.05,
        update: Update = "plain",
        anchor_size: int = 2048,
        **options: Any,
    ) -> None:
        check_spaces(observation_space, action_space)
        # squash_output: predictions in [-1, 1] are rescaled to the action space by the base class
        super().__init__(observation_space, action_space, squash_output=True)
        assert observation_space.shape is not None
        assert action_space.shape is not None
        state_dim, action_dim = observation_space.shape[0], action_space.shape[0]
        self.options = self.make_options(options)
        self.own_std, self.min_std = own_std, min_std
        self.update, self.anchor_size = update, anchor_size
        self.normaliser = Normaliser(state_dim)
        self.interpolator: Interpolator = self.interpolator_class(
            state_dim, action_dim, self.options
        )
        if not isinstance(self.interpolator, RidgeRegression):  # which has a basis
            self.basis = Basis(state_dim, getattr(self.options, "waves", _WAVES))
        self.memory = Memory(memory_size, state_dim, action_dim)
        self.register_buffer("std", torch.full((action_dim,), 0.5))
        self.register_buffer("step_scale", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(0)
        self._acting: Acting | None = None
        self._settled: Acting | None = None

    @classmethod
    def make_options(cls, options: Mapping[str, Any]) -> Any:
        """The interpolator's options; an unknown name is refused with the nearest valid one."""
        return updated(cls.options_class(), options, cls.__name__, _RANGES)

    # --- acting ---

    def context(self) -> Context:
        """C: what is interpolated, with states normalised as they are at present.

        Improved means of all memories, or if anchored the means of the newest.
        """
        if self.update == "plain":
            return self._context(self.memory.column("improved_means"))
        return self._context(self.memory.column("means")).rows(self.anchor_rows())

    def improvements(self) -> Context:
        """What each memory would have the policy change."""
        memory = self.memory
        return self._context(memory.column("improved_means") - memory.column("means"))

    def anchor_rows(self) -> Tensor:
        """The memories an anchored policy's anchor is made of."""
        return self.memory.newest(self.anchor_size)

    def _context(self, values: Tensor) -> Context:
        memory = self.memory
        return Context(self.normaliser(memory.column("states")), values, memory.column("episodes"))

    @property
    def acting(self) -> Acting:
        """The policy conditioned on its memory; made anew after `changed`."""
        if self._acting is None:
            # What is kept must be of use outside of inference mode, though a rollout asks for it
            with torch.inference_mode(False), torch.no_grad():
                plain = self.update == "plain"
                conditioned = (
                    self.interpolator.condition(self.context()) if plain else self._anchored()
                )
            self._acting = self._acting_by(conditioned)
        return self._acting

    @property
    def settled(self) -> Acting:
        """What its deterministic actions, and explanations of them, are made by."""
        return self.acting

    def anchor_means(self) -> Tensor:
        """What the memories hold of where it was, before they moved it."""  # [N, d_a]
        return self.memory.column("means")

    def _acting_by(self, conditioned: Conditioned) -> Acting:
        std = None if self.own_std else self.std
        return Acting(self.normaliser.frozen(), conditioned, std, self.min_std)

    def _anchored(self) -> Anchored:
        anchor, asked = self.interpolator.condition(self.context()), self.improvements()
        step = Ridge(Design(self.basis, asked.states), asked.values)
        scale = float(self.step_scale)
        if isinstance(anchor, Weighted):
            return WeightedAnchored(anchor, step, scale, self.anchor_rows())
        return Anchored(anchor, step, scale)

    def changed(self) -> None:
        """Memory or normaliser are no longer those the policy was conditioned on."""
        self.fitted()

    def fitted(self) -> None:
        """The interpolator's weights are no longer those the policy was conditioned on."""
        self._acting = self._settled = None

    def made_anew(self) -> tuple[object, ...]:
        """What is kept of computations on the memory, which a copy has no use for."""
        return (self._acting, self._settled)

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """mu and sigma it explores with at raw states, in policy units."""
        with torch.no_grad():
            return self.acting(states.to(self.std.device))

    def decide(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """mu it has settled on at raw states, and sigma, in policy units."""
        with torch.no_grad():
            return self.settled(states.to(self.std.device))

    def to_environment(self, actions: FloatArray) -> FloatArray:
        """Policy units to the environment's, clipped to its bounds."""
        return self.unscale_action(np.clip(actions, -1.0, 1.0))

    def forward(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        """The action in policy units, clipped to the action range."""
        return self._predict(observation, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        assert isinstance(observation, Tensor)
        if deterministic:
            action, _ = self.decide(observation.float())
        else:
            mean, std = self.act(observation.float())
            noise = torch.randn(mean.shape, generator=self.generator)
            action = mean + std * noise.to(mean.device)
        return action.clamp(-1.0, 1.0)

    # --- memory of another device, weights of another run ---

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self.changed()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights, memory, normaliser and sigma."""
        result = super().load_state_dict(*args, **kwargs)
        self.changed()
        return result

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        return self.std.device

    # --- files ---

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "memory_size": self.memory.capacity,
            "own_std": self.own_std,
            "min_std": self.min_std,
            "update": self.update,
            "anchor_size": self.anchor_size,
            **asdict(self.options),
        }

    def save(self, path: str) -> None:
        """Write the policy to a checkpoint file, without pickle."""
        tensors = checkpoint.prefixed("policy", self.state_dict())
        tensors |= checkpoint.spaces_to_tensors(self.observation_space, self.action_space)
        document = {
            "kind": "policy",
            "policy": type(self).__name__,
            "policy_arguments": self._get_constructor_parameters(),
        }
        checkpoint.write(path, tensors, document)

    @classmethod
    def load(cls, path: str, device: torch.device | str = "cpu") -> Self:
        """Read a policy from a checkpoint of a policy or of a whole model."""
        tensors, document = checkpoint.read(path)
        policy_class = POLICIES.get(document["policy"])
        if policy_class is None or not issubclass(policy_class, cls):
            raise CheckpointError(f"{path} holds a {document['policy']}, not a {cls.__name__}")
        observation_space, action_space = checkpoint.spaces_from_tensors(tensors)
        arguments, state = document["policy_arguments"], checkpoint.under("policy", tensors)
        # On the device that holds nothing first: what a file claims about sizes is not believed
        with torch.device("meta"), checkpoint.building(path):
            shapes = policy_class(observation_space, action_space, **arguments).state_dict()
        checkpoint.check_tensors(shapes, state, "policy", path)
        policy = policy_class(observation_space, action_space, **arguments)
        policy.load_state_dict(state)
        return policy.to(device)


_QUIET: Mapping[str, Any] = {"std": "0.4:0.1", "std_mode": "schedule", "min_std": 0.02}
"""Fitted networks are disturbed by the noise that helps kernels to explore."""


class TrendedPolicy(ImelPolicy):
    """One whose anchor and step are trends over all memories: the base of two.

    Anchored, it settles on the mean of its recent policies, which is the trend of a mean as well.
    """

    recommended: ClassVar[Mapping[str, Any]] = ANCHORED
    _trend: Trend | None = None
    anchor_penalty: Tensor  # [] on the anchor's coefficients: what is shrunk is forgotten
    settling_rate: Tensor  # [] what the present policy counts for in what it settles on

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("anchor_penalty", torch.tensor(_FAITHFUL))
        self.register_buffer("settling_rate", torch.ones(()))

    @property
    def trend_basis(self) -> Basis:
        """The functions of the state that trends are made of."""
        return self.basis

    @property
    def trend(self) -> Trend:
        """The memories' trends; made anew after `changed`."""
        if self._trend is None:
            with torch.inference_mode(False), torch.no_grad():
                asked = self.improvements()
                design = Design(self.trend_basis, asked.states)
                means = Ridge(design, self.memory.column("means"), float(self.anchor_penalty))
                step = Ridge(design, asked.values, self.options.penalty)
                self._trend = Trend(design, means, step)
        return self._trend

    @property
    def settled(self) -> Acting:
        """The mean of recent policies: of that before, and of the present one by its rate."""
        rate = float(self.settling_rate)
        if self.update == "plain" or rate == 1.0:
            return self.acting
        if self._settled is None:
            present = self.acting.interpolate
            assert isinstance(present, AnchoredTrend)
            with torch.inference_mode(False), torch.no_grad():
                moved = present.from_elsewhere(
                    self.anchor_means(), rate, float(self.anchor_penalty)
                )
            self._settled = self._acting_by(moved)
        return self._settled

    def hold(self, share: float) -> None:
        """Let the anchor forget less: by a share of its first penalty."""
        self.anchor_penalty.fill_(max(share, _LEAST) * _FAITHFUL)

    def anchor_means(self) -> Tensor:
        """The same mean, of where the policies were."""
        column, rate = self.memory.column, float(self.settling_rate)
        return torch.lerp(column("settled_means"), column("means"), rate)

    def changed(self) -> None:
        """Neither what the policy was conditioned on holds any more, nor its trends."""
        super().changed()
        self._trend = None

    def made_anew(self) -> tuple[object, ...]:
        """Its trends, too."""
        return (*super().made_anew(), self._trend)


class MkiPolicy(TrendedPolicy):
    """Mean Kernel Interpolation: every action is a weighted sum of remembered ones.

    Anchored, the kernel is for what the step's trend leaves of the newest memories.
    """

    interpolator: MeanKernelInterpolation
    interpolator_class = MeanKernelInterpolation
    options_class = MkiOptions
    kernel_share: Tensor  # [] how far the kernel is believed

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("kernel_share", torch.zeros(()))

    def context(self) -> Context:
        """What is interpolated: improved means, or if anchored what a trend leaves of the step."""
        if self.update == "plain":
            return super().context()
        trend, episodes = self.trend, self.memory.column("episodes")
        context = Context(trend.design.states, trend.step.left(), episodes)
        return context.rows(self.anchor_rows())

    def _anchored(self) -> Anchored:
        scale, share = float(self.step_scale), float(self.kernel_share)
        if share == 0.0:
            return AnchoredTrend(self.trend, scale)
        kernel = self.interpolator.condition(self.context())
        return AnchoredTrend(self.trend, scale, kernel, self.anchor_rows(), share)


class NpPolicy(ImelPolicy):
    """Neural Process."""

    recommended = _QUIET

    interpolator_class = NeuralProcess
    options_class = NeuralProcessOptions


class AnpPolicy(ImelPolicy):
    """Attentive Neural Process."""

    recommended = _QUIET
    interpolator_class = AttentiveNeuralProcess
    options_class = AttentiveOptions


class RegressorPolicy(ImelPolicy):
    """A plain network: the ablation without interpolation."""

    recommended = _QUIET
    interpolator_class = Regressor
    options_class = RegressorOptions


class RidgePolicy(TrendedPolicy):
    """Ridge regression on fixed waves of the state: trends alone, and nothing to be learned."""

    interpolator: RidgeRegression
    interpolator_class = RidgeRegression
    options_class = RidgeOptions

    @property
    def trend_basis(self) -> Basis:
        """The interpolator's own."""
        return self.interpolator.basis

    def anchor_rows(self) -> Tensor:
        """All of them."""
        return torch.arange(len(self.memory), device=self.device)

    def _anchored(self) -> Anchored:
        return AnchoredTrend(self.trend, float(self.step_scale))


class NearestPolicy(ImelPolicy):
    """Nearest neighbours: nothing is learned but the memory."""

    interpolator_class = NearestNeighbours
    options_class = NearestOptions


POLICIES: dict[str, type[ImelPolicy]] = {
    policy.__name__: policy
    for policy in (MkiPolicy, NpPolicy, AnpPolicy, RegressorPolicy, NearestPolicy, RidgePolicy)
}


def check_spaces(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """Refuse what the Gaussian policies of the paper cannot be learned on."""
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
        raise SpaceError(
            f"observations must be vectors (a Box of one dimension), not {observation_space}; "
            "gymnasium.wrappers.FlattenObservation makes one of most spaces"
        )
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1:
        raise SpaceError(f"actions must be continuous vectors (a Box), not {action_space}")
    if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
        raise SpaceError(
            f"action bounds must be finite, not {action_space}; "
            "gymnasium.wrappers.RescaleAction or a Box with bounds gives them"
        )
