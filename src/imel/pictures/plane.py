"""The data of the policy picture: a plane through state space, the policy on it, the memories.

It is the only place where the picture meets the model; `imel.pictures.surface` draws plain arrays.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import SettingsError
from imel.pictures.surface import PolicySurface
from imel.policies import Policy
from imel.policies.names import DimensionNames

Array = NDArray[np.float64]

_CELLS = 140
"""Points of the grid along each axis."""
_LABEL_WIDTH = 72
"""Characters on a line of an axis' label."""
_CHUNK = 1024
"""States the policy answers for at a time: kernels against a large memory take room."""


@dataclass(frozen=True)
class Plane:
    """Two directions in state space, with coordinates for states and states for coordinates."""

    policy: Policy
    """Whose memories and normaliser the plane was made from."""
    labels: tuple[str, str]
    origin: Tensor  # [d_s] where both coordinates are zero
    directions: Tensor  # [2, d_s] orthonormal, or zero where the space has no second dimension
    normalised: bool
    """Whether the plane lies in normalised or in raw state space."""

    def coordinates(self, states: Tensor) -> Array:
        """Project raw states onto the plane."""
        space = self.policy.normaliser(states) if self.normalised else states
        return as_array((space - self.origin) @ self.directions.T)  # [N, 2]

    def states(self, coordinates: Array) -> Tensor:
        """Return the raw states at coordinates; other components are at the memories' mean."""
        along = torch.as_tensor(coordinates, dtype=torch.float32, device=self.origin.device)
        space = self.origin + along @ self.directions
        return self.policy.normaliser.inverse(space) if self.normalised else space


View = tuple[Plane, Array, Array]
"""A plane with the part of it that is shown: the coordinates of columns and rows."""


def common_view(policies: Sequence[Policy], names: DimensionNames) -> View:
    """Return the plane of the last policy, as far as the memories of all policies reach."""
    plane = state_plane(policies[-1], names)
    places = [plane.coordinates(policy.memory.column("states")) for policy in policies]
    x, y = (_axis(np.concatenate(places)[:, i]) for i in range(2))
    return plane, x, y


def policy_surface(
    policy: Policy,
    title: str,
    names: DimensionNames,
    action: int | None = None,
    view: View | None = None,
) -> PolicySurface:
    """Compute the policy's mean over a plane, for one dimension of the action.

    Where actions are discrete: the probability of one option.
    """
    memory, shown = policy.memory, policy.distribution.shown
    improved = shown(as_array(memory.column("improved_means")))
    choice = choose_action(policy, improved, names, action)
    chosen, states = choice.dimension, memory.column("states")
    plane, x, y = common_view([policy], names) if view is None else view
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    means = shown(act_at(policy, plane.states(grid)))
    return PolicySurface(
        title=title + choice.note,
        axis_labels=plane.labels,
        action_label=choice.label,
        x=x,
        y=y,
        means=means[:, chosen].reshape(len(y), len(x)),
        positions=plane.coordinates(states),
        old_means=shown(as_array(memory.column("means")))[:, chosen],
        improved_means=improved[:, chosen],
        policy_means=shown(act_at(policy, states))[:, chosen],
        span=policy.distribution.span,
    )


def state_plane(policy: Policy, names: DimensionNames) -> Plane:
    """The state's own two dimensions, or the first two principal components of the memories."""
    states = policy.memory.column("states")
    if states.shape[1] == 2:
        identity = torch.eye(2, device=states.device)
        labels = (names.state[0], names.state[1])
        return Plane(policy, labels, torch.zeros_like(states[0]), identity, False)
    return principal_plane(policy, states, names)


def principal_plane(policy: Policy, states: Tensor, names: DimensionNames) -> Plane:
    """The first two principal components of raw states, in normalised state space."""
    origin, directions, shares = principal_components(policy.normaliser(states))
    labels = ["no second dimension", "no second dimension"]
    for i in range(min(2, states.shape[1])):
        labels[i] = _component_label(i, float(shares[i]), directions[i], names.state)
    return Plane(policy, (labels[0], labels[1]), origin.float(), directions.float(), True)


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of rows [n, d], the two directions of largest variance [2, d], their shares of it."""
    rows = rows.double()
    origin = rows.mean(dim=0)
    centred = rows - origin
    values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    directions, shares = rows.new_zeros(2, len(origin)), rows.new_zeros(2)
    for i in range(min(2, len(values))):
        direction = vectors[:, -1 - i]
        # A component's sign is arbitrary: fixed, the same run always gives the same picture
        directions[i] = direction * direction[direction.abs().argmax()].sign()
        shares[i] = values[-1 - i] / values.sum().clamp_min(1e-12)
    return origin, directions, shares


def _component_label(number: int, share: float, direction: Tensor, names: Sequence[str]) -> str:
    largest = direction.abs().argsort(descending=True)[:3]
    terms = ", ".join(f"{direction[j]:+.2f} {names[int(j)]}" for j in largest)
    more = ", …" if direction.numel() > 3 else ""
    heading = f"component {number + 1} ({share:.0%} of variance)"
    return f"{heading}\n{textwrap.fill(terms + more, _LABEL_WIDTH)}"


@dataclass(frozen=True)
class Shown:
    """The dimension of the action that is shown."""

    dimension: int
    note: str
    """A note on the choice, where there is one."""
    label: str


def choose_action(
    policy: Policy, improved: Array, names: DimensionNames, action: int | None
) -> Shown:
    """Choose the dimension of the action, or the option of a discrete one, that is shown."""
    count = improved.shape[1]
    if action is not None and not 0 <= action < count:
        raise SettingsError(f"action={action} is not between 0 and {count - 1}")
    if count == 1:
        return Shown(0, "", names.action[0])
    chosen = int(improved.var(axis=0).argmax()) if action is None else action
    name, number = names.action[chosen], f"action {chosen}"
    if policy.distribution.sizes:
        label = f"probability of: {name}"
        return Shown(chosen, f", {label}", label)
    named = "" if name == number else f", {name}"
    why = ", whose μ* varies most" if action is None else ""
    return Shown(chosen, f": {number} of {count}{named}{why}", name)


def _axis(coordinates: Array) -> Array:
    """The range in which the memories lie, but for stray ones."""
    low, high = np.percentile(coordinates, [0.5, 99.5])
    margin = 0.06 * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, _CELLS)


def act_at(policy: Policy, states: Tensor) -> Array:
    """Compute a policy's means at many raw states, chunk by chunk."""
    chunks = (states[i : i + _CHUNK] for i in range(0, len(states), _CHUNK))
    return np.concatenate([as_array(policy.act(chunk)[0]) for chunk in chunks])


def as_array(tensor: Tensor) -> Array:
    """Convert a tensor to a float64 array."""
    return tensor.detach().cpu().double().numpy()
