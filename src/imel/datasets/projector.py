"""Vectors with their columns for TensorBoard's embedding projector."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from imel.datasets.columns import SCALARS, VECTORS, Array, Columns
from imel.errors import ImelError


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
