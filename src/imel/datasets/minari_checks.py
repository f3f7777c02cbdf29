"""Looking at a Minari dataset on disk before Minari does.

Minari makes the environment that a dataset names where its spaces are missing, and an environment
may be any function of any module. HDF5 files reach into other files by links, and claim any size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imel.errors import ImelError, one_line
from imel.extras import require

_MOST_EPISODES = 1_000_000
_MOST_BYTES = 8 << 30
_MOST_NUMBERS = 1 << 24
"""Numbers in one observation or action."""
_SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


def check_files(folder: Path, source: str) -> None:
    """Refuse data that would run code, reach beyond their folder or fill the memory."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ImelError(f"{source} has a link, {path.name!r}; only files are read")
    try:
        metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImelError(f"{source} has no valid metadata.json: {one_line(error)}") from None
    if not isinstance(metadata, dict):
        raise ImelError(f"{source} has a metadata.json that is no table")
    for name in ("observation_space", "action_space"):
        _check_space(metadata.get(name), f"{source} has no valid {name}")
    count = metadata.get("total_episodes")
    if type(count) is not int or not 0 <= count <= _MOST_EPISODES:
        raise ImelError(f"{source} has no valid number of episodes")
    try:
        held = sum(_hdf5_sizes(folder) if metadata.get("data_format") == "hdf5" else _sizes(folder))
    except ImelError as error:
        raise ImelError(f"{source} {error}") from None
    except Exception as error:  # of whatever reads HDF5 or Arrow
        raise ImelError(f"{source} cannot be read: {one_line(error)}") from None
    if held > _MOST_BYTES:
        raise ImelError(f"{source} is larger than {_MOST_BYTES >> 30} GiB")


def _check_space(text: Any, refusal: str) -> None:
    try:
        space = json.loads(text)
        sizes = space.get("shape", [])
        known = space["type"] in _SPACES and all(type(size) is int and size > 0 for size in sizes)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        known, sizes = False, []
    if not known or math.prod(sizes) > _MOST_NUMBERS:
        raise ImelError(f"{refusal}; vectors and numbers of choices are read, no parts of spaces")


def _hdf5_sizes(folder: Path) -> Iterator[int]:
    """Yield the bytes of each dataset as it claims; refuse what lies outside of its file."""
    h5py = require("h5py", "datasets")

    def walk(group: Any) -> Iterator[int]:
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ImelError(f"has a link, {name!r}; only its own data are read")
            item = group[name]
            if isinstance(item, h5py.Group):
                yield from walk(item)
            elif not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
                raise ImelError(f"has data in other files, {name!r}; only its own are read")
            else:
                yield item.size * item.dtype.itemsize

    with h5py.File(folder / "main_data.hdf5", "r") as file:
        yield from walk(file)


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the bytes of each Arrow file's columns; refuse what is not valid Arrow."""
    pyarrow = require("pyarrow.ipc", "datasets")
    for path in sorted(folder.glob("*/*.arrow")):
        with pyarrow.open_file(path) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                yield batch.nbytes
