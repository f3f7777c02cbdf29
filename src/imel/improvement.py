"""The improvement of experiences: pure functions (Alg. 1 l. 9-11, Alg. 2 l. 9-12).

Each experience gets an improved mean: a step of size eta along the one-sample policy gradient,
with eta such that the mean KL divergence between improved and acting policy is the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Update = Literal["plain", "anchored"]
StdOf = Literal["dimension", "action"]
StdMode = Literal["adaptive", "schedule", "constant", "advantage", "paper", "model"]


@dataclass(frozen=True)
class ImprovementSettings:
    """How far experiences and policy are moved, and what becomes of sigma (Alg. 1-2)."""

    update: Update = "plain"
    """`plain`: the paper's reading, the new batch is improved and the policy is the interpolation
    of improved means. `anchored`: at every iteration memories are improved again against the
    current policy, and the policy moves from there by a bounded step (paper note 10); it wants
    settings of its own, those of the preset `anchored`."""
    trust_region: float | str = 0.02
    """delta: mean KL by which an anchored update moves the policy (paper note 13). A number, or
    `start:end` for a linear schedule over the run."""
    improved_size: int = 0
    """An anchored update improves its newest memories, this many, and with 0 all; of older ones it
    keeps what the policy does there (paper note 10)."""
    cooling: int = 0
    """From this iteration k on the trust region is `trust_region` k / iteration: the task is found
    by long steps, and kept by short ones. With 0 it stays as it is."""
    easing: float = 0.0
    """How much shorter steps are where there is less to gain than before: the trust region times
    this power of the deviation of advantages, as a share of its mean so far and at most 1. The
    penalty on what trends hold falls alike, and with time. With 0 neither does."""
    easing_floor: float = 0.0
    """The least share of the trust region that `easing` leaves: how far advantages deviate says
    how much single actions matter now, not how much there is still to be found."""
    peak_kl: float = 0.0
    """At none of the memories it improves may an anchored update move the policy by a KL of more
    than so many trust regions: the mean hardly tells what becomes of rare states, such as those
    where episodes start, and it is these that a step moves most. With 0 only the mean counts."""
    kl_budget: float | str = "6:1"
    """epsilon: mean KL between improved and acting policy, over all action dimensions together.
    A number, or `start:end` for a linear schedule over the run. In an anchored update it sets how
    far improved means lie from means, but not how far the policy goes."""
    std: float | str = "0.5:0.2"
    """sigma in policy units (the action range is [-1, 1]). A number, or `start:end`. In the modes
    that learn sigma this is where it starts, in `adaptive` the most it may be as well."""
    std_of: StdOf = "dimension"
    """What `std` is the deviation of: each dimension of the action, or the `action`, whose d
    dimensions share it then: `std` / d for each, at most 1."""
    std_mode: StdMode = "adaptive"
    """`adaptive`: policy gradient on log sigma with an entropy bonus, never above `std`.
    `schedule`: follow `std`. `constant`: keep its start (the paper's text). `advantage`: policy
    gradient on sigma. `paper`: Algorithm 2 to the letter, without the advantage. `model`: the
    interpolator's own sigma (Algorithm 1; Neural Processes only). Paper note 3."""
    std_rate: float = 1.0
    """How far log sigma goes along its natural gradient per iteration, in `adaptive`."""
    entropy_bonus: float = 0.02
    """What log sigma gains per iteration in `adaptive`, in deviations of the advantage: noise is
    given up only where it costs more than this."""
    min_std: float = 0.05
    """sigma never falls below this."""
    settling: int = 20
    """An anchored trend's deterministic actions are those of the mean of about so many recent
    policies, early in a run of fewer: single ones differ by steps that are little but noise."""
    clip_means: bool = False
    """Keep improved means within the action range, where actions still depend on them."""


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


def adapted_std(
    std: Tensor, gradient: Tensor, bonus: float, min_std: float, max_std: float
) -> Tensor:
    """sigma after one step along the gradient plus the entropy bonus on log sigma."""
    # One noisy batch must not make sigma vanish, nor explode (paper note 3)
    step = torch.nan_to_num(gradient + bonus).clamp(-0.2, 0.2)
    return (std * step.exp()).clamp(min_std, max(min_std, max_std))


def step_scale(kl: float, trust_region: float) -> float:
    """beta such that a step of this KL, times beta, has the trust region's.

    The KL of a shift of means is quadratic in its length. Zero where there is no step to scale.
    """
    return float((trust_region / kl) ** 0.5) if kl > 0.0 else 0.0


def settling_rate(iteration: int, settling: int) -> float:
    """What a new policy counts for in the mean of recent ones: at first, all.

    The mean is over the latest fifth of the run until that is `settling` iterations.
    """
    return max(1.0 / max(1, settling), 5.0 / (5.0 + iteration))


def cooled(trust_region: float, iteration: int, cooling: int) -> float:
    """The trust region of an iteration, counted from zero: all of it at first, then ever less.

    Steps are mostly noise once little is left to gain, and a policy that is moved by noise of one
    length diffuses. As 1 / iteration their lengths still sum to any distance.
    """
    return trust_region * min(1.0, cooling / (iteration + 1)) if cooling else trust_region


def eased_share(gain: float, usual: float, easing: float) -> float:
    """The share of a trust region where advantages deviate by `gain`, and by `usual` so far.

    A policy that has found what there is to find would otherwise go on as fast, after trifles.
    """
    return min(1.0, gain / usual) ** easing if usual > 0.0 else 1.0


def held_share(iteration: int, easing: float) -> float:
    """The share of its first penalty that an anchor has at an iteration, counted from zero.

    What the penalty shrinks is forgotten, a little at every iteration. But in the first of them
    memories are few beside the basis, and without it an anchor leads astray where it has not been.
    """
    return float(min(1.0, 10.0 / (iteration + 1)) ** easing)


def confirmed_share(predicted: Tensor, values: Tensor) -> float:
    """How much of a prediction to believe: its regression on held-out values, less two errors.

    Between zero, where the values do not confirm it, and one.
    """
    predicted, values = predicted.double(), values.double()
    energy = float(predicted.square().sum())
    if not energy > 0.0:
        return 0.0
    slope = float((predicted * values).sum()) / energy
    left = values - slope * predicted
    # As if all were independent, each of them wrong by what is left of it
    error = float((predicted * left).square().sum().sqrt()) / energy
    return min(1.0, max(0.0, slope - 2.0 * error))


def mean_kl(new_means: Tensor, means: Tensor, stds: Tensor) -> float:
    """1/T sum_t |mu'_t - mu_t|^2 / (2 sigma_t^2): the mean KL of two policies with equal sigma."""
    return float(_kl(new_means, means, stds).mean())


def peak_kl(new_means: Tensor, means: Tensor, stds: Tensor) -> float:
    """max_t |mu'_t - mu_t|^2 / (2 sigma_t^2): the largest KL of two policies with equal sigma."""
    return float(_kl(new_means, means, stds).max())


def _kl(new_means: Tensor, means: Tensor, stds: Tensor) -> Tensor:  # [T]
    return ((new_means - means) / stds).double().square().sum(dim=-1) / 2.0
