"""A whole model in a file and back: its document, and the checks before anything is believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from imel import registry
from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint
from imel.checkpoints.contents import check_tensors
from imel.checkpoints.policy_file import require_finite_answers
from imel.checkpoints.snapshot import PART, check_environments
from imel.checkpoints.space_tensors import spaces_to_tensors
from imel.data.critic import Critic
from imel.errors import CheckpointError
from imel.learner import COUNTERS, MODULES, LearnerState

if TYPE_CHECKING:
    from imel.algorithm import IMeL


def contents_of(model: IMeL) -> checkpoint.Contents:
    """Return what a file of a model holds."""
    tensors = spaces_to_tensors(model.observation_space, model.action_space)
    return tensors | model.learner.tensors(), _document(model)


def _document(model: IMeL) -> dict[str, Any]:
    """Return configuration and progress, as JSON."""
    return {
        "kind": "model",
        "policy": registry.name_of(type(model.policy)),
        "settings": model.settings.as_json(),
        "seed": model.seed,
        "run": {"id": model.run_id, "plan": dict(model.plan)},
        "circumstances": {**checkpoint.circumstances(), "device": str(model.device)},
        "n_envs": model.n_envs,
        "stats_window_size": model._stats_window_size,
        "progress": model.learner.progress(),
    }


def require_model(file: Checkpoint) -> None:
    """Refuse a file whose document `contents_of` cannot have made."""
    document, path = file.document, file.path
    if document["kind"] != "model":
        raise CheckpointError(f"{path} holds a {document['kind']}, not a whole model")
    checkpoint.require_entries(document, {"progress": dict, "run": dict}, path)
    checkpoint.require_entries(document["progress"], {"episodes": list, "successes": list}, path)
    checkpoint.require_entries(document["run"], {"id": str, "plan": dict}, path)
    progress = document["progress"]
    numbers = {
        "seed": (0 if document.get("seed", -1) is None else document.get("seed"), 0, 2**32 - 1),
        "n_envs": (document.get("n_envs"), 1, 2**20),
        "stats_window_size": (document.get("stats_window_size"), 1, 2**31),
        **{name: (progress.get(name), 0, 2**62) for name in (*COUNTERS, "next_episode")},
    }
    for name, (value, low, high) in numbers.items():
        if type(value) is not int or not low <= value <= high:
            raise CheckpointError(f"{path} has a manifest without a valid '{name}'")
    entries = [*progress["successes"], progress.get("progress_remaining")]
    for episode in progress["episodes"]:
        entries += episode.values() if isinstance(episode, dict) else [None]
    if not all(type(entry) in (int, float) and abs(entry) <= 1e300 for entry in entries):
        raise CheckpointError(f"{path} has a manifest with invalid episodes or progress")


def check_sizes(model: IMeL, file: Checkpoint) -> None:
    """Refuse what a file claims about sizes before anything is allocated for it."""
    found = file.under("policy")
    with torch.device("meta"), checkpoint.building(file.path):  # which holds nothing
        spaces = model.observation_space, model.action_space
        policy = model.policy_class(*spaces, model.settings)
        shapes = {
            "policy": policy.shapes_for(found),
            "critic": Critic(policy.state_dim, model.settings.critic_hidden).state_dict(),
        }
    for part, expected in shapes.items():
        check_tensors(expected, file.under(part), part, file.path, f"{part}/")


def load_contents(model: IMeL, file: Checkpoint) -> None:
    """Take over tensors and progress. All is checked before anything is changed."""
    load_tensors(model.learner, file)
    if PART in file.document:
        check_environments(model, file)
    model.learner.restore_progress(file.document["progress"], model._stats_window_size)
    model.run_id, model.plan = file.document["run"]["id"], file.document["run"]["plan"]
    require_finite_answers(model.policy, file.path)


def load_tensors(learner: LearnerState, file: Checkpoint) -> None:
    """Take over what learning had changed, if all of it fits."""
    names = (*MODULES, *learner.optimizers, "generators")
    parts = {name: file.under(name) for name in names}
    _check_learner(learner, parts, file.tensors, file.path)
    learner.load(parts)


def _check_learner(
    learner: LearnerState,
    parts: Mapping[str, Mapping[str, Tensor]],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> None:
    others = ("spaces/", f"{PART}/")
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(others)}
    check_tensors(learner.shapes_for(parts), found, "the model", path)
