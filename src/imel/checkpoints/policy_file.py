"""Policies in files: checkpoints of a policy alone, without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import torch

from imel import registry
from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint, Source
from imel.checkpoints.contents import check_tensors
from imel.checkpoints.space_tensors import spaces_from_tensors, spaces_to_tensors
from imel.errors import CheckpointError
from imel.policies.base import Policy

P = TypeVar("P", bound=Policy)


def save_policy(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write a policy to a checkpoint file."""
    tensors = checkpoint.prefixed("policy", policy.state_dict())
    tensors |= spaces_to_tensors(policy.observation_space, policy.action_space)
    document = {
        "kind": "policy",
        "policy": registry.name_of(type(policy)),
        "settings": policy.settings.as_json(),
    }
    checkpoint.write(path, tensors, document)


def load_policy(cls: type[P], source: Source, device: torch.device | str) -> P:
    """Read a policy of some class from a checkpoint of a policy or of a whole model."""
    file = Checkpoint.read(source)
    name = file.document["policy"]
    policy_class = cls if registry.name_of(cls) == name else policy_class_of(file)
    if not issubclass(policy_class, cls):
        raise CheckpointError(f"{file.path} holds a {policy_class.__name__}, not a {cls.__name__}")
    spaces = spaces_from_tensors(file.tensors, file.path)
    state = file.under("policy")
    # On the device that holds nothing first: what a file claims about sizes is not believed
    with checkpoint.building(file.path):
        settings = policy_class.make_settings(file.document["settings"])
        with torch.device("meta"):
            shapes = policy_class(*spaces, settings).shapes_for(state)
    check_tensors(shapes, state, "policy", file.path, "policy/")
    policy = policy_class(*spaces, settings)
    policy.load_state_dict(state)
    require_finite_answers(policy, file.path)
    return policy.to(device)


def policy_class_of(file: Checkpoint) -> type[Policy]:
    """Return the class of the policy in a file, if it is known here: files hold no code."""
    name = file.document["policy"]
    policy_class = registry.loaded_policy(name)
    if policy_class is None:
        raise CheckpointError(
            f"{file.path} holds a policy of its user's own, {name}: import its module before, "
            f"or name it by policy_class=… (commands: --policy {name})"
            if ":" in name
            else f"{file.path} holds a policy that is not installed here: {name}"
        )
    return policy_class


def require_finite_answers(policy: Policy, path: Path) -> None:
    """Refuse a policy whose weights overflow on the way to an action, each in its range."""
    if not len(policy.memory):
        return
    states = torch.zeros(3, policy.state_dim)
    states[1:] = torch.tensor([[1e30], [-1e30]])
    with checkpoint.building(path):
        answers = policy.act(states)
    if not all(bool(answer.isfinite().all()) for answer in answers):
        raise CheckpointError(f"{path} holds a policy whose actions are not finite")
