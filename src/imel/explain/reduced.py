"""The policy it would have been, had some of its memories never been made."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.policy import ImelPolicy

Rows = Sequence[int] | Sequence[bool] | NDArray[Any]
"""Places in the memory, or for each of them whether it is meant; or numbers of episodes."""


def policy_without(
    policy: ImelPolicy, rows: Rows | None = None, episodes: Rows | None = None
) -> ImelPolicy:
    """A copy of the policy whose memory lacks some rows; learned weights are those of before.

    Whatever is computed from memories is computed from those that are left.
    """
    left_out = torch.as_tensor(np.flatnonzero(chosen_rows(policy, rows, episodes)))
    memory = copy.deepcopy(policy.memory)
    memory.forget_rows(left_out)
    # What is in the memo is not copied: of the memory there is a smaller one, and what is
    # conditioned on the whole of it is of no use
    memo: dict[int, Any] = {id(policy.memory): memory}
    memo[id(policy.cache)] = {}
    return copy.deepcopy(policy, memo)


def chosen_rows(
    policy: ImelPolicy, rows: Rows | None = None, episodes: Rows | None = None
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
