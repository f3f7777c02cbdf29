"""Transitions as named columns: what the memory, a file and a played episode have in common.

The names are those of the memory's columns. In tables they are in the singular, those of a vector
with the number of the dimension behind them, as pandas, DuckDB and Embedding Atlas expect it. What
made the rows (task, settings, commit, versions) is JSON under `imel` in a Parquet file's metadata.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from imel.data.memory import Memory
from imel.data.rollout import LARGEST
from imel.distributions import distribution_for
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy

Array = NDArray[Any]
Columns = dict[str, Array]

VECTORS = ("states", "next_states", "actions", "means", "behaviour_means", "improved_means", "stds")
SCALARS = ("rewards", "advantages", "terminated", "episodes", "steps", "iterations")
WHOLE = ("episodes", "steps", "iterations")
"""Columns of whole numbers."""
ANNOTATIONS = {
    name: f"imel_{name.removesuffix('s')}"
    for name in (*VECTORS, *SCALARS)
    if name not in ("states", "next_states", "rewards", "terminated")
}
"""What a Minari dataset of `imel export` has in its infos: columns in policy units."""
_FORMAT = {"format": "imel-transitions", "schema": 1}
_KEY = b"imel"
MOST_BYTES = 8 << 30
"""What a file may take in memory: a small one may claim any size."""


@dataclass(frozen=True)
class Logged:
    """Transitions from elsewhere as rows of a memory, in policy units.

    `annotated` ones have improved means, `acted` ones mu, sigma and rewards, `shown` ones neither.
    """

    columns: Columns
    kind: Literal["annotated", "acted", "shown"]
    rewarded: bool

    def __len__(self) -> int:
        return len(self.columns["states"])


def memory_columns(memory: Memory) -> Columns:
    """Return a memory's rows, the oldest iteration first."""
    if not len(memory) or memory.holds_prior:
        raise ImelError("the model remembers nothing yet: it has not been trained")
    oldest_first = memory.column("iterations").argsort(stable=True)
    return {name: memory.column(name)[oldest_first].cpu().numpy() for name in (*VECTORS, *SCALARS)}


def trajectories(columns: Columns) -> list[Array]:
    """Return the rows of each part of an episode without a gap, by episode, in order of time."""
    episodes, steps = columns["episodes"], columns["steps"]
    order = np.lexsort((steps, episodes))
    before, after = order[:-1], order[1:]
    follows = (episodes[before] == episodes[after]) & (steps[before] + 1 == steps[after])
    return np.split(order, np.flatnonzero(~follows) + 1)


# --- what is required of data from elsewhere ---


def checked(columns: Mapping[str, Any], policy: Policy, source: str) -> Columns:
    """Return columns in the memory's precision; refuse other shapes, NaN and infinity."""
    count, found = len(columns["states"]), Columns()
    if count == 0:
        raise ImelError(f"{source} holds no transitions")
    for name, values in columns.items():
        column = np.asarray(values, np.float64)
        width = policy.state_dim if name.endswith("states") else policy.action_dim
        shape = (count, width) if name in VECTORS else (count,)
        if column.shape != shape:
            raise ImelError(
                f"{source} does not fit this model: {name} are {column.shape}, not {shape}"
            )
        largest = 2.0**53 if name in WHOLE else LARGEST
        bad = ~(np.abs(column) <= largest).reshape(count, -1).all(axis=1)
        if bad.any():
            raise ImelError(f"{source} has {name} that are NaN or too large, in row {bad.argmax()}")
        found[name] = column.astype(np.int64 if name in WHOLE else np.float32)
    if "stds" in found and not (found["stds"] > 0).all():
        raise ImelError(f"{source} has stds that are not above zero")
    return found


def action_bounds(space: spaces.Space[Any]) -> dict[str, list[float]]:
    """Return what actions are between: bounds, or the first and last number of each choice."""
    low: Array
    high: Array
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    else:
        choices = distribution_for(space)
        low, high = choices.starts, choices.starts + choices.sizes - 1
    return {"action_low": low.tolist(), "action_high": high.tolist()}


def require_same_actions(theirs: Mapping[str, Any], policy: Policy, source: str) -> None:
    """Refuse actions that were logged for another range: they would mean something else here."""
    mine = action_bounds(policy.action_space)
    found, wanted = ([bounds.get(name) for name in mine] for bounds in (theirs, mine))
    if found != wanted:
        raise ImelError(
            f"{source} does not fit this model: its actions are from {found[0]!r} to {found[1]!r}, "
            f"not from {wanted[0]} to {wanted[1]}"
        )


def require_size(claimed: float, source: str) -> None:
    """Refuse what would take too much memory."""
    if not claimed <= MOST_BYTES:  # NaN is not
        raise ImelError(f"{source} is larger than {MOST_BYTES >> 30} GiB")


# --- tables ---


def write_parquet(
    path: Path, columns: Columns, document: Mapping[str, Any], extra: Mapping[str, Array]
) -> None:
    """Write columns, and some more of the user's choice."""
    pyarrow, parquet = require("pyarrow", "datasets"), require("pyarrow.parquet", "datasets")
    manifest = json.dumps({**_FORMAT, **document, "widths": _widths(columns)})
    table = pyarrow.table({**_table(columns), **extra}).replace_schema_metadata({_KEY: manifest})
    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue())


def read_parquet(path: Path, policy: Policy) -> Columns:
    """Return what `write_parquet` wrote; refuse what is damaged, or was made for another model."""
    parquet = require("pyarrow.parquet", "datasets")
    try:
        held = parquet.read_metadata(path)
        require_size(8 * held.num_rows * held.num_columns, str(path))
        table = parquet.read_table(path)
        manifest = json.loads((table.schema.metadata or {})[_KEY])
        if not _FORMAT.items() <= manifest.items():
            raise ValueError("another format")
        require_same_actions(manifest, policy, str(path))
        columns = {
            name: np.stack([table.column(each).to_numpy() for each in names], axis=-1)
            for name, names in _names(manifest["widths"]).items()
        }
        columns |= {name: columns[name][:, 0] for name in SCALARS}
        return checked(columns, policy, str(path))
    except ImelError:
        raise
    except Exception as error:  # of whatever reads Parquet and JSON beneath it
        raise ImelError(
            f"{path} is no Parquet file of imel export, or is damaged: {one_line(error)}"
        ) from None


def _names(widths: Mapping[str, int]) -> dict[str, list[str]]:
    """Return what the dimensions of each column are called in tables."""
    names = {name: [name.removesuffix("s")] for name in SCALARS}
    for name in VECTORS:
        names[name] = [f"{name.removesuffix('s')}_{i}" for i in range(widths[name])]
    return names


def _table(columns: Columns) -> Columns:
    columns = {**columns, "terminated": columns["terminated"].astype(bool)}
    return {
        each: np.ascontiguousarray(part)
        for name, names in _names(_widths(columns)).items()
        for each, part in zip(names, np.atleast_2d(columns[name].T), strict=True)
    }


def _widths(columns: Columns) -> dict[str, int]:
    return {name: columns[name].shape[1] for name in VECTORS}


def write_projector(folder: Path, vectors: dict[str, Array], columns: dict[str, Columns]) -> None:
    """Write TensorBoard's projector; points are labelled by every column but the states."""
    writer = SummaryWriter(str(folder))
    for source, rows in columns.items():
        named = {name: part for name, part in _table(rows).items() if "state_" not in name}
        table = [[f"{value:g}" for value in row] for row in zip(*named.values(), strict=True)]
        writer.add_embedding(vectors[source], table, metadata_header=list(named), tag=source)
    writer.close()
