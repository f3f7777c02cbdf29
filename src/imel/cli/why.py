"""`imel why`: play an episode, and say which lessons or memories made one of its actions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.distributions import vector
from imel.environments.playing import environment_of, play_policy
from imel.errors import SettingsError
from imel.explain import Explanation, LessonExplanation, explain, familiarity_of
from imel.explain.explanation import COLUMNS
from imel.pictures.rendering import Why, why_figure
from imel.policies import Policy
from imel.policies.names import names_of
from imel.runs.evaluation import EVALUATION_SEED

_ALL = ("observation", "mean", "answer", "kind", "exact")
_MEMORY = ("rows", "weights", "contributions", *COLUMNS)
_LESSON = ("episodes", "counts", "steps", "lengths", "returns", "contributions")


@dataclass(frozen=True)
class WhyArguments(StoredRunArguments):
    """Play an episode with a policy's mean action, and say what made the action at a step.

    By default at its most and at its least familiar step. It is made of the lessons of a policy
    that has some (ridge), and of the memories of another one (all of the paper's).

    examples:
      imel why runs/cheetah
      imel why runs/cheetah --step 100 --frame why.png
      imel why runs/cheetah --step 100 --without-lesson 412 413
      imel why runs/cheetah-mki --step 100 --without-episode 412
      imel why model.safetensors --env Pendulum-v1 --json
    """

    step: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The step of the episode, from 0. By default the most and the least familiar one."""
    seed: int = EVALUATION_SEED
    """Seed of the episode. The default is that of the evaluation after training."""
    memories: int = 8
    """How many lessons or memories are listed."""
    without_lesson: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """Episodes, by their number in the table: what would the policy do without their lessons?"""
    without_episode: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """The same for the memories of some episodes, of a policy without lessons."""
    frame: Annotated[Path | None, tyro.conf.arg(metavar="PNG")] = None
    """Also draw the state beside those of the first lessons or memories, into this file."""
    json: Flag = False
    """Print JSON, with all there is to say about the lessons or memories listed."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: WhyArguments = parse(WhyArguments, argv, "imel why")
    if given.frame is not None and given.frame.suffix.lower() != ".png":
        raise SettingsError(f"{given.frame} is not the name of a .png file")
    stored = given.open(memories=1)
    env, seed, count = stored.environment(), given.seed, given.memories
    policy = Policy.load(stored.checkpoint)
    left_out = _left_out(policy, given)
    with environment_of(policy, env) as played:
        states = np.array([decision.state for decision, _ in play_policy(played, policy, seed)])
        names = names_of(played, policy.dimensions)
    lines = [f"{env}, {type(policy).__name__}, an episode of {len(states)} steps (seed {seed})"]
    explained, documents = dict[int, Why](), list[dict[str, Any]]()
    for name, step in choose_steps(policy, states, given.step):
        why = explained[step] = explain(policy, states[step], names=names)
        without = explain(policy, states[step], names=names, **left_out) if left_out else None
        other = None if without is None else _document(without, count)
        document = {"step": step, "chosen": name, **_document(why, count), "without": other}
        documents.append(document)
        state = [f"state {vector(why.observation, 12)}"] if isinstance(why, Explanation) else []
        change = [_counterfactual(why, without, *left_out.values())] if left_out else []
        lines += ["", f"step {step} ({name})", *state, *why.sentences(), *change]
        lines.append(why.as_text_table(count))
    if given.json:
        about = {"env": env, "model": str(stored.model_path), "seed": seed, "steps": len(states)}
        print(json.dumps({**about, "explained": documents}, indent=2, default=np.ndarray.tolist))
    else:
        print("\n".join(lines))
    if given.frame is not None:
        figure, note = why_figure(policy, env, seed, explained)
        figure.savefig(given.frame, bbox_inches="tight")
        print(f"picture: {given.frame}{note}", file=sys.stderr if given.json else sys.stdout)
    return 0


def choose_steps(policy: Policy, states: NDArray[Any], step: int | None) -> list[tuple[str, int]]:
    """Return the step asked for, or the first of the most and of the least familiar ones."""
    last = len(states) - 1
    if step is not None:
        if not 0 <= step <= last:
            raise SettingsError(f"step={step}: the episode has {last + 1} steps, 0 to {last}")
        return [("asked for", step)]
    scores = familiarity_of(policy)(torch.as_tensor(states, device=policy.device))
    if np.isnan(scores).any():
        return [("the first; the memory holds a single episode to compare with", 0)]
    chosen = {int(scores.argmin()): "the least familiar", int(scores.argmax()): "the most familiar"}
    return [(name, place) for place, name in reversed(chosen.items())]


def _left_out(policy: Policy, given: WhyArguments) -> dict[str, tuple[int, ...]]:
    """Return what `explain` is to do without; refuse the flag of the other kind of policy."""
    if policy.lessons is not None and given.without_episode:
        raise SettingsError("the policy is a sum of lessons: leave some out by --without-lesson")
    if policy.lessons is None and given.without_lesson:
        raise SettingsError("the policy has no lessons: leave memories out by --without-episode")
    chosen = {"without_lessons": given.without_lesson, "without_episodes": given.without_episode}
    return {name: numbers for name, numbers in chosen.items() if numbers}


def _counterfactual(why: Why, without: Any, episodes: tuple[int, ...]) -> str:
    """Say what the policy would do without some episodes, or without what they taught it."""
    names, plural = ", ".join(map(str, episodes)), "s" if len(episodes) > 1 else ""
    change = why.in_units(without.mean - why.mean, change=True)
    logits = f" in the {why.columns_of_logits}" if why.columns_of_logits else ""
    change = f"{without.answer}, a change of {change}{logits}"
    if isinstance(why, LessonExplanation):
        return f"without the lesson{plural} of {names}: {change}"
    lost = why.weights[np.isin(why.episodes, episodes)].sum()
    weight = f", whose weight here is {lost:.1%}" if why.kind != "none" else ""
    return (
        f"without episode{plural} {names} ({len(why.rows) - len(without.rows)} memories{weight}): "
        f"{change}; familiarity {100 * without.familiarity:.0f} % instead of "
        f"{100 * why.familiarity:.0f} %"
    )


def _document(why: Why, count: int) -> dict[str, Any]:
    """Return the same for JSON, with the first rows of the table."""
    document = {name: getattr(why, name) for name in _ALL} | {
        "state_names": why.names.state,
        "action_names": why.names.action,
        "probabilities": why.distribution.shown(why.mean) if why.distribution.sizes else None,
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
    }
    table: Any
    columns: tuple[str, ...]
    if isinstance(why, LessonExplanation):
        kind, table, columns = "lessons", why.lessons, _LESSON
        document |= {"sentence": why.sentence(), "sensitivity": why.sensitivity}
    else:
        kind, table, columns = "memories", why, _MEMORY
        document["effective_neighbours"] = why.effective_neighbours
    rows = zip(*(getattr(table, name)[:count].tolist() for name in columns), strict=True)
    return document | {kind: [dict(zip(columns, row, strict=True)) for row in rows]}
