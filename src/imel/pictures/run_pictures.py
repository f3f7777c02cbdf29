"""The pictures of a run: its curve and its policy, one update, and the policy over training.

It is here that pictures meet the model: a policy is looked at over a plane through its states. They
are drawn of plain arrays.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from imel.algorithm import IMeL
from imel.environments.playing import names_in
from imel.errors import ImelError, SettingsError
from imel.pictures.curve import curve_figure, read_curve
from imel.pictures.policy_figures import PolicySurface, UpdateStep, surface_figure
from imel.pictures.style import Array
from imel.policies import Policy
from imel.policies.names import DimensionNames
from imel.runs import layout
from imel.runs.stored import StoredModel, StoredRun

_CELLS = 140
"""Points of a map along each axis."""
_CHUNK = 1024
"""States the policy answers for at a time: kernels against a large memory take room."""
_MOST_FRAMES = 60
_LABEL_WIDTH = 72
"""Characters on a line of an axis' label."""

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Plane:
    """Two directions in a space into which raw states are mapped."""

    labels: tuple[str, str]
    origin: Tensor  # [d] where both coordinates are zero
    directions: Tensor  # [2, d] orthonormal, or zero where the space has no second dimension
    space: Map = torch.as_tensor  # raw states [N, d_s] -> [N, d]
    inverse: Map = torch.as_tensor  # [N, d] -> [N, d_s], where that can be done

    def coordinates(self, states: Tensor) -> Array:
        """Project raw states onto the plane."""  # [N, d_s] -> [N, 2]
        return as_array((self.space(states).to(self.origin) - self.origin) @ self.directions.T)

    def states(self, coordinates: Array) -> Tensor:
        """Return the raw states at coordinates; other components are at the origin's."""
        along = torch.as_tensor(coordinates).to(self.origin)
        return self.inverse(self.origin + along @ self.directions)


View = tuple[Plane, Array, Array]
"""A plane with the part of it that is shown: the coordinates of columns and rows."""


# --- planes ---


def state_plane(policy: Policy, states: Tensor, names: DimensionNames) -> Plane:
    """Return the state's own two dimensions, or the principal components of some raw states."""
    if states.shape[1] != 2:
        return _component_plane(policy, states, names)
    identity = torch.eye(2, device=states.device)
    return Plane((names.state[0], names.state[1]), torch.zeros_like(states[0]), identity)


def _component_plane(policy: Policy, states: Tensor, names: DimensionNames) -> Plane:
    return principal_plane(states, policy.normaliser, policy.normaliser.inverse, names.state)


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


# --- runs ---


def draw_run(
    folder: Path, model: IMeL, config: Mapping[str, Any], action: int | None = None
) -> list[Path]:
    """Draw policy.png and, if there is a record of the training, curve.png."""
    seed = f"seed {config['seed']}" if "seed" in config else None
    title = ", ".join(filter(None, [config.get("env"), type(model.policy).__name__, seed]))
    names = names_in(config.get("env"), model.policy.dimensions)
    figures = {layout.POLICY: surface_figure(policy_surface(model.policy, title, names, action))}
    monitor = folder / layout.MONITOR
    if monitor.is_file():
        curve = read_curve(monitor, folder / layout.EVALUATION, title, folder / layout.EVALUATIONS)
        figures[layout.CURVE] = curve_figure(curve)
    for name, figure in figures.items():
        figure.savefig(folder / name)
    return [folder / name for name in figures]


def update_step(run: StoredRun, iteration: int | None, action: int | None) -> UpdateStep:
    """Return the last update before a checkpoint, from what its memory holds."""
    name, models = _models_of(run)
    wanted = max(models) if iteration is None else iteration
    nearest = min(models, key=lambda known: abs(known - wanted))
    policy = Policy.load(models[nearest].path)
    memory = policy.memory
    if not len(memory) or memory.holds_prior:
        raise ImelError(f"{models[nearest].path.name} has made no update yet")
    newest = memory.column("iterations") == memory.column("iterations").max()
    names = names_in(run.env, policy.dimensions)
    plane = _component_plane(policy, memory.column("states")[newest], names)
    title = f"{name}: update {nearest}, {int(newest.sum()):,} new experiences"
    return UpdateStep(**_experiences(policy, title, names, action, plane, newest))


def training_surfaces(run: StoredRun, action: int | None) -> list[PolicySurface]:
    """Compute the policy of every checkpoint over the plane of the last one."""
    name, models = _models_of(run)
    if len(models) < 2:
        raise ImelError(
            f"{run.place} has a single model: an animation needs more checkpoints. Train with "
            "--checkpoint-every 5 --checkpoints-kept 100"
        )
    chosen = np.unique(np.linspace(0, len(models) - 1, _MOST_FRAMES).astype(int))
    shown = [list(models.values())[i] for i in chosen]
    policies = [Policy.load(model.path) for model in shown]
    names = names_in(run.env, policies[-1].dimensions)
    view = _view_of(policies, names)
    dimension = policy_surface(policies[-1], "", names, action, view).dimension
    titles = [f"{name}\n{model.label}, {model.timesteps or 0:,} steps" for model in shown]
    return [
        policy_surface(policy, title, names, dimension, view)
        for policy, title in zip(policies, titles, strict=True)
    ]


def _models_of(run: StoredRun) -> tuple[str, dict[int, StoredModel]]:
    """Return a run's name and its models by iteration, the oldest first."""
    known = {model.iteration: model for model in run.models if model.iteration is not None}
    if not known:
        raise ImelError(f"no checkpoint or model in {run.place} says how far it was trained")
    return ", ".join(filter(None, [run.env, run.title])), dict(sorted(known.items()))


def _view_of(policies: Sequence[Policy], names: DimensionNames) -> View:
    """Return the plane of the last policy, as far as the memories of all policies reach."""
    remembered = [policy.memory.column("states") for policy in policies]
    plane = state_plane(policies[-1], remembered[-1], names)
    places = np.concatenate([plane.coordinates(states) for states in remembered])
    lows, highs = np.percentile(places, [0.5, 99.5], axis=0)  # but for stray ones
    margins = np.where(highs > lows, 0.06 * (highs - lows), 1.0)
    x, y = np.linspace(lows - margins, highs + margins, _CELLS).T
    return plane, x, y


def policy_surface(
    policy: Policy,
    title: str,
    names: DimensionNames,
    action: int | None = None,
    view: View | None = None,
) -> PolicySurface:
    """Compute the policy's mean over a plane, for one dimension of the action."""
    plane, x, y = view or _view_of([policy], names)
    experiences = _experiences(policy, title, names, action, plane)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    means = _shown_means(policy, plane.states(grid))[:, experiences["dimension"]]
    return PolicySurface(**experiences, x=x, y=y, means=means.reshape(len(y), len(x)))


def _experiences(
    policy: Policy,
    title: str,
    names: DimensionNames,
    action: int | None,
    plane: Plane,
    rows: Any = slice(None),
) -> dict[str, Any]:
    """Return the fields of an `UpdateStep` of some rows of the memory."""
    columns = (policy.memory.column(name)[rows] for name in ("states", "means", "improved_means"))
    states, *changes = columns
    old, improved = (policy.distribution.shown(as_array(means)) for means in changes)
    count = improved.shape[1]
    if action is not None and not 0 <= action < count:
        raise SettingsError(f"action={action} is not between 0 and {count - 1}")
    chosen = int(improved.var(axis=0).argmax()) if action is None else action
    kind, letter = ("probability of: ", "p") if policy.distribution.sizes else ("", "μ")
    name, number = names.action[chosen], f"action {chosen}"
    if count > 1:  # say which one is shown
        title += f": {number} of {count}{'' if name == number else f', {name}'}"
        title += f", whose {letter}* varies most" if action is None else ""
    return {
        "title": title,
        "axis_labels": plane.labels,
        "action_label": kind + name,
        "positions": plane.coordinates(states),
        "old_means": old[:, chosen],
        "improved_means": improved[:, chosen],
        "policy_means": _shown_means(policy, states)[:, chosen],
        "span": policy.distribution.span,
        "dimension": chosen,
    }


def _shown_means(policy: Policy, states: Tensor) -> Array:
    """Compute a policy's means, or probabilities, at many raw states, chunk by chunk."""
    means = [as_array(policy.act(chunk)[0]) for chunk in torch.split(states, _CHUNK)]
    return np.asarray(policy.distribution.shown(np.concatenate(means)))
