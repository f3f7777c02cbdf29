"""A plane through a space of states: where states lie on it, and which states lie at a place."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from imel.pictures.style import Array
from imel.policies import Policy
from imel.policies.names import DimensionNames

_LABEL_WIDTH = 72
"""Characters on a line of an axis' label."""

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Plane:
    """Two directions in a space into which raw states are mapped."""

    labels: tuple[str, str]
    origin: Tensor  # [d] where both coordinates are zero
    directions: Tensor  # [2, d] orthonormal, or zero where the space has no second dimension
    space: Map = torch.as_tensor
    """Maps raw states [N, d_s] to the space [N, d]."""
    inverse: Map = torch.as_tensor
    """Maps points of the space to raw states, where that can be done."""

    def project(self, points: Tensor) -> Array:
        """Project points of the space onto the plane."""  # [N, d] -> [N, 2]
        return as_array((points.to(self.origin) - self.origin) @ self.directions.T)

    def coordinates(self, states: Tensor) -> Array:
        """Project raw states onto the plane."""  # [N, d_s] -> [N, 2]
        return self.project(self.space(states))

    def states(self, coordinates: Array) -> Tensor:
        """Return the raw states at coordinates; other components are at the origin's."""
        along = torch.as_tensor(coordinates).to(self.origin)
        return self.inverse(self.origin + along @ self.directions)


def state_plane(policy: Policy, states: Tensor, names: DimensionNames) -> Plane:
    """Return the state's own two dimensions, or the principal components of some raw states."""
    if states.shape[1] != 2:
        normaliser = policy.normaliser
        return principal_plane(states, normaliser, normaliser.inverse, names.state)
    identity = torch.eye(2, device=states.device)
    return Plane((names.state[0], names.state[1]), torch.zeros_like(states[0]), identity)


def principal_plane(
    states: Tensor, space: Map, inverse: Map = torch.as_tensor, names: Sequence[str] = ()
) -> Plane:
    """Return the first two principal components of raw states in a space.

    :param names: of the dimensions of the space, for labels
    """
    origin, directions, shares = principal_components(space(states))
    labels = ["no second dimension"] * 2
    for i in range(min(2, len(origin))):
        labels[i] = f"component {i + 1} ({float(shares[i]):.0%} of variance)"
        largest = directions[i].abs().argsort(descending=True)[: min(3, len(names))]
        # Lines are broken between terms, not in names
        terms = [f"{directions[i, j]:+.2f} {names[int(j)]}".replace(" ", "\xa0") for j in largest]
        terms += ["…"] * (len(names) > 3)
        labels[i] = "\n".join([labels[i], *textwrap.wrap(", ".join(terms), _LABEL_WIDTH)])
    return Plane((labels[0], labels[1]), origin.float(), directions.float(), space, inverse)


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of rows [n, d], the two directions of largest variance, their shares."""
    rows = rows.double()
    origin = rows.mean(dim=0)
    centred = rows - origin
    values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    # Zeros stand for a second dimension that there is not
    directions = functional.pad(vectors.T.flip(0), (0, 0, 0, 1))[:2]
    shares = functional.pad(values.flip(0), (0, 1))[:2] / values.sum().clamp_min(1e-12)
    # A component's sign is arbitrary: fixed, the same run always gives the same picture
    signs = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True)).sign()
    return origin, directions * signs, shares


def as_array(tensor: Tensor) -> Array:
    """Convert a tensor to a float64 array."""
    return tensor.detach().cpu().double().numpy()
