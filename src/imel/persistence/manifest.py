"""The JSON document of a model: configuration and progress, checked where it is read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imel.errors import CheckpointError
from imel.persistence import checkpoint
from imel.policy import POLICIES
from imel.policy.refusal import refuse_unused

if TYPE_CHECKING:
    from imel.persistence.saving import SavedAlgorithm

_COUNTERS = {
    **{name: name for name in ("num_timesteps", "learned_timesteps", "iteration", "faults")},
    "total_timesteps": "_total_timesteps",
    "n_updates": "_n_updates",
}
"""Names of counters in a file, and the model's attributes behind them."""


def model_document(model: SavedAlgorithm) -> dict[str, Any]:
    """Configuration and progress, as JSON."""
    return {
        "kind": "model",
        "policy": model.policy_class.__name__,
        "policy_arguments": model.policy._get_constructor_parameters(),
        "policy_kwargs": model.policy_kwargs,
        "settings": model.settings.as_json(),
        "seed": model.seed,
        "run": {"id": model.run_id, "plan": dict(model.plan)},
        "circumstances": {**checkpoint.circumstances(), "device": str(model.device)},
        "n_envs": model.n_envs,
        "stats_window_size": model._stats_window_size,
        "progress": progress_of(model),
    }


def progress_of(model: SavedAlgorithm) -> dict[str, Any]:
    """Return counters and episode statistics, as JSON."""
    return {
        **{name: getattr(model, attribute) for name, attribute in _COUNTERS.items()},
        "next_episode": model.clock.next_episode,
        "progress_remaining": model._current_progress_remaining,
        "episodes": [
            {key: float(value) for key, value in episode.items()}
            for episode in model.ep_info_buffer or ()
        ],
        "successes": [float(success) for success in model.ep_success_buffer or ()],
    }


def require_entries(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a document that `model_document` cannot have made."""
    if document["kind"] != "model":
        raise CheckpointError(f"{path} holds a {document['kind']}, not a whole model")
    plain = {"policy_kwargs": dict, "settings": dict, "progress": dict, "run": dict}
    checkpoint.require_entries(document, plain, path)
    checkpoint.require_entries(document["progress"], {"episodes": list, "successes": list}, path)
    checkpoint.require_entries(document["run"], {"id": str, "plan": dict}, path)
    policy_class = POLICIES.get(document["policy"])
    if policy_class is not None:  # a class of the user's own checks when it is built
        with checkpoint.building(path):
            refuse_unused(document["settings"], policy_class)
            policy_class.settings_class().updated(document["settings"], document["policy"])
    progress = document["progress"]
    numbers = {
        "seed": (0 if document.get("seed", -1) is None else document.get("seed"), 0, 2**32 - 1),
        "n_envs": (document.get("n_envs"), 1, 2**20),
        "stats_window_size": (document.get("stats_window_size"), 1, 2**31),
        **{name: (progress.get(name), 0, 2**62) for name in (*_COUNTERS, "next_episode")},
    }
    for name, (value, low, high) in numbers.items():
        if type(value) is not int or not low <= value <= high:
            raise CheckpointError(f"{path} has a manifest without a valid '{name}'")
    entries = [*progress["successes"], progress.get("progress_remaining")]
    for episode in progress["episodes"]:
        entries += episode.values() if isinstance(episode, dict) else [None]
    if not all(type(entry) in (int, float) and abs(entry) <= 1e300 for entry in entries):
        raise CheckpointError(f"{path} has a manifest with invalid episodes or progress")


def restore_progress(model: SavedAlgorithm, progress: Mapping[str, Any]) -> None:
    """Counters and episode statistics as they were saved."""
    for name, attribute in _COUNTERS.items():
        setattr(model, attribute, progress[name])
    model.clock.next_episode = progress["next_episode"]
    model._current_progress_remaining = progress["progress_remaining"]
    model.ep_info_buffer = deque(progress["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(progress["successes"], maxlen=model._stats_window_size)
