"""How much each lesson matters to the policy as a whole, and which to take back to find out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.policy import RidgePolicy

Array = NDArray[Any]


def lesson_sizes(policy: RidgePolicy) -> Array:
    """Return what each lesson adds to the action, as a root mean square over remembered states.

        size_e = sqrt(mean_i |phi_i^T theta_e|^2) = sqrt(tr(theta_e^T (Phi^T Phi / N) theta_e))

    In the order of the ledger, for the deterministic policy.
    """  # [L]
    if not len(policy.memory):
        raise ImelError("the policy remembers no states on which to compare lessons")
    gram = (policy.design.gram / len(policy.memory)).float()
    averaged = policy.lessons.column("averaged")
    with torch.no_grad():
        squares = ((gram @ averaged) * averaged).sum(dim=(1, 2))
    sizes: Array = squares.clamp_min(0.0).sqrt().cpu().numpy()
    return sizes


def largest_lessons(policy: RidgePolicy, count: int) -> Array:
    """Return the episodes of the largest lessons."""
    order = np.argsort(-lesson_sizes(policy), kind="stable")
    episodes: Array = policy.lessons.column("episodes").cpu().numpy()[order[:count]]
    return episodes


def random_lessons(policy: RidgePolicy, count: int, seed: int) -> Array:
    """Return the episodes of as many lessons drawn at random."""
    episodes: Array = policy.lessons.column("episodes").cpu().numpy()
    return np.random.default_rng(seed).permutation(episodes)[:count]
