"""The tensors of a model: gathered by flat name for a file, checked and put back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel.persistence import checkpoint
from imel.persistence.contents import check_tensors
from imel.persistence.spaces import spaces_to_tensors

if TYPE_CHECKING:
    from imel.persistence.saving import SavedAlgorithm

MODULES = ("policy", "critic", "return_scale")


def model_tensors(model: SavedAlgorithm) -> dict[str, Tensor]:
    """Weights, memory, normaliser, optimisers, random states and spaces, by flat name."""
    tensors = spaces_to_tensors(model.observation_space, model.action_space)
    for name in MODULES:
        tensors |= checkpoint.prefixed(name, getattr(model, name).state_dict())
    for name in model.optimizer_names:
        state = _optimizer_to_tensors(getattr(model, name))
        tensors |= checkpoint.prefixed(name, state)
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


def _optimizer_to_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return Adam's moments and step counts by parameter number."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{key}": value for i, entry in state.items() for key, value in entry.items()}


def _adam_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return tensors with the names, shapes and types of Adam's state after a step."""
    state: dict[str, Tensor] = {}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        state |= {
            f"{i}/step": torch.zeros(()),
            f"{i}/exp_avg": parameter,
            f"{i}/exp_avg_sq": parameter,
        }
    return state


def _load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `_optimizer_to_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split("/")
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
