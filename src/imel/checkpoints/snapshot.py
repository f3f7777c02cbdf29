"""Where a run stands between two rollouts, environments included.

A rollout changes counters, random states and environments before anything is learned from it. What
they were when it began is kept, so that a checkpoint can be written at any moment and a resumed
run takes that rollout again. Environments are put back by playing their episodes again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imel.checkpoints import checkpoint
from imel.checkpoints.contents import check_tensors
from imel.environments.replay import LONGEST, Past
from imel.errors import CheckpointError, ImelError

PART = "environments"


@dataclass(frozen=True)
class Standing:
    """What a rollout changes, as it was before."""

    progress: dict[str, Any]
    generators: dict[str, Tensor]
    environments: dict[str, Tensor]


def environments_of(model: Any) -> dict[str, Tensor]:
    """Return what is known of the environments here; they note where they are themselves."""
    if not restorable(model) or model._last_obs is None:
        return {}
    model.env.env_method("mark")
    running = model.return_scale.running
    return {
        "observations": torch.from_numpy(np.array(model._last_obs, np.float32)),
        "episodes": torch.from_numpy(model.clock.episodes.copy()),
        "steps": torch.from_numpy(model.clock.steps.copy()),
        "returns": torch.zeros(model.n_envs) if running is None else running.clone(),
    }


def restorable(model: Any) -> bool:
    """Return whether the environments can be put back where they were.

    A wrapper's state cannot, and of observations only vectors are kept.
    """
    vectors = model.policy.features_extractor is None
    return vectors and hasattr(type(model.env), "restorable") and bool(model.env.restorable)


def pasts_of(model: Any) -> list[Past] | None:
    """Return how each environment came to where the model stands; None if one cannot say."""
    if model.standing is None or not model.standing.environments:
        return None
    pasts: list[Past | None] = model.env.env_method("past")
    known = [past for past in pasts if past is not None]
    return known if len(known) == len(pasts) else None


def standing_parts(
    standing: Standing, pasts: list[Past]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and document entries with which a file says where a run stands."""
    tensors = {
        **standing.environments,
        "actions": torch.from_numpy(np.concatenate([past.actions for past in pasts])),
        "lengths": torch.tensor([len(past.actions) for past in pasts]),
    }
    document = {"progress": standing.progress, PART: [dict(past.origin) for past in pasts]}
    return {**standing.generators, **checkpoint.prefixed(PART, tensors)}, document


def check_environments(
    model: Any, tensors: Mapping[str, Tensor], origins: Any, path: str | os.PathLike[str]
) -> None:
    """Refuse what `standing_parts` cannot have made for a model with these environments."""
    count, state_dim = model.n_envs, model.policy.state_dim
    found = checkpoint.under(PART, tensors)
    lengths = found.get("lengths", torch.zeros(0))
    if lengths.shape != (count,) or not bool(((lengths >= 0) & (lengths <= LONGEST)).all()):
        raise CheckpointError(f"{path} has environments whose episodes cannot be played again")
    space = model.action_space
    actions = torch.from_numpy(np.zeros((int(lengths.sum()), *space.shape), space.dtype))
    whole = torch.zeros(count, dtype=torch.int64)
    expected = {
        "observations": torch.zeros(count, state_dim),
        "returns": torch.zeros(count),
        "actions": actions,
        **dict.fromkeys(("episodes", "steps", "lengths"), whole),
    }
    check_tensors(expected, found, "the environments", path, f"{PART}/")
    if not isinstance(origins, list) or len(origins) != count or not all(map(_is_origin, origins)):
        raise CheckpointError(f"{path} has environments without a valid origin")


def _is_origin(origin: Any) -> bool:
    if not isinstance(origin, dict) or len(origin) != 1:
        return False
    if "seed" in origin:
        return type(origin["seed"]) is int and 0 <= origin["seed"] < 2**64
    try:
        np.random.PCG64().state = origin["state"]
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    return True


def restore_environments(
    model: Any, tensors: Mapping[str, Tensor], origins: list[Any], path: str | os.PathLike[str]
) -> None:
    """Put every environment where it was, and refuse to go on where one does not come there."""
    found = checkpoint.under(PART, tensors)
    ends = np.cumsum(found["lengths"].numpy())
    actions = np.split(found["actions"].numpy(), ends[:-1])
    expected = found["observations"].numpy()
    for index, (origin, played) in enumerate(zip(origins, actions, strict=True)):
        try:
            past = Past(origin, played)
            (observation,) = model.env.env_method("play_again", past, indices=[index])
        except ImelError as error:
            raise CheckpointError(f"{path}: environment {index}: {error}") from None
        if np.asarray(observation, expected.dtype).tobytes() != expected[index].tobytes():
            raise CheckpointError(
                f"{path}: environment {index}, played again from its beginning, came to "
                f"{observation} instead of {expected[index]}: its simulator is not deterministic, "
                "or not the one the run was made with"
            )
    model._last_obs = expected.copy()
    model.clock.episodes, model.clock.steps = (
        found[name].numpy().copy() for name in ("episodes", "steps")
    )
    model.return_scale.running = found["returns"].clone()
