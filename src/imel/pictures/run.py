"""The pictures of a run: its curve and its policy, one update, and the policy over training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from imel.algorithm import IMeL
from imel.environments.playing import names_in
from imel.errors import ImelError
from imel.pictures.curve import curve_figure, read_curve
from imel.pictures.plane import (
    as_array,
    choose_action,
    common_view,
    policy_surface,
    principal_plane,
)
from imel.pictures.surface import PolicySurface, surface_figure
from imel.pictures.update import UpdateStep
from imel.policies import Policy
from imel.runs import layout
from imel.runs.stored import StoredModel, StoredRun, find_run

DOTS_PER_INCH = 130
_MOST_FRAMES = 60


def draw_run(
    folder: Path, model: IMeL, config: Mapping[str, Any], action: int | None = None
) -> list[Path]:
    """Draw policy.png and, if there is a record of the training, curve.png."""
    seed = f"seed {config['seed']}" if "seed" in config else None
    title = ", ".join(filter(None, [config.get("env"), type(model.policy).__name__, seed]))
    names = names_in(config.get("env"), model.policy.dimensions)
    surface = policy_surface(model.policy, title, names, action)
    figures = {layout.POLICY: surface_figure(surface)}
    monitor = folder / layout.MONITOR
    if monitor.is_file():
        curve = read_curve(monitor, folder / layout.EVALUATION, title, folder / layout.EVALUATIONS)
        figures[layout.CURVE] = curve_figure(curve)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in figures]


def models_of(files: StoredRun) -> tuple[str, list[StoredModel]]:
    """Return a run's name and its models with a known iteration, the oldest first."""
    usable = {model.iteration: model for model in files.models if model.iteration is not None}
    if not usable:
        raise ImelError(f"no checkpoint or model in {files.place} says how far it was trained")
    name = ", ".join(filter(None, [files.env, files.title]))
    return name, [usable[key] for key in sorted(usable)]


def update_step(place: Path, iteration: int | None, action: int | None) -> UpdateStep:
    """Return the last update before a checkpoint, from what its memory holds."""
    files = find_run(place)
    name, models = models_of(files)
    wanted = models[-1].iteration if iteration is None else iteration
    assert wanted is not None
    nearest = min(models, key=lambda model: abs((model.iteration or 0) - wanted))
    policy = Policy.load(str(nearest.path))
    memory = policy.memory
    if not len(memory) or memory.holds_prior:
        raise ImelError(f"{nearest.path.name} has made no update yet")
    newest = memory.column("iterations") == memory.column("iterations").max()
    states, shown = memory.column("states")[newest], policy.distribution.shown
    old, improved = (
        shown(as_array(memory.column(name)[newest])) for name in ("means", "improved_means")
    )
    names = names_in(files.env, policy.dimensions)
    choice = choose_action(policy, improved, names, action)
    chosen = choice.dimension
    plane = principal_plane(policy, states, names)
    return UpdateStep(
        title=f"{name}: update {nearest.iteration}, {len(states):,} new experiences{choice.note}",
        axis_label=plane.labels[0],
        action_label=choice.label,
        positions=plane.coordinates(states)[:, 0],
        old_means=old[:, chosen],
        improved_means=improved[:, chosen],
        new_means=shown(as_array(policy.act(states)[0]))[:, chosen],
        span=policy.distribution.span,
    )


def training_surfaces(place: Path, action: int | None) -> list[PolicySurface]:
    """Compute the policy of every checkpoint over the plane of the last one."""
    files = find_run(place)
    name, models = models_of(files)
    if len(models) < 2:
        raise ImelError(
            f"{place} has a single model: an animation needs more checkpoints. Train with "
            "--checkpoint-every 5 --checkpoints-kept 100"
        )
    chosen = np.unique(np.linspace(0, len(models) - 1, _MOST_FRAMES).astype(int))
    shown = [models[i] for i in chosen]
    policies = [Policy.load(str(model.path)) for model in shown]
    last = policies[-1]
    improved = last.distribution.shown(as_array(last.memory.column("improved_means")))
    names = names_in(files.env, last.dimensions)
    choice = choose_action(last, improved, names, action)
    view = common_view(policies, names)
    surfaces = []
    for model, policy in zip(shown, policies, strict=True):
        steps = "" if model.timesteps is None else f", {model.timesteps:,} steps"
        title = f"{name}{choice.note}\niteration {model.iteration}{steps}"
        surface = policy_surface(policy, "", names, choice.dimension, view)
        surfaces.append(replace(surface, title=title))
    return surfaces
