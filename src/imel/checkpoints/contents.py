"""What the tensors of a file may be: shapes and types, and the values that make sense in them.

The one place that every reader and the writer go through. Checksums find damage; whoever makes a
file can make them fit, so nothing in it is believed before it was looked at here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor

from imel.errors import CheckpointError

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


def check_tensors(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    what: str,
    path: str | os.PathLike[str],
    prefix: str = "",
) -> None:
    """Refuse tensors that lack a name, have one too many, or differ in shape, type or range."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise CheckpointError(f"{path} does not fit this model: {what} lacks '{name}'")
        if name not in expected:
            raise CheckpointError(f"{path} does not fit this model: {what} has no '{name}'")
        here, there = expected[name], found[name]
        if here.shape != there.shape or here.dtype != there.dtype:
            raise CheckpointError(
                f"{path} does not fit this model: '{name}' of {what} is {there.dtype} "
                f"{tuple(there.shape)}, not {here.dtype} {tuple(here.shape)}"
            )
    check_values({prefix + name: tensor for name, tensor in found.items()}, path)


def check_values(tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Refuse NaN, infinity and numbers that cannot be what their names say."""
    for name, tensor in tensors.items():
        if name.startswith("spaces/") or tensor.dtype == torch.bool:
            continue
        if name.startswith("generators/"):
            _check_generator(name, tensor, path)
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


def _check_generator(name: str, state: Tensor, path: str | os.PathLike[str]) -> None:
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: '{name}' is no state of a random generator: {reason}"
        ) from None
