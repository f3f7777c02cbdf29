"""The Gaussian of the paper: continuous actions around a mean, and how an experience improves it.

Each experience gets an improved mean: a step of size eta along the one-sample policy gradient,
with eta such that the mean KL divergence between improved and acting policy is the budget
(Alg. 1 l. 9-11, Alg. 2 l. 9-13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from imel.distributions.distribution import Array, Distribution

StdMode = Literal["advantage", "paper"]


class Gaussian(Distribution):
    """Continuous actions around a mean; policy units map the bounds to [-1, 1]."""

    has_std = True
    span = (-1.0, 1.0)

    def __init__(self, width: int) -> None:
        self.width, self.sizes, self.starts = width, [], np.zeros(0, int)

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn(*shape, self.width, generator=generator)

    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return mu + sigma noise."""
        return np.asarray(means + stds * noise)

    def emit(self, actions: Array) -> Array:
        """Clip actions to [-1, 1]."""
        return np.clip(actions, -1.0, 1.0)

    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return the share of clipped actions, and sigma."""
        outside = (actions.abs() > 1.0).any(dim=-1)
        return {"clipped_actions": float(outside.float().mean()), "std": float(stds.mean())}

    def direction(self, means: Array) -> Array:
        """Return that of the mean."""
        return np.asarray(means / (float(np.linalg.norm(means)) or 1.0))

    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return the ratios of the densities."""
        now = ((actions - means) / stds).double()
        then = ((actions - then_means) / then_stds).double()
        scale = (then_stds / stds).double().log()
        logarithm = ((then.square() - now.square()) / 2.0 + scale).sum(dim=-1)  # [N]
        # Beyond e^60 a ratio says no more than "far likelier", and would overflow
        return logarithm.clamp(-60.0, 60.0).exp().to(actions.dtype)

    def improve(
        self, weights: Tensor, actions: Tensor, means: Tensor, stds: Tensor, budget: float
    ) -> tuple[Tensor, float]:
        """Return improved means (Alg. 1 l. 9 and 11)."""
        eta = step_size(weights, actions, means, stds, budget)
        return improved_means(weights, actions, means, stds, eta), eta

    def kls(self, shifts: Tensor, means: Tensor, stds: Tensor) -> Tensor:
        """Return |delta|^2 / (2 sigma^2)."""
        return (shifts / stds).double().square().sum(dim=-1) / 2.0

    def step_length(
        self, shifts: Tensor, means: Tensor, stds: Tensor, new: int, mean_kl: float, peak_kl: float
    ) -> float:
        """Return beta in closed form: the KL is quadratic in it."""
        kls = self.kls(shifts, means, stds)
        reached = (float(kls[-new:].mean()), mean_kl), (float(kls.max()), peak_kl)
        return float(min((bound / kl) ** 0.5 if kl > 0.0 else 0.0 for kl, bound in reached))


def step_size(
    advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor, kl_budget: float
) -> float:
    """eta = sqrt(2 T eps / sum_t A_t^2 |a_t - mu_t|^2 / sigma_t^6)          (Alg. 1 l. 9).

    The sum runs over action dimensions too, each with its own sigma (paper note 1). Zero where
    it is undefined: no advantage differs from zero, or no action from its mean (paper note 8).
    """
    scale = float(advantages.abs().max())
    if scale == 0.0 or not torch.isfinite(advantages).all():
        return 0.0
    weight = (advantages.double() / scale)[:, None]  # [T, 1] scaled: eta is homogeneous in 1/A
    gradients = weight * (actions - means).double() / stds.double().pow(3)  # [T, d_a]
    total = float(gradients.square().sum())
    if total == 0.0:
        return 0.0
    eta = (2.0 * advantages.shape[0] * kl_budget / total) ** 0.5 / scale
    return float(eta)


def improved_means(
    advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor, eta: float
) -> Tensor:
    """mu*_t = mu_t + eta A_t (a_t - mu_t) / sigma_t^2                        (Alg. 1 l. 11)."""
    if eta == 0.0:
        return means.clone()
    step = (eta * advantages.double())[:, None] * (actions - means) / stds.double().square()
    return (means + step).to(means.dtype)  # [T, d_a]


def improved_stds(
    advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor, eta: float, mode: StdMode
) -> Tensor:
    """sigma*_t = sigma_t + eta [A_t] ((a_t - mu_t)^2 - sigma_t^2) / sigma_t^3  (Alg. 2 l. 12).

    With A_t it is the policy gradient with respect to sigma; Algorithm 2 omits it, and then its
    expectation is zero whatever the returns (paper note 3).
    """
    gradient = ((actions - means).square() - stds.square()) / stds.pow(3)  # [T, d_a]
    if mode == "advantage":
        gradient = advantages[:, None] * gradient
    return stds + eta * gradient


def next_std(improved: Tensor, previous: Tensor, min_std: float) -> Tensor:
    """sigma^{k+1} = mean_t sigma*_t (Alg. 2 l. 13), kept in (min_std, 2 sigma^k) and finite."""
    mean = improved.mean(dim=0)  # [d_a]
    mean = torch.where(mean.isfinite(), mean, previous)
    # Paper note 3: one noisy batch must not make sigma vanish, nor explode
    return torch.minimum(mean, 2.0 * previous).clamp_min(min_std)


def std_gradient(advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    """Natural policy gradient on log sigma: mean_t A_t ((a_t - mu_t)^2 / sigma^2 - 1) / 2."""
    noise = ((actions - means) / stds).square() - 1.0  # [T, d_a]
    return (advantages[:, None] * noise).mean(dim=0) / 2.0  # [d_a]


def adapted_std(std: Tensor, step: Tensor, min_std: float, max_std: float) -> Tensor:
    """Return sigma after a step of log sigma, of a fifth at most."""
    # One noisy batch must not make sigma vanish, nor explode (paper note 3)
    step = torch.nan_to_num(step).clamp(-0.2, 0.2)
    return (std * step.exp()).clamp(min_std, max_std)
