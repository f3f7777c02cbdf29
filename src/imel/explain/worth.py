"""Which lessons help and which harm: what each is worth to the present return, to first order.

A lesson theta_e is a direction in the policy's coefficients. Along it the return changes by

    w_e = <theta_e, g>,    g = sum_t phi(s_t) (d log pi(a_t | s_t) / d mu)^T A_t,

g being the policy gradient of fresh episodes. w_e is what the return would gain if the lesson were
a little stronger, per unit of its strength: about what is lost without it, as far as the return is
linear. Lessons are not small: take it as a ranking with an error bar, and evaluate.
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
        """Return the rows of lessons that are worth less than nothing, the worst first.

        :param least: standard errors below zero
        """
        order = np.argsort(self.values, kind="stable")
        return order[self.scores[order] < -least]


def lesson_worth(policy: RidgePolicy, played: Sequence[PlayedEpisode], gamma: float) -> Worth:
    """Estimate what lessons are worth from fresh episodes.

    Each half of the episodes has a baseline fitted to the other half, so that it takes away
    variance and adds no bias.
    """
    if len(played) < 4:
        raise ImelError("at least four episodes are needed for an error bar")
    features = [_features(policy, episode.states) for episode in played]
    returns = [_returns_to_go(episode.rewards, gamma) for episode in played]
    taught = policy.lessons.column("coefficients")  # [L, d_phi, d_a]
    products = np.empty((len(played), len(taught)))
    for half in range(2):
        others = range(1 - half, len(played), 2)
        baseline = _ridge([features[i] for i in others], [returns[i] for i in others])
        for i in range(half, len(played), 2):
            advantages = returns[i] - features[i].double() @ baseline
            gradient = _gradient(policy, features[i], played[i], advantages)
            products[i] = torch.einsum("lpa,pa->l", taught, gradient).cpu().numpy()
    errors = products.std(axis=0, ddof=1) / len(played) ** 0.5
    return Worth(products.mean(axis=0), errors, len(played))


def _features(policy: RidgePolicy, states: Array) -> Tensor:
    with torch.no_grad():
        tensor = torch.as_tensor(states, dtype=torch.float32, device=policy.device)
        features: Tensor = policy.features(policy.normaliser(tensor))
        return features


def _returns_to_go(rewards: Array, gamma: float) -> Tensor:
    discounted = lfilter([1.0], [1.0, -gamma], rewards[::-1].astype(np.float64))
    return torch.from_numpy(discounted[::-1].copy())


def _ridge(features: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Fit values linearly in features."""
    rows, targets = torch.cat(list(features)).double(), torch.cat(list(values))
    gram = rows.T @ rows
    gram.diagonal().add_(_BASELINE * gram.diagonal().mean())
    fitted: Tensor = torch.linalg.solve(gram, rows.T @ targets.to(rows.device))
    return fitted


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
