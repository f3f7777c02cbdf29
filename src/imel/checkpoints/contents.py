"""What the tensors of a file may be: shapes, types, values that make sense, and spaces.

The one place that every reader and the writer go through. Checksums find damage; whoever makes a
file can make them fit, so nothing in it is believed before it was looked at here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from imel.errors import CheckpointError, one_line

_ATTRIBUTES = ("low", "high", "n", "nvec", "start")
"""What makes a space again, as far as it has them; of a MultiBinary it is its shape."""
_MOST_OPTIONS = 1 << 20
"""Of a discrete space."""

_FINITE = 1e300  # also of sums of squares in double precision
_NUMBER = 1e32  # rewards and states, whose squares and sums must be finite
_WEIGHT = 1e9
_WHOLE = float(2**62)
_RANGES: tuple[tuple[tuple[str, ...], tuple[float, float]], ...] = (
    # the first that ends the name counts; smaller than 1e-4 the normaliser makes no scale
    (("normaliser.scale",), (1e-5, 1e33)),
    (("policy/std",), (1e-7, _WEIGHT)),
    (("memory.stds",), (0.0, _WEIGHT)),
    (("memory.terminated",), (0.0, 1.0)),
    (("variance", "count", "counts", "lengths", "exp_avg_sq"), (0.0, _FINITE)),
    (("/step", "/steps", ".steps", ".starts", ".ends", "_size"), (0.0, _WHOLE)),
    (("states", "observations", "rewards", "normaliser.centre"), (-_NUMBER, _NUMBER)),
    (("mean", "returns"), (-_FINITE, _FINITE)),
)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put `prefix/` before the names of tensors."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `prefixed` put under a prefix."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def check_tensors(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    what: str,
    path: str | os.PathLike[str],
    prefix: str = "",
) -> None:
    """Refuse tensors that lack a name, have one too many, or differ in shape, type or range."""
    for name in sorted(expected.keys() | found.keys()):
        wanted, given = (_form(tensors.get(name)) for tensors in (expected, found))
        if wanted != given:
            raise CheckpointError(
                f"{path} does not fit this model: '{name}' of {what} is {given}, not {wanted}"
            )
    check_values({prefix + name: tensor for name, tensor in found.items()}, path)


def _form(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def check_values(tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Refuse NaN, infinity and numbers that cannot be what their names say."""
    for name, tensor in tensors.items():
        if name.startswith("spaces/") or tensor.dtype == torch.bool:
            continue
        if name.startswith("generators/"):
            try:
                torch.Generator().set_state(tensor)
            except (RuntimeError, TypeError):
                raise CheckpointError(f"{path}: '{name}' is no state of a generator") from None
        elif tensor.is_complex() or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
            raise CheckpointError(f"{path}: '{name}' is of type {tensor.dtype}")
        elif tensor.numel():
            low, high = _range(name, tensor, tensors)
            least, most = (float(bound) for bound in torch.aminmax(tensor))
            if not (low <= least and most <= high):  # which a NaN never is
                raise CheckpointError(
                    f"{path}: '{name}' has values from {least:g} to {most:g}, "
                    f"not within {low:g} and {high:g}"
                )


def _range(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> tuple[float, float]:
    if name.endswith("._size"):  # of rows in use among those there are
        rows = tensors.get(name.removesuffix("_size") + "episodes")
        return 0.0, 0.0 if rows is None or not rows.ndim else float(rows.shape[0])
    if "interpolator." not in name:  # whose weights may have any name
        for endings, bounds in _RANGES:
            if name.endswith(endings):
                return bounds
    if not tensor.is_floating_point():
        return -_WHOLE, _WHOLE
    return (-_FINITE, _FINITE) if "optimizer" in name else (-_WEIGHT, _WEIGHT)


# --- spaces ---


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
        return {
            f"{i}.{name}/{key}": value
            for i, (name, part) in enumerate(space.items())
            for key, value in _space_to_arrays(part).items()
        }
    if isinstance(space, spaces.MultiBinary):
        return {"bits": space.shape}
    return {name: getattr(space, name) for name in _ATTRIBUTES if hasattr(space, name)}


def spaces_from_tensors(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str]
) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return what `spaces_to_tensors` took apart; refuse bounds that bound nothing."""
    try:
        arrays = {name: _array(part) for name, part in under("spaces", tensors).items()}
        observation, action = (
            _space_from(under(name, arrays)) for name in ("observation", "action")
        )
    except (LookupError, ValueError, TypeError, AssertionError, OverflowError) as error:
        raise CheckpointError(f"{path} lacks a valid space: {one_line(error)}") from None
    return observation, action


def _array(tensor: Tensor) -> Any:
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"numbers of type {tensor.dtype}")
    return tensor.numpy()


def _space_from(arrays: Mapping[str, Any]) -> spaces.Space[Any]:
    if not arrays:
        raise ValueError("no space")
    if any("/" in name for name in arrays):
        parts: dict[str, dict[str, Any]] = {}
        for name, array in arrays.items():
            key, _, attribute = name.rpartition("/")
            parts.setdefault(key, {})[attribute] = array
        ordered = sorted(parts, key=lambda key: int(key.partition(".")[0]))
        return spaces.Dict([(key.partition(".")[2], _space_from(parts[key])) for key in ordered])
    if "low" in arrays:
        low, high = arrays["low"], arrays["high"]
        alike = low.shape == high.shape and low.dtype == high.dtype
        if not alike or not low.size or not (low <= high).all():
            raise ValueError("bounds that bound nothing")
        return spaces.Box(low, high, dtype=low.dtype.type)
    (sizes,) = (array for name, array in arrays.items() if name in ("n", "nvec", "bits"))
    # Before anything is allocated: what a file claims about sizes is not believed
    claimed = sizes.astype(float)
    if not 1 <= (claimed.prod() if "bits" in arrays else claimed.sum()) <= _MOST_OPTIONS:
        raise ValueError("too many options")
    if "n" in arrays:
        return spaces.Discrete(int(sizes), start=int(arrays["start"]))
    if "nvec" in arrays:
        return spaces.MultiDiscrete(sizes, start=arrays["start"])
    return spaces.MultiBinary(sizes.tolist() if len(sizes) > 1 else int(sizes[0]))
