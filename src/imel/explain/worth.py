"""Which lessons help and which harm: what each is worth to the present return, to first order.

A lesson theta_e is a direction in the policy's coefficients. Along it the return changes by

    w_e = <theta_e, g>,    g = sum_t phi(s_t) (d log pi(a_t | s_t) / d mu)^T A_t,

g being the policy gradient of fresh episodes: about what is lost without the lesson, as far as the
return is linear. Lessons are not small: take it as a ranking with an error bar, and evaluate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from imel.errors import ImelError
from imel.policies import RidgePolicy
from imel.policies.ridge.features import damped_inverse

Array = NDArray[Any]

_BASELINE = 1e-2
"""Penalty of the baseline's regression, in units of the mean eigenvalue."""


@dataclass(frozen=True, eq=False)
class PlayedEpisode:
    """An episode that the policy played with sampled actions."""

    states: Array  # [T, d_s] raw
    actions: Array  # [T, d_a] as they were sampled, in policy units and not clipped
    rewards: Array  # [T]


@dataclass(frozen=True, eq=False)
class Worth:
    """What each lesson is worth to the return, in the order of the ledger."""

    values: Array  # [L] mean over episodes of <theta_e, g>
    errors: Array  # [L] standard errors of these means
    episodes: int

    @property
    def scores(self) -> Array:
        """Values in standard errors."""  # [L]
        return np.asarray(self.values / np.maximum(self.errors, 1e-30))

    def harmful(self, least: float = 2.0) -> Array:
        """Return the rows of lessons so many standard errors below zero, the worst first."""
        order = np.argsort(self.values, kind="stable")
        return order[self.scores[order] < -least]


def lesson_worth(policy: RidgePolicy, played: Sequence[PlayedEpisode], gamma: float) -> Worth:
    """Estimate what lessons are worth from fresh episodes."""
    if len(played) < 4:
        raise ImelError("at least four episodes are needed for an error bar")
    with torch.no_grad():
        states = [torch.as_tensor(one.states, dtype=torch.float32) for one in played]
        features = [policy.features(policy.normaliser(part.to(policy.device))) for part in states]
    backward = [lfilter([1.0], [1.0, -gamma], one.rewards[::-1].astype(float)) for one in played]
    returns = [torch.from_numpy(part[::-1].copy()).to(policy.device) for part in backward]
    taught = policy.lessons.column("coefficients")  # [L, d_phi, d_a]
    products = np.empty((len(played), len(taught)))
    for half in range(2):  # whose baseline is fitted to the other one, and adds no bias
        rows, sums = (torch.cat(parts[1 - half :: 2]).double() for parts in (features, returns))
        baseline = damped_inverse(rows.T @ rows, _BASELINE) @ (rows.T @ sums)
        for i in range(half, len(played), 2):
            advantages = returns[i] - features[i].double() @ baseline
            gradient = _gradient(policy, features[i], played[i], advantages)
            products[i] = torch.einsum("lpa,pa->l", taught, gradient).cpu().numpy()
    errors = products.std(axis=0, ddof=1) / len(played) ** 0.5
    return Worth(products.mean(axis=0), errors, len(played))


def _gradient(
    policy: RidgePolicy, features: Tensor, episode: PlayedEpisode, advantages: Tensor
) -> Tensor:
    """Return the policy gradient of one episode with respect to the coefficients."""
    actions = torch.as_tensor(episode.actions, dtype=torch.float32, device=features.device)
    means = features @ policy.coefficients.float()
    moved, stds = means.clone().requires_grad_(), policy.std.expand_as(means)
    # d pi / pi = d log pi: the slope of a ratio that is one
    ratios = policy.distribution.ratios(actions, moved, stds, means, stds)
    (score,) = torch.autograd.grad(ratios.sum(), moved)  # [T, d_a]
    return features.T @ (score * advantages.float()[:, None])  # [d_phi, d_a]
