"""The map: memories as points in a plane, and the quantity that colours them.

A `Plane` takes raw states to the plane, so that memories of another checkpoint, the steps of an
episode and the state at hand are drawn in the same coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explorer.insight import Colour, Insight, Projection
from imel.pictures.run_pictures import principal_components

Array = NDArray[Any]

INSIDE = 0.9
"""The memories fill this part of the map's [-1, 1] square."""
_SAMPLE = 20_000
"""Memories from which principal components are computed."""


@dataclass(frozen=True, eq=False)
class Plane:
    """How the rows of a model become points of the map, and raw states if they have a place there.

    Nearly all rows that it was made from are within [-1, 1].
    """

    labels: tuple[str, str]
    _coordinates: Callable[[Insight], Array]  # a model -> its rows in the plane's space [N, d]
    _space: Callable[[Array], Array] | None  # raw states [n, d_s] -> that space
    _origin: Array  # [d]
    _directions: Array  # [2, d]
    _centre: Array  # [2]
    _scale: Array  # [2]

    def rows(self, insight: Insight) -> Array:
        """Where the memories or lessons of a model lie."""  # [N, 2]
        return self._placed(self._coordinates(insight))

    def points(self, states: Array) -> Any:
        """Where raw states lie; None on a map of lessons, which has no place for them."""  # [n, 2]
        return None if self._space is None else self._placed(self._space(states))

    def _placed(self, coordinates: Array) -> Array:
        along = (coordinates - self._origin) @ self._directions.T
        return ((along - self._centre) * self._scale).astype(np.float32)


def plane_through(
    insight: Insight,
    coordinates: Callable[[Insight], Array],
    space: Callable[[Array], Array] | None = None,
    *,
    name: str = "",
    axes: tuple[tuple[str, str], Array] | None = None,
    strays: float = 0.0,
) -> Plane:
    """The plane of a model's rows along two axes, or along their principal components.

    :param name: what the components are components of
    :param axes: their labels, and their directions [2, d]
    :param strays: per cent of the rows at either end that may lie further out
    """
    places = coordinates(insight).astype(np.float64)
    if axes is None:
        sample = torch.from_numpy(places[:: max(1, len(places) // _SAMPLE)])
        origin, directions, shares = (part.numpy() for part in principal_components(sample))
        first, second = (f"{name} component {i + 1} ({shares[i]:.0%})" for i in range(2))
        labels = (first, second)
    else:
        labels, directions = axes
        origin = np.zeros(places.shape[1])
    along = (places - origin) @ directions.T
    low, high = np.percentile(along, [strays, 100.0 - strays], axis=0)
    scale = 2.0 * INSIDE / np.maximum(high - low, 1e-9)
    return Plane(labels, coordinates, space, origin, directions, (low + high) / 2, scale)


def make_plane(insight: Insight, projection: Projection, x: int = 0, y: int = 1) -> Plane:
    """The plane of a checkpoint's memories; x and y choose two dimensions of the state."""
    insight.require_memories()
    spaces: dict[Projection, Callable[[Array], Array]] = {
        "features": insight.features,
        "states": insight.normalised,
        "dimensions": np.asarray,
    }
    if projection not in spaces:
        raise ImelError(f"memories have no map by '{projection}'")
    space = spaces[projection]
    axes = None
    if projection == "dimensions":
        width = insight.policy.state_dim
        for dimension in (x, y):
            if not 0 <= dimension < width:
                raise ImelError(f"the state has dimensions 0 to {width - 1}, not {dimension}")
        names = insight.names.state
        axes = (names[x], names[y]), np.eye(width)[[x, y]]

    def rows(of: Insight) -> Array:
        return space(of.column("states"))

    name = "z" if projection == "features" else "state"
    return plane_through(insight, rows, space, name=name, axes=axes, strays=0.2)


@dataclass(frozen=True)
class Colouring:
    """A quantity of every memory, as the map's colour."""

    label: str
    values: Array  # [N] in [0, 1], where 0.5 is zero if it diverges
    low: float
    high: float
    diverging: bool


def colouring(insight: Insight, frame: Insight, by: Colour, dimension: int = 0) -> Colouring:
    """The colour of each memory, on the scale of the frame's memories.

    The outermost percent at either end share the end's colour.
    """
    for each in (insight, frame):
        each.require_memories()
    values, label = _quantity(insight, by, dimension)
    diverging = by in ("advantage", "action", "improved")
    return scaled_colours(values, _quantity(frame, by, dimension)[0], label, diverging)


def scaled_colours(values: Array, among: Array, label: str, diverging: bool = False) -> Colouring:
    """Return values as colours on the scale of others."""
    low, high = np.percentile(among, [1.0, 99.0])
    if diverging:
        high = max(abs(low), abs(high))
        low = -high
    span = high - low if high > low else 1.0
    scaled = np.clip((values - low) / span, 0.0, 1.0).astype(np.float32)
    return Colouring(label, scaled, float(low), float(high), diverging)


def _quantity(insight: Insight, by: Colour, dimension: int) -> tuple[Array, str]:
    if by == "advantage":
        return insight.column("advantages"), "advantage"
    if by == "reward":
        return insight.column("rewards"), "reward of the step"
    if by == "age":
        return insight.column("iterations").astype(np.float64), "iteration that made it"
    if by == "return":
        return episode_returns(insight), "return of its episode, as far as remembered"
    if by == "size":
        raise ImelError("lessons have a size, memories have none")
    actions = insight.column("actions" if by == "action" else "improved_means")
    if not 0 <= dimension < actions.shape[1]:
        raise ImelError(f"actions have dimensions 0 to {actions.shape[1] - 1}, not {dimension}")
    name = "action taken" if by == "action" else "improved mean μ*"
    several = f", {insight.names.action[dimension]}" if actions.shape[1] > 1 else ""
    return actions[:, dimension], name + several


def episode_returns(insight: Insight) -> Array:
    """For each memory the sum of rewards over those steps of its episode that are remembered."""
    _, member = np.unique(insight.column("episodes"), return_inverse=True)
    totals = np.bincount(member, weights=insight.column("rewards"))
    return np.asarray(totals[member])
