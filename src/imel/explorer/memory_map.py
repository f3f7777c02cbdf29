"""The map: the rows of a model as points in a plane, and the quantity that colours them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imel.explorer.insight import Answer, Array, Insight
from imel.pictures.run_pictures import Plane, principal_components

INSIDE = 0.9
"""The rows fill this part of the map's [-1, 1] square."""


@dataclass(frozen=True, eq=False)
class Map(Plane):
    """A plane for the rows of a model, on which also those of another one may be placed."""

    points: Callable[[Any], Tensor] = torch.as_tensor
    """Maps an insight of the same kind to its rows in the space [N, d]."""

    def rows(self, insight: Insight) -> Array:
        """Return where the rows of a model lie."""  # [N, 2]
        points = Plane(self.labels, self.origin, self.directions)
        return points.coordinates(self.points(insight))


def make_map(insight: Insight, projection: str) -> Map:
    """Return a map of a model's rows: of largest variance, or of two dimensions of a space."""
    insight.require_rows()
    space = insight.space(projection)
    points = space.points(insight)
    if space.axes is None:
        origin, directions, shares = principal_components(points)
        first, second = (f"component {i + 1} ({float(shares[i]):.0%})" for i in range(2))
        plane = Plane((first, second), origin.float(), directions.float())
    else:
        plane = Plane(space.axes, torch.zeros(2), torch.eye(2))
    # Among many memories some are far out: they may lie outside
    ends = [0.2, 99.8] if space.states else [0.0, 100.0]
    low, high = torch.from_numpy(np.percentile(plane.coordinates(points), ends, axis=0)).float()
    scale = 2.0 * INSIDE / (high - low).clamp_min(1e-9)  # [2]
    origin = plane.origin + (low + high) / 2 @ plane.directions
    directions = plane.directions * scale[:, None]
    states = space.states or (lambda states: states.new_zeros(0, len(origin)))
    return Map(plane.labels, origin, directions, states, points=space.points)


def colouring(insight: Insight, frame: Insight, by: str, dimension: int = 0) -> Answer:
    """Return the colour of every row in [0, 1], on the scale of the frame's rows.

    The outermost percent at either end share the end's colour. A quantity with a sign diverges:
    0.5 is zero.
    """
    for each in (insight, frame):
        each.require_rows()
    values, label = insight.quantity(by, dimension)
    low, high = (float(end) for end in np.percentile(frame.quantity(by, dimension)[0], [1, 99]))
    diverging = by in ("advantage", "action", "improved")
    if diverging:
        high = max(abs(low), abs(high))
        low = -high
    scaled = np.clip((values - low) / (high - low if high > low else 1.0), 0.0, 1.0)
    document = {"label": label, "low": low, "high": high, "diverging": diverging}
    return document, {"values": scaled}
