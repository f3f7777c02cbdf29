"""Settings of `RidgePolicy`: the natural policy gradient on random features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from imel.settings.common import Settings


@dataclass(frozen=True)
class RidgeSettings(Settings):
    """Settings of `RidgePolicy`."""

    scheduled: ClassVar[tuple[str, ...]] = ("trust_region",)

    trust_region: float | str = 0.02
    """delta: mean KL between the policies before and after an iteration. A number, or `start:end`
    for a linear schedule over the run."""
    std: float = 3.0
    """sigma at the start, shared by the dimensions of the action: each gets `std` / d_a, at most 1,
    in policy units (the action range is [-1, 1]). It never rises above that."""
    std_rate: float = 0.5
    """Step along the natural gradient of log sigma per iteration."""
