"""What is searched: for every policy the settings and options that matter, and their ranges.

A parameter turns what a study draws into a setting, and a setting into what a study would have
drawn. So the defaults are a point of the space, and the first trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from imel.errors import SettingsError, nearest_name

Values = Mapping[str, Any]
"""What a study has drawn, by the name it knows it by; or settings by theirs."""


@dataclass(frozen=True)
class Parameter:
    """A setting of IMeL or an option of its policy."""

    name: str
    words: str
    """Its range, as the documentation says it."""
    distributions: Mapping[str, BaseDistribution]
    """What a study draws for it."""
    setting: Callable[[Values], Any]
    """Turns what was drawn into the setting."""
    drawn: Callable[[Values], tuple[Any, ...]]
    """Turns settings into what would have to be drawn for them."""


def _choice(name: str, *values: Any) -> Parameter:
    """One of some values."""
    words = ", ".join(f"`{each}`" if isinstance(each, str) else f"{each}" for each in values)
    return Parameter(
        name,
        words,
        {name: CategoricalDistribution(values)},
        lambda drawn: drawn[name],
        lambda settings: (settings[name],),
    )


def _number(name: str, low: float, high: float, linear: bool = False) -> Parameter:
    """A number in a range; by its logarithm unless it is `linear`."""
    return Parameter(
        name,
        f"{low:g} to {high:g}" + ("" if linear else ", by its logarithm"),
        {name: FloatDistribution(low, high, log=not linear)},
        lambda drawn: _rounded(drawn[name]),
        lambda settings: (float(settings[name]),),
    )


def _whole(name: str, low: int, high: int, times: str | None = None) -> Parameter:
    """A whole number in a range, by its logarithm; in units of another setting if one is named."""
    label = name if times is None else f"{name} / {times}"

    def unit(values: Values) -> int:
        return 1 if times is None else int(values[times])

    return Parameter(
        name,
        f"{low} to {high}" + ("" if times is None else f" times `{times}`"),
        {label: IntDistribution(low, high, log=True)},
        lambda drawn: int(drawn[label]) * unit(drawn),
        # Whole units, as near as the range allows
        lambda settings: (min(max(int(settings[name]) // unit(settings), low), high),),
    )


def _layers(name: str, *widths: int) -> Parameter:
    """Two hidden layers of one width."""
    return Parameter(
        name,
        f"two layers of {', '.join(map(str, widths))}",
        {name: CategoricalDistribution(widths)},
        lambda drawn: [int(drawn[name])] * 2,
        lambda settings: (int(settings[name][0]),),
    )


def _schedule(name: str, low: float, high: float) -> Parameter:
    """A line from one value to another over the run, each in the same range, by its logarithm."""
    ends = [f"{name} start", f"{name} end"]

    def setting(drawn: Values) -> float | str:
        start, end = (_rounded(drawn[label]) for label in ends)
        return start if start == end else f"{start:g}:{end:g}"

    def both(settings: Values) -> tuple[float, float]:
        start, _, end = str(settings[name]).partition(":")
        return float(start), float(end or start)

    words = f"start and end, each {low:g} to {high:g}, by its logarithm"
    drawn = {label: FloatDistribution(low, high, log=True) for label in ends}
    return Parameter(name, words, drawn, setting, both)


def _rounded(number: float) -> float:
    """Return four digits of a number: more mean nothing."""
    return float(f"{number:.4g}")


_COMMON: tuple[Parameter, ...] = (
    _choice("rollout_size", 512, 1024, 2048),
    _choice("gamma", 0.95, 0.98, 0.99, 0.995, 0.999),
    _number("gae_lambda", 0.8, 0.99, linear=True),
    _number("critic_learning_rate", 3e-4, 1e-2),
    _whole("critic_epochs", 1, 20),
)
_PAPER: tuple[Parameter, ...] = (
    *_COMMON,
    _whole("memory_size", 1, 8, times="rollout_size"),
    _schedule("kl_budget", 0.2, 30.0),
    _schedule("std", 0.05, 3.0),
)
_FIT: tuple[Parameter, ...] = (
    *_PAPER,
    _number("learning_rate", 3e-4, 1e-2),
    _whole("gradient_steps", 1, 80),
)

SPACES: dict[str, tuple[Parameter, ...]] = {
    "ridge": (
        *_COMMON,
        _whole("memory_size", 2, 16, times="rollout_size"),
        _number("trust_region", 0.002, 0.2),
        _number("std", 0.3, 6.0),
        _number("std_rate", 0.03, 1.0),
        _number("penalty", 0.03, 10.0),
        _choice("features", 64, 128, 256, 512),
    ),
    "mki": (*_FIT, _whole("features", 2, 32), _number("kernel_scale", 0.5, 10.0)),
    "np": (*_FIT, _whole("latent", 8, 128), _choice("deterministic", "none", "mean")),
    "anp": (*_FIT, _whole("latent", 8, 128), _whole("features", 4, 64)),
    "nearest": (*_PAPER, _whole("neighbours", 1, 64)),
    "regressor": (*_FIT, _layers("hidden", 32, 64, 128, 256)),
}


def find_space(policy: str, fixed: Iterable[str]) -> tuple[Parameter, ...]:
    """Return a policy's space without what is fixed."""
    if policy not in SPACES:
        raise SettingsError(f"no space is declared for '{policy}'; {nearest_name(policy, SPACES)}")
    left_out = set(fixed)
    return tuple(parameter for parameter in SPACES[policy] if parameter.name not in left_out)


def distributions(space: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """Return what a study draws for a point of the space."""
    return {label: each for parameter in space for label, each in parameter.distributions.items()}


def overrides(space: Sequence[Parameter], drawn: Values, rest: Values) -> dict[str, Any]:
    """Return what the bench is told to set; `rest` are the settings that are not searched."""
    known = {**rest, **drawn}
    return {parameter.name: parameter.setting(known) for parameter in space}


def point(space: Sequence[Parameter], settings: Values) -> dict[str, Any]:
    """Return the point of the space at which these complete settings are."""
    flat = dict(settings)
    drawn = [value for parameter in space for value in parameter.drawn(flat)]
    return dict(zip(distributions(space), drawn, strict=True))
