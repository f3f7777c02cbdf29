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
from torch.utils.tensorboard import SummaryWriter

from imel.datasets.columns import (
    SCALARS,
    VECTORS,
    Array,
    Columns,
    checked,
    names_in_files,
    require_same_actions,
    require_size,
)
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy

_FORMAT = {"format": "imel-transitions", "schema": 1}
_KEY = b"imel"


def write_parquet(
    path: Path, columns: Columns, document: Mapping[str, Any], extra: Mapping[str, Array]
) -> None:
    """Write columns, and some more of the user's choice."""
    pyarrow, parquet = require("pyarrow", "datasets"), require("pyarrow.parquet", "datasets")
    widths = {name: columns[name].shape[1] for name in VECTORS}
    manifest = json.dumps({**_FORMAT, **document, "widths": widths})
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
            for name, names in names_in_files(manifest["widths"]).items()
        }
        columns |= {name: columns[name][:, 0] for name in SCALARS}
        return checked(columns, policy, str(path))
    except ImelError:
        raise
    except Exception as error:  # of whatever reads Parquet and JSON beneath it
        raise ImelError(
            f"{path} is no Parquet file of imel export, or is damaged: {one_line(error)}"
        ) from None


def _table(columns: Columns) -> Columns:
    columns = {**columns, "terminated": columns["terminated"].astype(bool)}
    widths = {name: columns[name].shape[1] for name in VECTORS}
    return {
        each: np.ascontiguousarray(part)
        for name, names in names_in_files(widths).items()
        for each, part in zip(names, np.atleast_2d(columns[name].T), strict=True)
    }


def write_projector(folder: Path, vectors: dict[str, Array], columns: dict[str, Columns]) -> None:
    """Write tensors.tsv, metadata.tsv and the projector's configuration; a tag for each source.

    `tensorboard --logdir FOLDER` shows them, and projector.tensorflow.org loads the two TSV files.
    A point can be coloured and searched by every column but the states.
    """
    writer = SummaryWriter(str(folder))
    for source, rows in columns.items():
        named = {name: part for name, part in _table(rows).items() if "state_" not in name}
        table = [[f"{value:g}" for value in row] for row in zip(*named.values(), strict=True)]
        writer.add_embedding(vectors[source], table, metadata_header=list(named), tag=source)
    writer.close()
