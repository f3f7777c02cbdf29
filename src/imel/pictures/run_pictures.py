"""The pictures of a run: its curve and its policy, one update, and the policy over training.

It is here that pictures meet the model; they are drawn of plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imel.algorithm import IMeL
from imel.environments.playing import names_in
from imel.errors import ImelError, SettingsError
from imel.pictures.curve import curve_figure, read_curve
from imel.pictures.plane import Plane, as_array, principal_plane, state_plane
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

View = tuple[Plane, Array, Array]
"""A plane with the part of it that is shown: the coordinates of columns and rows."""


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
    normaliser, states = policy.normaliser, memory.column("states")[newest]
    plane = principal_plane(states, normaliser, normaliser.inverse, names.state)
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
    view = view_of(policies, names)
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


def view_of(policies: Sequence[Policy], names: DimensionNames) -> View:
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
    plane, x, y = view_of([policy], names) if view is None else view
    experiences = _experiences(policy, title, names, action, plane)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    means = policy.distribution.shown(_act(policy, plane.states(grid)))
    chosen = means[:, experiences["dimension"]].reshape(len(y), len(x))
    return PolicySurface(**experiences, x=x, y=y, means=chosen)


def _experiences(
    policy: Policy,
    title: str,
    names: DimensionNames,
    action: int | None,
    plane: Plane,
    rows: Any = slice(None),
) -> dict[str, Any]:
    """Return the fields of an `UpdateStep` of some rows of the memory."""
    states, old, improved = (
        policy.memory.column(name)[rows] for name in ("states", "means", "improved_means")
    )
    shown = policy.distribution.shown
    changed = shown(as_array(improved))
    chosen, note, label = _choose_action(policy, changed, names, action)
    return {
        "title": title + note,
        "axis_labels": plane.labels,
        "action_label": label,
        "positions": plane.coordinates(states),
        "old_means": shown(as_array(old))[:, chosen],
        "improved_means": changed[:, chosen],
        "policy_means": shown(_act(policy, states))[:, chosen],
        "span": policy.distribution.span,
        "dimension": chosen,
    }


def _choose_action(
    policy: Policy, improved: Array, names: DimensionNames, action: int | None
) -> tuple[int, str, str]:
    """Return the dimension of the action or the option that is shown, a note on it, its label."""
    count = improved.shape[1]
    if action is not None and not 0 <= action < count:
        raise SettingsError(f"action={action} is not between 0 and {count - 1}")
    chosen = int(improved.var(axis=0).argmax()) if action is None else action
    kind, letter = ("probability of: ", "p") if policy.distribution.sizes else ("", "μ")
    label = kind + names.action[chosen]
    if count == 1:
        return chosen, "", label
    number = f"action {chosen}"
    named = "" if label == number else f", {label}"
    why = f", whose {letter}* varies most" if action is None else ""
    return chosen, f": {number} of {count}{named}{why}", label


def _act(policy: Policy, states: Tensor) -> Array:
    """Compute a policy's means at many raw states, chunk by chunk."""
    chunks = torch.split(states, _CHUNK)
    return np.concatenate([as_array(policy.act(chunk)[0]) for chunk in chunks])
