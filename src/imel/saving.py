"""A whole model as tensors and plain data, and back: what `IMeL.save` and `IMeL.load` exchange."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from imel import checkpoint

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
    """What `model_tensors` gathered."""
    for name in MODULES:
        checkpoint.load_module(getattr(model, name), tensors, name, path)
    for name in OPTIMIZERS:
        checkpoint.load_optimizer(getattr(model, name), checkpoint.under(name, tensors))
    model.generator.set_state(tensors["generators/algorithm"])
    model.policy.generator.set_state(tensors["generators/policy"])


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
            "total_timesteps": model._total_timesteps,
            "progress_remaining": model._current_progress_remaining,
            "iteration": model.iteration,
            "n_updates": model._n_updates,
            "next_episode": model.clock.next_episode,
            "episodes": [
                {key: float(value) for key, value in episode.items()}
                for episode in model.ep_info_buffer or ()
            ],
            "successes": [float(success) for success in model.ep_success_buffer or ()],
        },
    }


def restore_progress(model: IMeL, progress: Mapping[str, Any]) -> None:
    """Counters and episode statistics as they were saved."""
    model.num_timesteps = progress["num_timesteps"]
    model._total_timesteps = progress["total_timesteps"]
    model._current_progress_remaining = progress["progress_remaining"]
    model.iteration = progress["iteration"]
    model._n_updates = progress["n_updates"]
    model.clock.next_episode = progress["next_episode"]
    model.ep_info_buffer = deque(progress["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(progress["successes"], maxlen=model._stats_window_size)
