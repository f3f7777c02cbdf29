"""Settings of `RidgePolicy`: the natural policy gradient on random features."""

from __future__ import annotations

from dataclasses import dataclass

from imel.settings.common import Settings


@dataclass(frozen=True)
class RidgeSettings(Settings):
    """Settings of `RidgePolicy`."""

    gamma: float = 0.995
    trust_region: float = 0.02
    """delta: mean KL between the policies before and after an iteration, at most."""
    std: float = 3.0
    """sigma at the start, shared by the dimensions of the action: each gets `std` / d_a, at most 1,
    in policy units (the action range is [-1, 1]). It never rises above that."""
    std_rate: float = 0.5
    """Step along the natural gradient of log sigma per iteration."""
