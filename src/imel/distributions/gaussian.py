"""The Gaussian of the paper: continuous actions around a mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from imel import improvement
from imel.distributions.base import Array, Distribution, vector


class Gaussian(Distribution):
    """Continuous actions around a mean; policy units map the bounds to [-1, 1]."""

    scaled = True
    parameters = "mean"
    span = (-1.0, 1.0)

    def __init__(self, width: int) -> None:
        self.width, self.sizes = width, []

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn(*shape, self.width, generator=generator)

    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return mu + sigma noise."""
        return np.asarray(means + stds * noise)

    def mode(self, means: Array) -> Array:
        """Return the means."""
        return means

    def emit(self, actions: Array) -> Array:
        """Clip actions to [-1, 1]."""
        return np.clip(actions, -1.0, 1.0)

    def encode(self, emitted: Array) -> Array:
        """Return the actions, which may be outside of [-1, 1]."""
        return emitted

    def demonstrated(self, actions: Array) -> Array:
        """Return the actions as means."""
        return actions

    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return the share of clipped actions, and sigma."""
        outside = (actions.abs() > 1.0).any(dim=-1)
        return {"clipped_actions": float(outside.float().mean()), "std": float(stds.mean())}

    def direction(self, mean: Array) -> Array:
        """Return that of the mean."""
        return np.asarray(mean / (float(np.linalg.norm(mean)) or 1.0))

    def shown(self, means: Array) -> Array:
        """Return the means."""
        return means

    def words(self, mean: Array, names: Sequence[str]) -> str:
        """Return the mean."""
        return f"mean {vector(mean)}"

    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return `improvement.importance_ratios`."""
        return improvement.importance_ratios(actions, means, stds, then_means, then_stds)

    def improve(
        self, weights: Tensor, actions: Tensor, means: Tensor, stds: Tensor, budget: float
    ) -> tuple[Tensor, float]:
        """Return improved means (Alg. 1 l. 9 and 11)."""
        eta = improvement.step_size(weights, actions, means, stds, budget)
        return improvement.improved_means(weights, actions, means, stds, eta), eta

    def kls(self, shifts: Tensor, means: Tensor, stds: Tensor) -> Tensor:
        """Return |delta|^2 / (2 sigma^2)."""
        return improvement.shift_kls(shifts, stds)

    def step_length(
        self, shifts: Tensor, means: Tensor, stds: Tensor, new: int, mean_kl: float, peak_kl: float
    ) -> float:
        """Return beta in closed form: the KL is quadratic in it."""
        kls = self.kls(shifts, means, stds)
        scale = improvement.step_scale
        return min(scale(float(kls[-new:].mean()), mean_kl), scale(float(kls.max()), peak_kl))
