"""What a dataset is given as: a file of ours, a Minari dataset or its id, or episodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imel.datasets.columns import Logged
from imel.datasets.episodes import Episode, logged_episodes
from imel.datasets.minari_checks import check_files
from imel.datasets.minari_files import minari_path, read_minari
from imel.datasets.tables import read_parquet
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.policies import Policy

Dataset = str | os.PathLike[str] | Sequence[Episode | Mapping[str, Any] | Any] | Any
"""A Parquet file of `imel export`, a Minari dataset or the id of a local one, or episodes."""


def read_dataset(dataset: Dataset, policy: Policy) -> Logged:
    """Logged transitions as rows of this policy's memory; refused if they do not fit."""
    if isinstance(dataset, str | os.PathLike):
        path = Path(dataset)
        if path.is_file() or path.suffix == ".parquet":
            if not path.is_file():
                raise ImelError(f"there is no file {path}")
            return read_parquet(path, policy)
        return read_minari(_local_minari(str(dataset)), policy)
    if hasattr(dataset, "iterate_episodes"):
        return read_minari(dataset, policy)
    if isinstance(dataset, Sequence):
        return logged_episodes(dataset, policy, "the dataset")
    raise ImelError(
        f"a {type(dataset).__name__} is no dataset: give a Parquet file of imel export, a Minari "
        "dataset or its id, or a list of episodes"
    )


def _local_minari(dataset_id: str) -> Any:
    try:
        place = minari_path(dataset_id)
    except ImelError:
        raise ImelError(
            f"'{dataset_id}' is neither a file nor the id of a Minari dataset"
        ) from None
    if not place.is_dir():
        raise ImelError(
            f"there is no file and no local Minari dataset '{dataset_id}' ({place}); "
            f"minari download {dataset_id} gets one that is published"
        )
    minari = require("minari", "datasets")
    source = f"the Minari dataset {dataset_id}"
    check_files(place / "data", source)
    try:
        return minari.load_dataset(dataset_id)
    except Exception as error:  # of whatever reads JSON, HDF5 or Arrow beneath it
        raise ImelError(f"{source} cannot be read: {one_line(error)}") from None
