"""Columns as a Minari dataset and back, so that offline learners can use what imel has done.

Minari's own arrays hold what the environment saw: actions in its units, clipped to its bounds.
What imel knows beyond that stands in `infos` under `imel_...`, in policy units; entry t belongs to
observation t, and the one of the last observation is empty.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from imel.datasets.columns import (
    ANNOTATIONS,
    Array,
    Columns,
    action_bounds,
    require_same_actions,
    require_size,
    trajectories,
)
from imel.errors import ImelError, one_line
from imel.extras import require
from imel.policies import Policy

_SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


def minari_path(dataset_id: str) -> Path:
    """Return where Minari keeps a dataset; refuse an id that it would refuse."""
    minari_dataset = require("minari.dataset.minari_dataset", "datasets")
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise ImelError(
            f"'{dataset_id}' is neither a file nor the id of a Minari dataset, such as "
            "imel/pendulum/memory-v0"
        ) from None
    found: Path = require("minari.storage", "datasets").get_dataset_path(dataset_id)
    return found


# --- writing ---


def write_minari(
    dataset_id: str,
    columns: Columns,
    policy: Policy,
    env_id: str | None,
    document: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
) -> None:
    """Make a new dataset of each part of an episode; `seeds` are those of the episodes."""
    place = minari_path(dataset_id)
    if policy.features_extractor is not None:
        raise ImelError(
            f"the memory holds features of {policy.observation_space}, and a Minari dataset "
            "observations: export to parquet"
        )
    if place.exists():
        raise ImelError(f"the Minari dataset {dataset_id} exists already ({place})")
    minari = require("minari", "datasets")
    episode_buffer = require("minari.data_collector", "datasets").EpisodeBuffer
    buffers = [
        episode_buffer(**_episode(columns, rows, policy), seed=seeds[i] if seeds else None)
        for i, rows in enumerate(trajectories(columns))
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nobody has named an author, an e-mail, ...
            made = minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                env=_recoverable(env_id),
                observation_space=policy.observation_space,
                action_space=policy.action_space,
                algorithm_name=f"IMeL, {type(policy).__name__}",
                description=f"{document.get('source')} of a run of imel",
            )
            made.storage.update_metadata({"imel": dict(document)})
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _recoverable(env_id: str | None) -> str | None:
    """Return the id if the environment can be made from what Minari records of it."""
    with contextlib.suppress(gymnasium.error.Error, ImportError, TypeError, ValueError):
        return env_id if env_id and gymnasium.spec(env_id).to_json() else None
    return None  # not registered, or by a class or a function that JSON cannot hold


def _episode(columns: Columns, rows: Array, policy: Policy) -> dict[str, Any]:
    """Return the fields of a Minari episode."""
    states, nexts = columns["states"][rows], columns["next_states"][rows]
    terminated = columns["terminated"][rows].astype(bool)
    cut = np.zeros_like(terminated)
    cut[-1] = not terminated[-1]  # what the memory has forgotten may have come after it
    actions = policy.to_environment(columns["actions"][rows])
    return {
        "observations": np.concatenate([states, nexts[-1:]], dtype=policy.observation_space.dtype),
        "actions": actions.astype(policy.action_space.dtype),
        "rewards": columns["rewards"][rows],
        "terminations": terminated,
        "truncations": cut,
        "infos": {key: _padded(columns[name][rows]) for name, key in ANNOTATIONS.items()},
    }


def _padded(column: Array) -> Any:
    """Return a column with an entry for the last observation, of which nothing is known."""
    empty = -1 if column.dtype.kind == "i" else np.nan
    return np.concatenate([column, np.full_like(column[:1], empty)])


# --- reading ---


def minari_episodes(dataset: Any, policy: Policy, source: str) -> list[Any]:
    """Return the episodes of a Minari dataset, or of the local one with an id."""
    try:
        if isinstance(dataset, str):
            dataset = _opened(dataset, source)
        require_same_actions(action_bounds(dataset.action_space), policy, source)
        return list(dataset.iterate_episodes())
    except ImelError:
        raise
    except Exception as error:  # of whatever reads JSON, HDF5 or Arrow beneath it
        raise ImelError(f"{source} cannot be read: {one_line(error)}") from None


def _opened(dataset_id: str, source: str) -> Any:
    """Open a dataset that runs no code, lies in its own folder and fits into memory."""
    folder = minari_path(dataset_id) / "data"
    if not folder.is_dir():
        raise ImelError(
            f"there is no file and no local Minari dataset '{dataset_id}' ({folder.parent}); "
            f"minari download {dataset_id} gets one that is published"
        )
    if any(path.is_symlink() for path in folder.rglob("*")):
        raise ImelError(f"{source} has a link; only its own files are read")
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    claimed = 8 * abs(metadata["total_episodes"])
    for name in ("observation_space", "action_space"):
        # Without it Minari would make the environment that is named, by any function of any module
        space = json.loads(metadata[name])
        if space["type"] not in _SPACES or np.dtype(space.get("dtype", "f4")).kind not in "biuf":
            raise ImelError(f"{source} has a {name} of another kind than {', '.join(_SPACES)}")
        claimed += 8 * abs(math.prod(space.get("shape", ())))
    require_size(claimed, source)
    if metadata["data_format"] != "hdf5":
        raise ImelError(f"{source} is in another format than HDF5")
    require_size(_bytes_in(folder / "main_data.hdf5"), source)
    return require("minari", "datasets").load_dataset(dataset_id)


def _bytes_in(path: Path) -> int:
    """Return the size that data claim; refuse what lies outside of its file."""
    h5py, items = require("h5py", "datasets"), list[Any]()
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, item: items.append(item))  # each once, and no links
        arrays = [item for item in items if isinstance(item, h5py.Dataset)]
        entries = len(file) + sum(len(item) for item in items if isinstance(item, h5py.Group))
        if entries > len(items) or any(array.is_virtual or array.external for array in arrays):
            raise ValueError("it has a link; only its own data are read")
        return sum(array.nbytes for array in arrays)
