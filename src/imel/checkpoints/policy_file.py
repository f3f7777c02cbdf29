"""Policies in files: checkpoints of a policy alone, without pickle."""

from __future__ import annotations

import os
from typing import TypeVar

import torch

from imel.checkpoints import checkpoint
from imel.checkpoints.contents import check_tensors
from imel.checkpoints.space_tensors import spaces_from_tensors, spaces_to_tensors
from imel.errors import CheckpointError
from imel.policies import POLICIES
from imel.policies.base import ImelPolicy

P = TypeVar("P", bound=ImelPolicy)


def save_policy(policy: ImelPolicy, path: str) -> None:
    """Write a policy to a checkpoint file."""
    tensors = checkpoint.prefixed("policy", policy.state_dict())
    tensors |= spaces_to_tensors(policy.observation_space, policy.action_space)
    document = {
        "kind": "policy",
        "policy": type(policy).__name__,
        "policy_arguments": policy._get_constructor_parameters(),
    }
    checkpoint.write(path, tensors, document)


def load_policy(cls: type[P], path: str, device: torch.device | str) -> P:
    """Read a policy of some class from a checkpoint of a policy or of a whole model."""
    tensors, document = checkpoint.read(path)
    name = document["policy"]
    policy_class = cls if cls.__name__ == name else POLICIES.get(name)
    if policy_class is None or not issubclass(policy_class, cls):
        raise CheckpointError(f"{path} holds a {name}, not a {cls.__name__}")
    observation_space, action_space = spaces_from_tensors(tensors, path)
    arguments, state = document["policy_arguments"], checkpoint.under("policy", tensors)
    # On the device that holds nothing first: what a file claims about sizes is not believed
    with torch.device("meta"), checkpoint.building(path):
        empty = policy_class(observation_space, action_space, **arguments)
        shapes = empty.shapes_for(state)
    check_tensors(shapes, state, "policy", path, "policy/")
    policy = policy_class(observation_space, action_space, **arguments)
    policy.load_state_dict(state)
    require_finite_answers(policy, path)
    return policy.to(device)


def require_finite_answers(policy: ImelPolicy, path: str | os.PathLike[str]) -> None:
    """Refuse a policy whose weights overflow on the way to an action, each in its range."""
    if not len(policy.memory):
        return
    states = torch.zeros(3, policy.state_dim)
    states[1:] = torch.tensor([[1e30], [-1e30]])
    with checkpoint.building(path):
        answers = policy.act(states)
    if not all(bool(answer.isfinite().all()) for answer in answers):
        raise CheckpointError(f"{path} holds a policy whose actions are not finite")
