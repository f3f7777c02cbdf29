"""Pictures of learning itself: one update step, and the policy from checkpoint to checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from imel.errors import ImelError
from imel.pictures.plane import (
    act_at,
    as_array,
    choose_action,
    common_view,
    coordinates,
    policy_surface,
    principal_plane,
)
from imel.pictures.surface import PolicySurface
from imel.pictures.update import UpdateStep
from imel.policy import ImelPolicy
from imel.runs.stored import StoredModel, find_files

_MOST_FRAMES = 60


def models_of(place: Path) -> tuple[str, list[StoredModel]]:
    """A name for a run, and its models with a known iteration, the oldest first."""
    files = find_files(place, None)
    usable = {model.iteration: model for model in files.models if model.iteration is not None}
    if not usable:
        raise ImelError(f"no checkpoint or model in {place} says how far it was trained")
    env = [] if files.env is None else [files.env]
    return ", ".join([*env, files.title]), [usable[key] for key in sorted(usable)]


def update_step(place: Path, iteration: int | None, action: int | None) -> UpdateStep:
    """The last update that a checkpoint has seen, from what its memory holds of it."""
    name, models = models_of(place)
    wanted = models[-1].iteration if iteration is None else iteration
    assert wanted is not None
    nearest = min(models, key=lambda model: abs((model.iteration or 0) - wanted))
    policy = ImelPolicy.load(str(nearest.path))
    memory = policy.memory
    if not len(memory) or memory.holds_prior:
        raise ImelError(f"{nearest.path.name} has made no update yet")
    newest = memory.column("iterations") == memory.column("iterations").max()
    states, improved = (memory.column(name)[newest] for name in ("states", "improved_means"))
    chosen, note = choose_action(improved, action)
    plane = principal_plane(policy, states)
    return UpdateStep(
        title=f"{name}: update {nearest.iteration}, {len(states):,} new experiences{note}",
        axis_label=plane.labels[0],
        action_label="action" if improved.shape[1] == 1 else f"action {chosen}",
        positions=coordinates(plane, policy, states)[:, 0],
        old_means=as_array(memory.column("means")[newest][:, chosen]),
        improved_means=as_array(improved[:, chosen]),
        new_means=act_at(policy, states)[:, chosen],
    )


def training_surfaces(place: Path, action: int | None) -> list[PolicySurface]:
    """The policy of every checkpoint over the plane of the last one."""
    name, models = models_of(place)
    if len(models) < 2:
        raise ImelError(
            f"{place} has a single model: an animation needs more checkpoints. Train with "
            "--checkpoint-every 5 --checkpoints-kept 100"
        )
    chosen = np.unique(np.linspace(0, len(models) - 1, _MOST_FRAMES).astype(int))
    shown = [models[i] for i in chosen]
    policies = [ImelPolicy.load(str(model.path)) for model in shown]
    dimension, note = choose_action(policies[-1].memory.column("improved_means"), action)
    view = common_view(policies)
    surfaces = []
    for model, policy in zip(shown, policies, strict=True):
        steps = "" if model.timesteps is None else f", {model.timesteps:,} steps"
        title = f"{name}{note}\niteration {model.iteration}{steps}"
        surfaces.append(replace(policy_surface(policy, "", dimension, view), title=title))
    return surfaces
