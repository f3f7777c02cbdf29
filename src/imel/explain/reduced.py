"""Counterfactuals: a policy without some of its memories, or without some of its lessons.

One of the paper's policies is made of its memory: without some rows it is what the others make of
the same weights. A `RidgePolicy` is a sum of lessons: without some of them it is what is left after
subtraction.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.by_lessons import lesson_rows
from imel.policies import Policy, RidgePolicy

P = TypeVar("P", bound=Policy)
R = TypeVar("R", bound=RidgePolicy)

Rows = Sequence[int] | Sequence[bool] | NDArray[Any]
"""Places in the memory, or for each of them whether it is meant; or numbers of episodes."""

_COMPARED = 64
"""States at most with which the kept states of lessons are compared."""


def policy_without(
    policy: P,
    rows: Rows | None = None,
    episodes: Rows | None = None,
    lessons: Rows | None = None,
) -> P:
    """Return a copy of the policy that lacks some memories, or some lessons of a `RidgePolicy`.

    Learned weights, normaliser and sigma are those of before. It answers what this policy would do
    without what it was taught there, not what a run that never saw it would have become: later
    lessons, which may have made up for those taken back, stay.

    :param rows: rows of the memory, or a mask over them (the paper's policies)
    :param episodes: episodes whose memories are left out (the paper's policies)
    :param lessons: episodes whose lessons are taken back (`RidgePolicy`); an episode that was
        merged into a period is taken back with the whole of it
    """
    return policy.without(lessons, rows, episodes)


def without_memories(policy: P, rows: Rows | None = None, episodes: Rows | None = None) -> P:
    """Return a copy of the policy that lacks some rows of the memory, or those of some episodes."""
    left_out = torch.as_tensor(np.flatnonzero(chosen_rows(policy, rows, episodes)))
    memory = copy.deepcopy(policy.memory)
    memory.forget_rows(left_out)
    return copy.deepcopy(policy, {id(policy.memory): memory, id(policy.cache): {}})


def without_lessons(policy: R, lessons: Rows) -> R:
    """Return a copy of the policy from whose coefficients some lessons are subtracted."""
    taken = torch.as_tensor(chosen_lessons(policy, lessons), device=policy.device)
    reduced = copy.deepcopy(policy, {id(policy.cache): {}})
    column = reduced.lessons.column("coefficients")
    reduced.coefficients.sub_(column[taken].double().sum(dim=0))
    column[taken] = 0.0  # the row stays: it is still known what was taken back
    return reduced


def chosen_lessons(policy: RidgePolicy, lessons: Rows) -> NDArray[Any]:
    """Return the rows of the ledger that hold some episodes' lessons, each once."""
    episodes = np.asarray(lessons)
    if not episodes.size:
        return np.zeros(0, dtype=np.int64)
    if episodes.ndim != 1 or not np.issubdtype(episodes.dtype, np.integer):
        raise ImelError("lessons are taken back by the numbers of their episodes")
    if not len(policy.lessons):
        raise ImelError("the policy has had no lesson yet: it has not been trained")
    firsts, counts = (policy.lessons.column(name).cpu().numpy() for name in ("episodes", "counts"))
    return np.unique(lesson_rows(firsts, counts, episodes))


def chosen_rows(
    policy: Policy, rows: Rows | None = None, episodes: Rows | None = None
) -> NDArray[np.bool_]:
    """A mask over the memory of what is to be left out; something has to remain."""
    remembered = policy.memory.column("episodes").cpu().numpy()
    if not len(remembered):
        raise ImelError("the policy remembers nothing yet: it has not been trained")
    mask = np.zeros(len(remembered), dtype=bool)
    if rows is not None and len(rows):
        mask |= _mask(np.asarray(rows), len(mask))
    if episodes is not None:
        unknown = np.setdiff1d(np.asarray(episodes), remembered)
        if len(unknown):
            raise ImelError(
                f"no memory of episode {unknown[0]}; remembered are {len(np.unique(remembered))} "
                f"episodes from {remembered.min()} to {remembered.max()}"
            )
        mask |= np.isin(remembered, np.asarray(episodes))
    if mask.all():
        raise ImelError("at least one memory has to be left")
    return mask


def _mask(rows: NDArray[Any], count: int) -> NDArray[np.bool_]:
    if rows.dtype == bool:
        if rows.shape != (count,):
            raise ImelError(f"a mask over {count} memories has shape ({count},), not {rows.shape}")
        return rows
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ImelError("memories are left out by their rows, or by a mask over them")
    if rows.min() < 0 or rows.max() >= count:
        raise ImelError(f"rows are numbers from 0 to {count - 1}")
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return mask


# --- how much each lesson matters to the policy as a whole, and which to take back ---


def lesson_sizes(policy: RidgePolicy) -> NDArray[Any]:
    """Return what each lesson adds to the action, as a root mean square over remembered states.

        size_e = sqrt(mean_i |phi_i^T theta_e|^2) = sqrt(tr(theta_e^T (Phi^T Phi / N) theta_e))

    In the order of the ledger.
    """  # [L]
    taught = policy.lessons.column("coefficients")
    squares = ((_moments(policy) @ taught) * taught).sum(dim=(1, 2))
    return np.asarray(squares.clamp_min(0.0).sqrt().cpu())


def lesson_shares(policy: RidgePolicy) -> NDArray[Any]:
    """Return the share of the policy that each lesson carries; they add up to one.

        share_e = mean_i (phi_i^T theta_e)(phi_i^T theta) / mean_i |phi_i^T theta|^2

    Below zero where a lesson speaks against the policy. In the order of the ledger.
    """  # [L]
    taught = policy.lessons.column("coefficients")
    along = (taught * (_moments(policy) @ policy.coefficients.float())).sum(dim=(1, 2)).double()
    return np.asarray((along / along.sum()).nan_to_num().cpu())


def _moments(policy: RidgePolicy) -> torch.Tensor:
    """Return the second moments of the features at remembered states."""  # [d_phi, d_phi]
    if not len(policy.memory):
        raise ImelError("the policy remembers no states on which to compare lessons")
    features = policy.design.features
    return features.T @ features / len(features)


def largest_lessons(policy: RidgePolicy, count: int) -> NDArray[Any]:
    """Return the episodes of the lessons that carry the largest shares of the policy."""
    order = np.argsort(-lesson_shares(policy), kind="stable")
    return _episodes(policy)[order[:count]]


def random_lessons(policy: RidgePolicy, count: int, seed: int) -> NDArray[Any]:
    """Return the episodes of as many lessons drawn at random."""
    return np.random.default_rng(seed).permutation(_episodes(policy))[:count]


def similar_lessons(policy: RidgePolicy, states: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the episodes of the lessons whose kept states are most like some states.

    Likeness is the distance of each state to the nearest one that is kept of the lesson, in
    normalised units, on average. It is what one would guess without knowing the policy.
    """
    kept = policy.lessons.column("samples")  # [L, k, d_s]
    with torch.no_grad():
        some = torch.as_tensor(states[:: -(-len(states) // _COMPARED)], device=policy.device)
        places = policy.normaliser(kept.flatten(0, 1))
        distances = torch.cdist(policy.normaliser(some), places)  # [n, L k]
    apart = distances.view(len(some), *kept.shape[:2]).amin(dim=2).mean(dim=0)
    order = apart.argsort(stable=True).cpu().numpy()
    return np.asarray(_episodes(policy)[order[:count]])


def _episodes(policy: RidgePolicy) -> NDArray[Any]:
    return policy.lessons.column("episodes").cpu().numpy()
