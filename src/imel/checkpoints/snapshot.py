"""Where a run stands between two rollouts, environments included.

A rollout changes counters, random states and environments before anything is learned from it. A
snapshot keeps what they were when it began, so that a checkpoint can be written at any moment and a
resumed run takes that rollout again. Environments are put back by playing their episodes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint
from imel.checkpoints.contents import check_tensors
from imel.environments.replay import LONGEST, Past
from imel.errors import CheckpointError, ImelError

if TYPE_CHECKING:
    from imel.algorithm import IMeL

PART = "environments"


@dataclass(frozen=True)
class Snapshot:
    """What a rollout changes, as it was before."""

    progress: dict[str, Any]
    generators: dict[str, Tensor]
    environments: dict[str, Tensor]


def take_snapshot(model: IMeL) -> Snapshot:
    """Snapshot the state before a rollout."""
    learner = model.learner
    return Snapshot(learner.progress(), learner.generators(), _environments(model))


def _environments(model: IMeL) -> dict[str, Tensor]:
    """Return what is known of the environments here; they note where they are themselves."""
    env: Any = model.env
    if not restorable(model) or model._last_obs is None:
        return {}
    env.env_method("mark")
    clock, running = model.learner.clock, model.learner.return_scale.running
    return {
        "observations": torch.from_numpy(np.array(model._last_obs, np.float32)),
        "episodes": torch.from_numpy(clock.episodes.copy()),
        "steps": torch.from_numpy(clock.steps.copy()),
        "returns": torch.zeros(model.n_envs) if running is None else running.clone(),
    }


def restorable(model: IMeL) -> bool:
    """Return whether the environments can be put back where they were.

    A wrapper's state cannot, and of observations only vectors are kept.
    """
    vectors, env = model.policy.features_extractor is None, model.env
    return vectors and hasattr(type(env), "restorable") and bool(env.restorable)  # type: ignore[union-attr]


def snapshot_parts(model: IMeL) -> checkpoint.Contents | None:
    """Return the tensors and document entries with which a file says where a run stands.

    None where environments cannot be put back where they were when the snapshot was taken.
    """
    taken, env = model.snapshot, model.env
    if taken is None or not taken.environments or env is None:
        return None
    pasts: list[Past | None] = env.env_method("past")
    known = [past for past in pasts if past is not None]
    if len(known) < len(pasts):
        return None
    tensors = {
        **taken.environments,
        "actions": torch.from_numpy(np.concatenate([past.actions for past in known])),
        "lengths": torch.tensor([len(past.actions) for past in known]),
    }
    document = {"progress": taken.progress, PART: [dict(past.origin) for past in known]}
    return {**taken.generators, **checkpoint.prefixed(PART, tensors)}, document


def check_environments(model: IMeL, file: Checkpoint) -> None:
    """Refuse what `snapshot_parts` cannot have made for a model with these environments."""
    path, count = file.path, model.n_envs
    origins, found = file.document[PART], file.under(PART)
    lengths = found.get("lengths", torch.zeros(0))
    if lengths.shape != (count,) or not bool(((lengths >= 0) & (lengths <= LONGEST)).all()):
        raise CheckpointError(f"{path} has environments whose episodes cannot be played again")
    space: Any = model.action_space
    actions = torch.from_numpy(np.zeros((int(lengths.sum()), *space.shape), space.dtype))
    whole = torch.zeros(count, dtype=torch.int64)
    expected = {
        "observations": torch.zeros(count, model.policy.state_dim),
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


def restore_environments(model: IMeL, file: Checkpoint) -> None:
    """Put every environment where it was, and refuse to go on where one does not come there."""
    origins, found, env = file.document[PART], file.under(PART), model.env
    assert env is not None
    ends = np.cumsum(found["lengths"].numpy())
    actions = np.split(found["actions"].numpy(), ends[:-1])
    expected = found["observations"].numpy()
    for index, (origin, played) in enumerate(zip(origins, actions, strict=True)):
        try:
            past = Past(origin, played)
            (observation,) = env.env_method("play_again", past, indices=[index])
        except ImelError as error:
            raise CheckpointError(f"{file.path}: environment {index}: {error}") from None
        if np.asarray(observation, expected.dtype).tobytes() != expected[index].tobytes():
            raise CheckpointError(
                f"{file.path}: environment {index}, played again from its beginning, came to "
                f"{observation} instead of {expected[index]}: its simulator is not deterministic, "
                "or not the one the run was made with"
            )
    model._last_obs = expected.copy()
    clock = model.learner.clock
    clock.episodes, clock.steps = (found[name].numpy().copy() for name in ("episodes", "steps"))
    model.learner.return_scale.running = found["returns"].clone()
