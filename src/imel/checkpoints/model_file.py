"""A model as the tensors and the JSON document of a file: gathered, checked, and put back."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel.checkpoints import checkpoint
from imel.checkpoints.contents import check_tensors
from imel.checkpoints.space_tensors import spaces_to_tensors
from imel.errors import CheckpointError
from imel.policies import POLICIES
from imel.policies.refusal import checked_settings

if TYPE_CHECKING:
    from imel.checkpoints.saving import SavedAlgorithm

MODULES = ("policy", "critic", "return_scale")
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
            checked_settings(policy_class, document["settings"])
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


# --- tensors ---


def model_tensors(model: SavedAlgorithm) -> dict[str, Tensor]:
    """Weights, memory, normaliser, optimisers, random states and spaces, by flat name."""
    tensors = spaces_to_tensors(model.observation_space, model.action_space)
    for name in MODULES:
        tensors |= checkpoint.prefixed(name, getattr(model, name).state_dict())
    for name in model.optimizer_names:
        state = getattr(model, name).state_dict()["state"]  # Adam's moments and steps, by parameter
        tensors |= {f"{name}/{i}/{key}": t for i, held in state.items() for key, t in held.items()}
    return tensors | generators_of(model)


def generators_of(model: SavedAlgorithm) -> dict[str, Tensor]:
    """Return the random states, by flat name."""
    return {
        "generators/algorithm": model.generator.get_state(),
        "generators/policy": model.policy.generator.get_state(),
    }


def load_tensors(
    model: SavedAlgorithm, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]
) -> None:
    """What `model_tensors` gathered. All is checked before anything is changed."""
    expected = model_tensors(model)
    shapes = model.policy.shapes_for(checkpoint.under("policy", tensors))
    expected |= checkpoint.prefixed("policy", shapes)
    for name in model.optimizer_names:  # Adam has its moments from the first step on, or none
        if checkpoint.under(name, tensors):
            moments = _adam_state(getattr(model, name))
            expected |= checkpoint.prefixed(name, moments)
        else:
            expected = {key: t for key, t in expected.items() if not key.startswith(f"{name}/")}
    check_tensors(expected, tensors, "the model", path)
    for name in MODULES:
        getattr(model, name).load_state_dict(checkpoint.under(name, tensors))
    for name in model.optimizer_names:
        _load_optimizer(getattr(model, name), checkpoint.under(name, tensors))
    model.generator.set_state(tensors["generators/algorithm"])
    model.policy.generator.set_state(tensors["generators/policy"])


def _adam_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return tensors with the names, shapes and types of Adam's state after a step."""
    return {
        f"{i}/{name}": torch.zeros(()) if name == "step" else parameter
        for i, parameter in enumerate(optimizer.param_groups[0]["params"])
        for name in ("step", "exp_avg", "exp_avg_sq")
    }


def _load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load Adam's moments and step counts, named by the number of the parameter."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split("/")
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
