"""A whole model as tensors and plain data, and back: what `IMeL.save` and `IMeL.load` exchange."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel import checkpoint
from imel.errors import CheckpointError

if TYPE_CHECKING:
    from imel.algorithm import IMeL

MODULES = ("policy", "critic", "return_scale")
OPTIMIZERS = ("optimizer", "critic_optimizer")


def model_tensors(model: IMeL) -> dict[str, Tensor]:
    """Weights, memory, normaliser, optimisers, random states and spaces, by flat name."""
    tensors = checkpoint.spaces_to_tensors(model.observation_space, model.action_space)
    for name in MODULES:
        tensors |= checkpoint.prefixed(name, getattr(model, name).state_dict())
    for name in OPTIMIZERS:
        state = checkpoint.optimizer_to_tensors(getattr(model, name))
        tensors |= checkpoint.prefixed(name, state)
    tensors["generators/algorithm"] = model.generator.get_state()
    tensors["generators/policy"] = model.policy.generator.get_state()
    return tensors


def load_tensors(model: IMeL, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """What `model_tensors` gathered. All is checked before anything is changed."""
    expected = model_tensors(model)
    for name in OPTIMIZERS:  # Adam has its moments from the first step on: all of them, or none
        if checkpoint.under(name, tensors):
            moments = _adam_state(getattr(model, name))
            expected |= checkpoint.prefixed(name, moments)
        else:
            expected = {key: t for key, t in expected.items() if not key.startswith(f"{name}/")}
    checkpoint.check_tensors(expected, tensors, "the model", path)
    for name in MODULES:
        getattr(model, name).load_state_dict(checkpoint.under(name, tensors))
    for name in OPTIMIZERS:
        checkpoint.load_optimizer(getattr(model, name), checkpoint.under(name, tensors))
    model.generator.set_state(tensors["generators/algorithm"])
    model.policy.generator.set_state(tensors["generators/policy"])


def _adam_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """The names, shapes and types of Adam's state once it has made a step."""
    state: dict[str, Tensor] = {}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        state |= {
            f"{i}/step": torch.zeros(()),
            f"{i}/exp_avg": parameter,
            f"{i}/exp_avg_sq": parameter,
        }
    return state


def model_document(model: IMeL) -> dict[str, Any]:
    """Configuration and progress, as JSON."""
    return {
        "kind": "model",
        "policy": model.policy_class.__name__,
        "policy_arguments": model.policy._get_constructor_parameters(),
        "policy_kwargs": model.policy_kwargs,
        "settings": model.settings.as_json(),
        "seed": model.seed,
        "n_envs": model.n_envs,
        "stats_window_size": model._stats_window_size,
        "progress": {
            "num_timesteps": model.num_timesteps,
            "learned_timesteps": model.learned_timesteps,
            "total_timesteps": model._total_timesteps,
            "progress_remaining": model._current_progress_remaining,
            "iteration": model.iteration,
            "faults": model.faults,
            "n_updates": model._n_updates,
            "next_episode": model.clock.next_episode,
            "episodes": [
                {key: float(value) for key, value in episode.items()}
                for episode in model.ep_info_buffer or ()
            ],
            "successes": [float(success) for success in model.ep_success_buffer or ()],
        },
    }


def require_entries(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a document that `model_document` cannot have made."""
    plain = {"policy_kwargs": dict, "settings": dict, "progress": dict}
    checkpoint.require_entries(document, plain, path)
    checkpoint.require_entries(document["progress"], {"episodes": list, "successes": list}, path)
    progress = document["progress"]
    numbers = {
        "seed": (0 if document.get("seed") is None else document["seed"], 0, 2**32 - 1),
        "n_envs": (document.get("n_envs"), 1, 2**20),
        "stats_window_size": (document.get("stats_window_size"), 1, 2**31),
        **{name: (progress.get(name), 0, 2**62) for name in _COUNTERS},
    }
    for name, (value, low, high) in numbers.items():
        if type(value) is not int or not low <= value <= high:
            raise CheckpointError(f"{path} has a manifest without a valid '{name}'")
    share = progress.get("progress_remaining")
    entries = [*progress["successes"], share]
    for episode in progress["episodes"]:
        entries += episode.values() if isinstance(episode, dict) else [episode, None]
    if not all(type(entry) in (int, float) for entry in entries):
        raise CheckpointError(f"{path} has a manifest with invalid episodes or progress")


_COUNTERS = (
    "num_timesteps",
    "learned_timesteps",
    "total_timesteps",
    "iteration",
    "faults",
    "n_updates",
    "next_episode",
)


def restore_progress(model: IMeL, progress: Mapping[str, Any]) -> None:
    """Counters and episode statistics as they were saved."""
    model.num_timesteps = progress["num_timesteps"]
    model.learned_timesteps = progress["learned_timesteps"]
    model._total_timesteps = progress["total_timesteps"]
    model._current_progress_remaining = progress["progress_remaining"]
    model.iteration = progress["iteration"]
    model.faults = progress["faults"]
    model._n_updates = progress["n_updates"]
    model.clock.next_episode = progress["next_episode"]
    model.ep_info_buffer = deque(progress["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(progress["successes"], maxlen=model._stats_window_size)
