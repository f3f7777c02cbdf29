"""Counterfactuals: a policy without some of its memories or lessons, and which to choose."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.by_lessons import lesson_rows
from imel.policies import Policy, RidgePolicy
from imel.policies.base import Rows

P = TypeVar("P", bound=Policy)

_COMPARED = 64
"""States at most with which the kept states of lessons are compared."""


def without_memories(policy: P, rows: Rows = None, episodes: Rows = None) -> P:
    """Return a copy of the policy that lacks some rows of the memory, or those of some episodes."""
    left_out = torch.as_tensor(np.flatnonzero(chosen_rows(policy, rows, episodes)))
    memory = copy.deepcopy(policy.memory)
    memory.forget_rows(left_out)
    return copy.deepcopy(policy, {id(policy.memory): memory})


def without_lessons(policy: Any, lessons: Rows) -> Any:
    """Return a copy of the policy from whose coefficients some lessons are subtracted."""
    reduced, episodes = copy.deepcopy(policy), np.asarray([] if lessons is None else lessons)
    if not episodes.size:
        return reduced
    if episodes.ndim != 1 or not np.issubdtype(episodes.dtype, np.integer):
        raise ImelError("lessons are taken back by the numbers of their episodes")
    if not len(policy.lessons):
        raise ImelError("the policy has had no lesson yet: it has not been trained")
    counts = policy.lessons.column("counts").cpu().numpy()
    rows = np.unique(lesson_rows(_episodes(policy), counts, episodes))  # a period once
    taken = torch.as_tensor(rows, device=policy.device)
    column = reduced.lessons.column("coefficients")
    reduced.coefficients.sub_(column[taken].double().sum(dim=0))
    column[taken] = 0.0  # the row stays: it is still known what was taken back
    return reduced


def chosen_rows(policy: Policy, rows: Rows = None, episodes: Rows = None) -> NDArray[np.bool_]:
    """Return a mask over the memory of what is to be left out; something has to remain."""
    remembered = policy.memory.column("episodes").cpu().numpy()
    if not len(remembered):
        raise ImelError("the policy remembers nothing yet: it has not been trained")
    mask = np.zeros(len(remembered), dtype=bool)
    try:
        if rows is not None and len(rows):
            mask[np.asarray(rows)] = True
    except IndexError as error:
        raise ImelError(
            f"memories are left out by their rows, 0 to {len(mask) - 1}, or by a mask over "
            f"{len(mask)} memories: {error}"
        ) from None
    if episodes is not None:
        for unknown in np.setdiff1d(np.asarray(episodes), remembered):
            said = f"remembered are some from {remembered.min()} to {remembered.max()}"
            raise ImelError(f"no memory of episode {unknown}; {said}")
        mask |= np.isin(remembered, np.asarray(episodes))
    if mask.all():
        raise ImelError("at least one memory has to be left")
    return mask


def lesson_sizes(policy: RidgePolicy) -> NDArray[Any]:
    """Return what each lesson adds to the action, as a root mean square over remembered states.

    sqrt(mean_i |phi_i^T theta_e|^2) = sqrt(tr(theta_e^T (Phi^T Phi / N) theta_e)), in policy units
    """  # [L] in the order of the ledger
    taught = policy.lessons.column("coefficients")
    squares = ((_moments(policy) @ taught) * taught).sum(dim=(1, 2))
    return np.asarray(squares.clamp_min(0.0).sqrt().cpu())


def lesson_shares(policy: RidgePolicy) -> NDArray[Any]:
    """Return the share of the policy that each lesson carries; they add up to one.

    mean_i (phi_i^T theta_e)(phi_i^T theta) / mean_i |phi_i^T theta|^2, negative of one against it
    """  # [L] in the order of the ledger
    taught = policy.lessons.column("coefficients")
    projection = (taught * (_moments(policy) @ policy.coefficients.float())).sum(dim=(1, 2))
    shares = projection.double() / projection.double().sum()
    return np.asarray(shares.nan_to_num().cpu())


def _moments(policy: RidgePolicy) -> torch.Tensor:
    """Return the second moments of the features at remembered states."""  # [d_phi, d_phi]
    if not len(policy.memory):
        raise ImelError("the policy remembers no states on which to compare lessons")
    return policy.design.gram / len(policy.memory)


def largest_lessons(policy: RidgePolicy, count: int) -> NDArray[Any]:
    """Return the episodes of the lessons that carry the largest shares of the policy."""
    order = np.argsort(-lesson_shares(policy), kind="stable")
    return _episodes(policy)[order[:count]]


def random_lessons(policy: RidgePolicy, count: int, seed: int) -> NDArray[Any]:
    """Return the episodes of as many lessons drawn at random."""
    return np.random.default_rng(seed).permutation(_episodes(policy))[:count]


def similar_lessons(policy: RidgePolicy, states: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the episodes of the lessons whose kept states are nearest to some on average."""
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
