"""What a setting's search draws, and where: until each setting declares it in its metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """A number from low to high, whole if the setting is."""

    low: float
    high: float
    log: bool = True


@dataclass(frozen=True, init=False)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)


@dataclass(frozen=True)
class Multiple:
    """A whole number times another setting, by its logarithm."""

    low: int
    high: int
    of: str


@dataclass(frozen=True)
class Ends:
    """A schedule from one value to another, each in the range, by its logarithm."""

    low: float
    high: float


@dataclass(frozen=True, init=False)
class Layers:
    """Two hidden layers of one of some widths."""

    widths: tuple[int, ...]

    def __init__(self, *widths: int) -> None:
        object.__setattr__(self, "widths", widths)


Search = Range | Choice | Multiple | Ends | Layers

_COMMON: dict[str, Search] = {
    "rollout_size": Choice(512, 1024, 2048),
    "gamma": Choice(0.95, 0.98, 0.99, 0.995, 0.999),
    "gae_lambda": Range(0.8, 0.99, log=False),
    "critic_learning_rate": Range(3e-4, 1e-2),
    "critic_epochs": Range(1, 20),
}
_PAPER: dict[str, Search] = {
    **_COMMON,
    "memory_size": Multiple(1, 8, "rollout_size"),
    "kl_budget": Ends(0.2, 30.0),
    "std": Ends(0.05, 3.0),
}
_FIT: dict[str, Search] = {
    **_PAPER,
    "learning_rate": Range(3e-4, 1e-2),
    "gradient_steps": Range(1, 80),
}
RANGES: dict[str, dict[str, Search]] = {
    "ridge": {
        **_COMMON,
        "memory_size": Multiple(2, 16, "rollout_size"),
        "trust_region": Range(0.002, 0.2),
        "std": Range(0.3, 6.0),
        "std_rate": Range(0.03, 1.0),
        "penalty": Range(0.03, 10.0),
        "features": Choice(64, 128, 256, 512),
    },
    "mki": {**_FIT, "features": Range(2, 32), "kernel_scale": Range(0.5, 10.0)},
    "np": {**_FIT, "latent": Range(8, 128), "deterministic": Choice("none", "mean")},
    "anp": {**_FIT, "latent": Range(8, 128), "features": Range(4, 64)},
    "nearest": {**_PAPER, "neighbours": Range(1, 64)},
    "regressor": {**_FIT, "hidden": Layers(32, 64, 128, 256)},
}
