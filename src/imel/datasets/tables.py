"""Columns as tables: a Parquet file and back, and TSV files for the embedding projector.

A row is a transition, a column a dimension, as pandas, DuckDB and Embedding Atlas expect it. What
made the rows (task, settings, commit, versions) is JSON under `imel` in the schema's metadata.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from torch.utils.tensorboard import SummaryWriter

from imel.datasets.columns import SCALARS, VECTORS, Array, Columns, Logged, checked
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy

_FORMAT, _SCHEMA = "imel-transitions", 1
_KEY = b"imel"
_MOST_ROWS = 10_000_000


def write_parquet(
    path: Path,
    columns: Columns,
    document: Mapping[str, Any],
    extra: Mapping[str, Array],
) -> None:
    """Write columns, and some more of the user's choice, to a file that must not exist yet."""
    pyarrow, parquet = require("pyarrow", "datasets"), require("pyarrow.parquet", "datasets")
    if path.exists():
        raise ImelError(f"{path} exists already and is not overwritten")
    table: dict[str, Array] = {
        SCALARS[name]: columns[name] for name in SCALARS if name != "terminated"
    }
    table["terminated"] = columns["terminated"].astype(bool)
    for name, singular in VECTORS.items():
        for i in range(columns[name].shape[1]):
            table[f"{singular}_{i}"] = np.ascontiguousarray(columns[name][:, i])
    manifest = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        **document,
        "widths": {name: columns[name].shape[1] for name in VECTORS},
    }
    made = pyarrow.table({**table, **extra})
    made = made.replace_schema_metadata({_KEY: json.dumps(manifest)})
    content = io.BytesIO()
    parquet.write_table(made, content, compression="zstd")
    write_atomically(path, content.getvalue())


def read_parquet(path: Path, policy: Policy) -> Logged:
    """What `write_parquet` wrote, checked against a policy's spaces."""
    parquet, pyarrow = require("pyarrow.parquet", "datasets"), require("pyarrow", "datasets")
    try:
        # A file of a few bytes may stand for any number of equal rows
        rows = parquet.read_metadata(path).num_rows
        if rows > _MOST_ROWS:
            raise ImelError(f"{path} has {rows} rows; at most {_MOST_ROWS} are read")
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ImelError(f"{path} is not a Parquet file, or is damaged: {one_line(error)}") from None
    manifest = _manifest(table, path)
    mine = action_bounds(policy.action_space)
    theirs = {name: manifest.get(name) for name in mine}
    if mine != theirs:
        low, high = mine
        raise ImelError(
            f"{path} does not fit this model: its actions are from {theirs[low]} to "
            f"{theirs[high]}, not from {mine[low]} to {mine[high]}"
        )
    columns: Columns = {}
    try:
        for name, singular in SCALARS.items():
            columns[name] = _array(table, singular)
        for name, singular in VECTORS.items():
            width = manifest["widths"][name]
            parts = [_array(table, f"{singular}_{i}") for i in range(width)]
            columns[name] = np.stack(parts, axis=1)
    except (KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise ImelError(f"{path} lacks a column that imel has written: {one_line(error)}") from None
    state_dim, action_dim = policy.memory.states.shape[1], policy.memory.actions.shape[1]
    columns = checked(columns, state_dim, action_dim, str(path))
    return Logged(columns, "annotated", rewarded=True)


def action_bounds(space: Any) -> dict[str, Any]:
    """Return what an action is between: the bounds, or the first and last number of a choice."""
    if isinstance(space, spaces.Box):
        return {"action_low": space.low.tolist(), "action_high": space.high.tolist()}
    starts = np.zeros(space.shape, int) if isinstance(space, spaces.MultiBinary) else space.start
    counts = {spaces.Discrete: "n", spaces.MultiDiscrete: "nvec"}.get(type(space))
    last = starts + (2 if counts is None else getattr(space, counts)) - 1
    return {"action_low": np.array(starts).tolist(), "action_high": np.array(last).tolist()}


def _array(table: Any, name: str) -> Array:
    found: Array = table.column(name).to_numpy()
    return found


def _manifest(table: Any, path: Path) -> dict[str, Any]:
    text = (table.schema.metadata or {}).get(_KEY)
    try:
        manifest = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ImelError(f"{path} was not written by imel export; give its episodes as arrays")
    if manifest.get("schema") != _SCHEMA:
        raise ImelError(f"{path} has schema {manifest.get('schema')}; this version reads {_SCHEMA}")
    return manifest


# --- for TensorBoard's embedding projector ---


def write_projector(folder: Path, vectors: dict[str, Array], columns: dict[str, Columns]) -> None:
    """Write tensors.tsv, metadata.tsv and the projector's configuration; a tag for each source.

    `tensorboard --logdir FOLDER` shows them, and projector.tensorflow.org loads the two TSV files.
    """
    if folder.exists():
        raise ImelError(f"{folder} exists already and is not overwritten")
    writer = SummaryWriter(str(folder))
    for source, rows in columns.items():
        names, table = _labels(rows)
        writer.add_embedding(vectors[source], metadata=table, metadata_header=names, tag=source)
    writer.close()


def _labels(columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Every column but the states as text: what a point can be coloured and searched by."""
    named = {singular: columns[name] for name, singular in SCALARS.items()}
    for name, singular in VECTORS.items():
        if not name.endswith("states"):
            named |= {f"{singular}_{i}": column for i, column in enumerate(columns[name].T)}
    table = [[f"{value:g}" for value in row] for row in zip(*named.values(), strict=True)]
    return list(named), table
