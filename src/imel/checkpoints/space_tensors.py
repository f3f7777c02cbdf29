"""Spaces in a checkpoint: as tensors, from which they are made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from imel.checkpoints.checkpoint import under
from imel.errors import CheckpointError

_TYPES = (
    *(torch.float16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_MOST = 1 << 20
"""Options of a discrete space at most."""


def spaces_to_tensors(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> dict[str, Tensor]:
    """Return what makes two spaces again: bounds, or numbers of options."""
    both = {"observation": observation_space, "action": action_space}
    return {
        f"spaces/{name}/{key}": torch.as_tensor(np.array(value))
        for name, space in both.items()
        for key, value in _space_to_arrays(space).items()
    }


def _space_to_arrays(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        # Numbered: features are in the order of the parts, and a file has none
        parts = {
            f"{i}.{key}": _space_to_arrays(part) for i, (key, part) in enumerate(space.items())
        }
        return {f"{key}/{name}": v for key, part in parts.items() for name, v in part.items()}
    if isinstance(space, spaces.Box):
        return {"low": space.low, "high": space.high}
    if isinstance(space, spaces.Discrete):
        return {"n": space.n, "start": space.start}
    if isinstance(space, spaces.MultiDiscrete):
        return {"nvec": space.nvec, "start": space.start}
    assert isinstance(space, spaces.MultiBinary)
    return {"bits": np.array(space.shape)}


def spaces_from_tensors(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str]
) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return what `spaces_to_tensors` took apart; refuse bounds that bound nothing."""
    found = []
    for name in ("observation", "action"):
        try:
            found.append(_space_from(under(f"spaces/{name}", tensors)))
        except (KeyError, ValueError, TypeError, AssertionError, OverflowError) as error:
            raise CheckpointError(f"{path} lacks a valid {name} space: {error}") from None
    return found[0], found[1]


def _space_from(parts: Mapping[str, Tensor]) -> spaces.Space[Any]:
    if unknown := [tensor.dtype for tensor in parts.values() if tensor.dtype not in _TYPES]:
        raise ValueError(f"numbers of type {unknown[0]}")
    arrays = {name: tensor.numpy() for name, tensor in parts.items()}
    if not arrays or any("/" in name for name in arrays):
        keys = {name.rpartition("/")[0] for name in arrays}
        if not keys:
            raise ValueError("no space")
        ordered = sorted(keys, key=lambda key: int(key.partition(".")[0]))
        return spaces.Dict([(k.partition(".")[2], _space_from(under(k, parts))) for k in ordered])
    if "low" in arrays:
        low, high = arrays["low"], arrays["high"]
        if low.shape != high.shape or low.dtype != high.dtype:
            raise ValueError("bounds of different shapes or types")
        if not low.size or not (low <= high).all():
            raise ValueError("bounds without room between")
        return spaces.Box(low, high, dtype=low.dtype.type)
    # Before anything is allocated: what a file claims about sizes is not believed
    size = arrays["bits"].astype(float).prod() if "bits" in arrays else _options(arrays).sum()
    if not 1 <= size <= _MOST:
        raise ValueError("too many options")
    if "n" in arrays:
        return spaces.Discrete(int(arrays["n"]), start=int(arrays["start"]))
    if "nvec" in arrays:
        return spaces.MultiDiscrete(arrays["nvec"], start=arrays["start"])
    shape = arrays["bits"].tolist()
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _options(arrays: Mapping[str, Any]) -> Any:
    return arrays["n" if "n" in arrays else "nvec"].astype(float)
