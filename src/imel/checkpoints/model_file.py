"""Models and policies in files and back: their documents, and the checks before any is believed."""

from __future__ import annotations

import os
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from gymnasium.spaces import Space

from imel import registry
from imel.checkpoints import checkpoint
from imel.checkpoints.checkpoint import Checkpoint, Contents, Source
from imel.checkpoints.contents import (
    check_tensors,
    prefixed,
    spaces_from_tensors,
    spaces_to_tensors,
)
from imel.data.critic import Critic
from imel.environments.replay import LONGEST, Past
from imel.errors import CheckpointError, ImelError
from imel.learner import COUNTERS, MODULES, LearnerState
from imel.policies.base import Policy

if TYPE_CHECKING:
    from imel.algorithm import IMeL

P = TypeVar("P", bound=Policy)
PART = "environments"


def save_policy(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write a policy to a checkpoint file."""
    tensors = prefixed("policy", policy.state_dict())
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
    with checkpoint.building(file.path):
        settings = policy_class.make_settings(file.document["settings"])
    check_sizes(file, policy_class, spaces, settings)
    policy = policy_class(*spaces, settings)
    policy.load_state_dict(file.under("policy"))
    require_finite_answers(policy, file.path)
    return policy.to(device)


def policy_class_of(file: Checkpoint) -> type[Policy]:
    """Return the class of the policy in a file, if it is known here: files hold no code."""
    name = file.document["policy"]
    policy_class = registry.loaded_policy(name)
    if policy_class is None:
        raise CheckpointError(
            f"{file.path} holds a policy that is not installed here, {name}: one of your own is "
            f"named by policy_class=… or --policy {name}, or its module imported before"
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


# --- whole models ---


def contents_of(model: IMeL) -> Contents:
    """Return what a file of a model holds: its tensors, and as JSON configuration and progress."""
    tensors = spaces_to_tensors(model.observation_space, model.action_space)
    return tensors | model.learner.tensors(), {
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
    require = checkpoint.require_entries
    require(document, {"progress": dict, "run": dict, "seed": (int, NoneType)}, path)
    progress = document["progress"]
    require(progress, {"episodes": list, "successes": list}, path)
    require(document["run"], {"id": str, "plan": dict}, path)
    numbers = {
        "seed": (document["seed"] or 0, 0, 2**32 - 1),
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


def check_sizes(
    file: Checkpoint, cls: type[Policy], spaces: tuple[Space[Any], Space[Any]], settings: Any
) -> None:
    """Refuse what a file claims about sizes before anything is allocated for it."""
    with torch.device("meta"), checkpoint.building(file.path):  # which holds nothing
        policy = cls(*spaces, settings)
        shapes = {"policy": policy.shapes_for(file.under("policy"))}
        if file.document["kind"] == "model":
            shapes["critic"] = Critic(policy.state_dim, settings.critic_hidden).state_dict()
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
    parts = {name: file.under(name) for name in (*MODULES, *learner.optimizers, "generators")}
    others = ("spaces/", f"{PART}/")
    found = {name: part for name, part in file.tensors.items() if not name.startswith(others)}
    check_tensors(learner.shapes_for(parts), found, "the model", file.path)
    learner.load(parts)


# --- where a run stands between two rollouts, environments included ---
#
# A snapshot keeps what a rollout changes, so that a checkpoint can be written at any moment and a
# resumed run takes that rollout again. Environments are put back by playing their episodes again.


def take_snapshot(model: IMeL) -> Contents:
    """Return what a rollout changes, as it is before; environments note where they are."""
    learner, env = model.learner, cast(Any, model.env)
    tensors, document = learner.generators(), {"progress": learner.progress()}
    if not restorable(model) or model._last_obs is None:
        return tensors, document
    env.env_method("mark")
    clock, running = learner.clock, learner.return_scale.running
    stood = {
        "observations": torch.from_numpy(np.array(model._last_obs, np.float32)),
        "episodes": torch.from_numpy(clock.episodes.copy()),
        "steps": torch.from_numpy(clock.steps.copy()),
        "returns": torch.zeros(model.n_envs) if running is None else running.clone(),
    }
    return tensors | prefixed(PART, stood), document


def restorable(model: IMeL) -> bool:
    """Return whether the environments can be put back where they were.

    A wrapper's state cannot, and of observations only vectors are kept.
    """
    vectors, env = model.policy.features_extractor is None, model.env
    return vectors and hasattr(type(env), "restorable") and bool(env.restorable)  # type: ignore[union-attr]


def snapshot_parts(model: IMeL) -> Contents | None:
    """Return the tensors and document entries with which a file says where a run stands.

    None where environments cannot be put back where they were when the snapshot was taken.
    """
    if model.snapshot is None or model.env is None:
        return None
    tensors, document = model.snapshot
    if f"{PART}/observations" not in tensors:
        return None
    pasts: list[Past | None] = model.env.env_method("past")
    known = [past for past in pasts if past is not None]
    if len(known) < len(pasts):
        return None
    played = {
        "actions": torch.from_numpy(np.concatenate([past.actions for past in known])),
        "lengths": torch.tensor([len(past.actions) for past in known]),
    }
    origins = [dict(past.origin) for past in known]
    return {**tensors, **prefixed(PART, played)}, {**document, PART: origins}


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
            came = f"came to {observation} instead of {expected[index]} when it was played again"
            raise CheckpointError(
                f"{file.path}: environment {index} {came}: its simulator is not deterministic, or "
                "not the one the run was made with"
            )
    model._last_obs = expected.copy()
    clock = model.learner.clock
    clock.episodes, clock.steps = (found[name].numpy().copy() for name in ("episodes", "steps"))
    model.learner.return_scale.running = found["returns"].clone()
