"""Transitions as named columns: what the memory, a file and a played episode have in common.

The names are those of the memory's columns; a file's columns have the same names in the singular,
a vector's with the number of the dimension behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imel.data.memory import Memory
from imel.errors import ImelError

Array = NDArray[Any]
Columns = dict[str, Array]

_MEANS = ("means", "behaviour_means", "improved_means")
_VECTORS = ("states", "next_states", "actions", *_MEANS, "stds")
_SCALARS = ("rewards", "advantages", "terminated", "episodes", "steps", "iterations")
VECTORS: Mapping[str, str] = {name: name.removesuffix("s") for name in _VECTORS}
SCALARS: Mapping[str, str] = {name: name.removesuffix("s") for name in _SCALARS}
WHOLE = ("episodes", "steps", "iterations")
"""Columns of whole numbers."""

_LARGEST = 1e32
"""Numbers beyond this are as bad as infinity: their sums and squares overflow."""

Kind = Literal["annotated", "acted", "shown"]


@dataclass(frozen=True)
class Logged:
    """Transitions from elsewhere as rows of a memory, in policy units.

    `annotated` ones have improved means. `acted` ones know mu and sigma of the policy that acted,
    and have rewards, so that they can be improved. Of `shown` ones only the actions are known.
    """

    columns: Columns
    kind: Kind
    rewarded: bool

    def __len__(self) -> int:
        return len(self.columns["states"])


def memory_columns(memory: Memory) -> Columns:
    """A memory's rows, the oldest iteration first."""
    if not len(memory) or memory.holds_prior:
        raise ImelError("the model remembers nothing yet: it has not been trained")
    oldest_first = memory.column("iterations").argsort(stable=True)
    return {name: memory.column(name)[oldest_first].cpu().numpy() for name in (*VECTORS, *SCALARS)}


def trajectories(columns: Columns) -> list[Array]:
    """The rows of each part of an episode that has no gap, by episode and in the order of time."""
    episodes, steps = columns["episodes"], columns["steps"]
    order = np.lexsort((steps, episodes))
    before, after = order[:-1], order[1:]
    follows = (episodes[before] == episodes[after]) & (steps[before] + 1 == steps[after])
    return np.split(order, np.flatnonzero(~follows) + 1)


def checked(columns: Columns, state_dim: int, action_dim: int, source: str) -> Columns:
    """The columns in the memory's precision; refuses other shapes, and what is no number."""
    if "states" not in columns or not len(columns["states"]):
        raise ImelError(f"{source} holds no transitions")
    count = len(columns["states"])
    found: Columns = {}
    for name, column in columns.items():
        width = state_dim if name.endswith("states") else action_dim
        shape = (count, width) if name in VECTORS else (count,)
        if column.shape != shape:
            raise ImelError(
                f"{source} does not fit this model: {name} are {column.shape}, not {shape}"
            )
        if column.dtype.kind not in "biuf":  # text, lists, objects
            raise ImelError(f"{source} has {name} that are no numbers, but {column.dtype}")
        largest = 1e18 if name in WHOLE else _LARGEST
        sizes = np.abs(column.reshape(count, -1).astype(np.float64))
        bad = ~(sizes <= largest).all(axis=1)  # which a NaN never is
        if bad.any():
            raise ImelError(f"{source} has {name} that are no numbers, first in row {bad.argmax()}")
        found[name] = column.astype(np.int64 if name in WHOLE else np.float32)
    if "stds" in found and not (found["stds"] > 0).all():
        raise ImelError(f"{source} has stds that are not above zero")
    return found
