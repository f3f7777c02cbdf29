"""The improvement of experiences: pure functions (Alg. 1 l. 9-11, Alg. 2 l. 9-12).

Each experience gets an improved mean: a step of size eta along the one-sample policy gradient,
with eta such that the mean KL divergence between improved and acting policy is the budget.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

StdMode = Literal["advantage", "paper"]


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
    elif mode != "paper":
        raise ValueError(f"std_mode '{mode}' does not improve sigma")
    return stds + eta * gradient


def next_std(improved: Tensor, previous: Tensor, min_std: float) -> Tensor:
    """sigma^{k+1} = mean_t sigma*_t (Alg. 2 l. 13), kept in (min_std, 2 sigma^k) and finite."""
    mean = improved.mean(dim=0)  # [d_a]
    mean = torch.where(mean.isfinite(), mean, previous)
    # Paper note 3: one noisy batch must not make sigma vanish, nor explode
    return torch.minimum(mean, 2.0 * previous).clamp_min(min_std)


def importance_ratios(
    actions: Tensor, means: Tensor, stds: Tensor, behaviour_means: Tensor, behaviour_stds: Tensor
) -> Tensor:
    """pi(a|s) / b(a|s): how much likelier an action is now than for the policy that took it."""
    now = ((actions - means) / stds).double()
    then = ((actions - behaviour_means) / behaviour_stds).double()
    scale = (behaviour_stds / stds).double().log()
    logarithm = ((then.square() - now.square()) / 2.0 + scale).sum(dim=-1)  # [N]
    # Beyond e^60 a ratio says no more than "far likelier", and would overflow
    return logarithm.clamp(-60.0, 60.0).exp().to(actions.dtype)


def std_gradient(advantages: Tensor, actions: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    """Natural policy gradient on log sigma: mean_t A_t ((a_t - mu_t)^2 / sigma^2 - 1) / 2."""
    noise = ((actions - means) / stds).square() - 1.0  # [T, d_a]
    return (advantages[:, None] * noise).mean(dim=0) / 2.0  # [d_a]


def adapted_std(std: Tensor, step: Tensor, min_std: float, max_std: float) -> Tensor:
    """Return sigma after a step of log sigma, of a fifth at most."""
    # One noisy batch must not make sigma vanish, nor explode (paper note 3)
    step = torch.nan_to_num(step).clamp(-0.2, 0.2)
    return (std * step.exp()).clamp(min_std, max_std)


def effective_sample_size(ratios: Tensor) -> float:
    """Return (sum rho)^2 / (N sum rho^2): the share of memories that still count."""
    return float(ratios.sum().square() / (ratios.square().sum() * ratios.numel()))


def step_scale(kl: float, trust_region: float) -> float:
    """beta such that a step of this KL, times beta, has the trust region's.

    The KL of a shift of means is quadratic in its length. Zero where there is no step to scale.
    """
    return float((trust_region / kl) ** 0.5) if kl > 0.0 else 0.0


def mean_kl(new_means: Tensor, means: Tensor, stds: Tensor) -> float:
    """1/T sum_t |mu'_t - mu_t|^2 / (2 sigma_t^2): the mean KL of two policies with equal sigma."""
    return float(shift_kls(new_means - means, stds).mean())


def shift_kls(shifts: Tensor, stds: Tensor) -> Tensor:
    """|delta_t|^2 / (2 sigma_t^2): the KL of moving each mean by delta_t."""  # [T]
    return (shifts / stds).double().square().sum(dim=-1) / 2.0
