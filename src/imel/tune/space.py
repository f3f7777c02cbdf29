"""What is searched: for every policy the settings and options that matter, and their ranges.

A parameter turns what a study draws into a setting, and a setting into what a study would have
drawn. So the defaults are a point of the space, and the first trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import BaseTrial

from imel.errors import SettingsError, nearest_name

Drawn = Mapping[str, Any]
"""What a study has drawn, by the name it knows it by."""


@dataclass(frozen=True)
class Parameter:
    """A setting of IMeL or an option of its policy, drawn and set as it is."""

    name: str

    def draw(self, trial: BaseTrial) -> None:
        """Let a trial draw it."""
        raise NotImplementedError

    def setting(self, drawn: Drawn) -> Any:
        """The setting behind what was drawn."""
        return drawn[self.name]

    def drawn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What would have to be drawn for these settings."""
        return {self.name: settings[self.name]}


@dataclass(frozen=True)
class Choice(Parameter):
    """One of some values."""

    values: tuple[Any, ...]

    def draw(self, trial: BaseTrial) -> None:
        """Draw a value."""
        trial.suggest_categorical(self.name, self.values)


@dataclass(frozen=True)
class Number(Parameter):
    """A number in a range; by its logarithm unless it is `linear`."""

    low: float
    high: float
    linear: bool = False

    def draw(self, trial: BaseTrial) -> None:
        """Draw a number."""
        trial.suggest_float(self.name, self.low, self.high, log=not self.linear)

    def setting(self, drawn: Drawn) -> float:
        """Four digits of it: more mean nothing."""
        return float(f"{drawn[self.name]:.4g}")

    def drawn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The setting itself."""
        return {self.name: float(settings[self.name])}


@dataclass(frozen=True)
class Whole(Parameter):
    """A whole number in a range, by its logarithm; in units of another setting if one is named."""

    low: int
    high: int
    times: str | None = None

    @property
    def _label(self) -> str:
        return self.name if self.times is None else f"{self.name} / {self.times}"

    def draw(self, trial: BaseTrial) -> None:
        """Draw how many units."""
        trial.suggest_int(self._label, self.low, self.high, log=True)

    def setting(self, drawn: Drawn) -> int:
        """The number in its units."""
        return int(drawn[self._label]) * (1 if self.times is None else int(drawn[self.times]))

    def drawn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """How many whole units the setting has, within the range."""
        unit = 1 if self.times is None else int(settings[self.times])
        number = int(settings[self.name]) // unit
        return {self._label: min(max(number, self.low), self.high)}


@dataclass(frozen=True)
class Layers(Choice):
    """Two hidden layers of one width."""

    def setting(self, drawn: Drawn) -> list[int]:
        """The width, twice."""
        return [int(drawn[self.name])] * 2

    def drawn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The first layer's width."""
        return {self.name: int(settings[self.name][0])}


@dataclass(frozen=True)
class Schedule(Parameter):
    """A line from one value to another over the run, each in the same range, by its logarithm."""

    low: float
    high: float

    def draw(self, trial: BaseTrial) -> None:
        """Draw both ends."""
        for end in ("start", "end"):
            trial.suggest_float(f"{self.name} {end}", self.low, self.high, log=True)

    def setting(self, drawn: Drawn) -> float | str:
        """`start:end`, or a single number where they are equal."""
        start, end = (float(f"{drawn[f'{self.name} {end}']:.4g}") for end in ("start", "end"))
        return start if start == end else f"{start:g}:{end:g}"

    def drawn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Both ends."""
        start, _, end = str(settings[self.name]).partition(":")
        return {f"{self.name} start": float(start), f"{self.name} end": float(end or start)}


_COMMON: tuple[Parameter, ...] = (
    Choice("rollout_size", (512, 1024, 2048)),
    Choice("gamma", (0.95, 0.98, 0.99, 0.995, 0.999)),
    Number("gae_lambda", 0.8, 0.99, linear=True),
    Number("critic_learning_rate", 3e-4, 1e-2),
    Whole("critic_epochs", 1, 20),
)
_PAPER: tuple[Parameter, ...] = (
    *_COMMON,
    Whole("memory_size", 1, 8, times="rollout_size"),
    Schedule("kl_budget", 0.2, 30.0),
    Schedule("std", 0.05, 3.0),
)
_FIT: tuple[Parameter, ...] = (
    *_PAPER,
    Number("learning_rate", 3e-4, 1e-2),
    Whole("gradient_steps", 1, 80),
)

SPACES: dict[str, tuple[Parameter, ...]] = {
    "ridge": (
        *_COMMON,
        Whole("memory_size", 2, 16, times="rollout_size"),
        Number("trust_region", 0.002, 0.2),
        Number("std", 0.3, 6.0),
        Number("std_rate", 0.03, 1.0),
        Number("penalty", 0.03, 10.0),
        Choice("features", (64, 128, 256, 512)),
    ),
    "mki": (*_FIT, Whole("features", 2, 32), Number("kernel_scale", 0.5, 10.0)),
    "np": (*_FIT, Whole("latent", 8, 128), Choice("deterministic", ("none", "mean"))),
    "anp": (*_FIT, Whole("latent", 8, 128), Whole("features", 4, 64)),
    "nearest": (*_PAPER, Whole("neighbours", 1, 64)),
    "regressor": (*_FIT, Layers("hidden", (32, 64, 128, 256))),
}


def find_space(policy: str, fixed: Iterable[str]) -> tuple[Parameter, ...]:
    """Return a policy's space without what is fixed."""
    if policy not in SPACES:
        raise SettingsError(f"no space is declared for '{policy}'; {nearest_name(policy, SPACES)}")
    left_out = set(fixed)
    return tuple(parameter for parameter in SPACES[policy] if parameter.name not in left_out)


def draw(space: Sequence[Parameter], trial: BaseTrial) -> dict[str, Any]:
    """Let a trial draw a point of the space."""
    for parameter in space:
        parameter.draw(trial)
    return trial.params


def overrides(space: Sequence[Parameter], drawn: Drawn, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the bench is told to set; `rest` are the settings that are not searched."""
    known = {**rest, **drawn}
    return {parameter.name: parameter.setting(known) for parameter in space}


def point(space: Sequence[Parameter], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of the space at which these complete settings are."""
    flat = {**settings, **settings["policy_kwargs"]}
    drawn: dict[str, Any] = {}
    for parameter in space:
        drawn |= parameter.drawn(flat)
    return drawn
