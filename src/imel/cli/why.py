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
from rich.console import Console
from rich.table import Table

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.distributions import vector
from imel.environments.playing import names_in
from imel.errors import SettingsError
from imel.explain import Explanation, LessonExplanation, explain, familiarity_of
from imel.explain.explanation import COLUMNS
from imel.pictures.why import Chosen, Why, draw_frames
from imel.policies import Policy
from imel.policies.names import DimensionNames
from imel.runs.evaluation import EVALUATION_SEED, visited_states

_DESCRIPTION = """\
Play an episode with a policy's mean action, and say what made the action at one step, or at its
most and at its least familiar one: the lessons of a RidgePolicy, the memories of one of the
paper's policies.

examples:
  imel why runs/cheetah
  imel why runs/cheetah --step 100 --frame why.png
  imel why runs/cheetah --step 100 --without-lesson 412 413
  imel why runs/cheetah-mki --step 100 --without-episode 412
  imel why model.safetensors --env Pendulum-v1 --json"""


_MEMORY = ("rows", "weights", "contributions", *COLUMNS)
_LESSON = ("episodes", "counts", "steps", "lengths", "returns", "contributions")


@dataclass(frozen=True)
class WhyArguments(StoredRunArguments):
    """Which action is explained, and how."""

    step: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The step of the episode, from 0. By default the most and the least familiar one."""
    seed: int = EVALUATION_SEED
    """Seed of the episode. The default is that of the evaluation after training."""
    memories: int = 8
    """How many lessons or memories are listed."""
    without_lesson: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """Episodes whose lessons a RidgePolicy is to do without; their numbers are in the table. The
    episode played is that of the whole policy, and what it would do instead is shown at the same
    step."""
    without_episode: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """The same for the memories of some episodes, of one of the paper's policies."""
    frame: Annotated[Path | None, tyro.conf.arg(metavar="PNG")] = None
    """Also draw the state beside those of the first lessons or memories, into this file."""
    json: Flag = False
    """Print JSON, with all there is to say about the lessons or memories listed."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: WhyArguments = parse(WhyArguments, argv, "imel why", _DESCRIPTION)
    if arguments.frame is not None and arguments.frame.suffix.lower() != ".png":
        raise SettingsError(f"{arguments.frame} is not the name of a .png file")
    stored = arguments.open(memories=1)
    env = stored.environment()
    policy = Policy.load(str(stored.model_path))
    states = visited_states(policy, env, arguments.seed)
    ridge = policy.lessons is not None
    without = _without(arguments, ridge)
    names = names_in(env, policy.dimensions)
    chosen = [
        _explained(policy, name, step, states[step], without, names)
        for name, step in choose_steps(policy, states, arguments.step)
    ]
    if arguments.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "seed": arguments.seed,
            "steps": len(states),
            "explained": [_document(each, arguments.memories) for each in chosen],
        }
        print(json.dumps(document, indent=2))
    else:
        title = f"{env}, {type(policy).__name__}, an episode of {len(states)} steps"
        print(f"{title} (seed {arguments.seed})")
        for each in chosen:
            _print(each, arguments.memories, without)
    if arguments.frame is not None:
        note = draw_frames(arguments.frame, policy, env, arguments.seed, chosen)
        where = sys.stderr if arguments.json else sys.stdout
        print(f"picture: {arguments.frame}{'' if note is None else f' ({note})'}", file=where)
    return 0


def choose_steps(policy: Policy, states: NDArray[Any], step: int | None) -> list[tuple[str, int]]:
    """The step asked for, or the first of the most and of the least familiar ones."""
    if step is not None:
        if not 0 <= step < len(states):
            raise SettingsError(
                f"step={step}: the episode has {len(states)} steps, 0 to {len(states) - 1}"
            )
        return [("asked for", step)]
    scores = familiarity_of(policy)(torch.as_tensor(states, device=policy.device))
    if np.isnan(scores).any():
        return [("the first; the memory holds a single episode to compare with", 0)]
    most, least = int(scores.argmax()), int(scores.argmin())
    chosen = [("the most familiar", most), ("the least familiar", least)]
    return chosen if most != least else chosen[:1]


def _without(arguments: WhyArguments, ridge: bool) -> tuple[int, ...]:
    """Return the episodes to do without; refuse the flag of the other family."""
    if ridge and arguments.without_episode:
        raise SettingsError("a RidgePolicy is a sum of lessons: leave some out by --without-lesson")
    if not ridge and arguments.without_lesson:
        raise SettingsError("only a RidgePolicy has lessons: leave out by --without-episode")
    return arguments.without_lesson or arguments.without_episode


def _explained(
    policy: Policy,
    name: str,
    step: int,
    state: NDArray[Any],
    without: tuple[int, ...],
    names: DimensionNames,
) -> Chosen:
    left_out = "without_lessons" if policy.lessons is not None else "without_episodes"
    otherwise = explain(policy, state, names=names, **{left_out: without}) if without else None
    return Chosen(name, step, explain(policy, state, names=names), otherwise)


# --- what is said: a table on a terminal, plain lines in a pipe, or JSON ---


def _print(chosen: Chosen, count: int, without: tuple[int, ...]) -> None:
    """Print one step in words, and the first memories or lessons behind it."""
    why, console = chosen.why, Console(highlight=False, markup=False)
    console.print()
    console.print(f"step {chosen.step} ({chosen.name})", style="bold", soft_wrap=True)
    said = why.sentences()
    if isinstance(why, Explanation):
        said.insert(0, f"state {vector(why.observation, 12)}")
    if chosen.otherwise is not None:
        said.append(_counterfactual(why, chosen.otherwise, without))
    for line in said:
        # A terminal's lines are broken between words, those in a pipe are left whole
        console.print(line, soft_wrap=not console.is_terminal)
    if not console.is_terminal:
        print(why.as_text_table(count))
        return
    table = Table(*why.headings, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[:4]:
        column.justify = "right"
    for cells in why.table(count):
        table.add_row(*cells)
    console.print(table)


def _counterfactual(why: Why, otherwise: Any, without: tuple[int, ...]) -> str:
    """Say what the policy would do without some episodes, or without what they taught it."""
    names, plural = ", ".join(map(str, without)), "s" if len(without) > 1 else ""
    change = (
        f"{otherwise.answer}, a change of {why.in_units(otherwise.mean - why.mean, change=True)}"
    )
    if why.columns_of_logits:
        change += f" in the {why.columns_of_logits}"
    if isinstance(why, LessonExplanation):
        return f"without the lesson{plural} of {names}: {change}"
    left = len(why.rows) - len(otherwise.rows)
    lost = why.weights[np.isin(why.episodes, without)].sum()
    weight = f", whose weight here is {lost:.1%}" if why.kind != "none" else ""
    return (
        f"without episode{plural} {names} ({left} memories{weight}): {change}; "
        f"familiarity {100 * otherwise.familiarity:.0f} % instead of {100 * why.familiarity:.0f} %"
    )


def _document(chosen: Chosen, count: int) -> dict[str, Any]:
    """Return the same as JSON."""
    otherwise = chosen.otherwise
    return {
        "step": chosen.step,
        "chosen": chosen.name,
        **_explanation(chosen.why, count),
        "without": None if otherwise is None else _explanation(otherwise, count),
    }


def _explanation(why: Why, count: int) -> dict[str, Any]:
    document = {
        "observation": why.observation.tolist(),
        "mean": why.mean.tolist(),
        "answer": why.answer,
        "state_names": list(why.names.state),
        "action_names": list(why.names.action),
        "probabilities": why.distribution.shown(why.mean).tolist()
        if why.distribution.sizes
        else None,
        "kind": why.kind,
        "exact": why.exact,
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
    }
    if isinstance(why, LessonExplanation):
        return document | {
            "sentence": why.sentence(),
            "sensitivity": why.sensitivity.tolist(),
            "lessons": _rows(why.lessons, _LESSON, count),
        }
    return document | {
        "effective_neighbours": why.effective_neighbours,
        "memories": _rows(why, _MEMORY, count),
    }


def _rows(table: Any, columns: tuple[str, ...], count: int) -> list[dict[str, Any]]:
    """Return the first rows of columns that are attributes."""
    most = min(count, len(getattr(table, columns[0])))
    return [{name: getattr(table, name)[i].tolist() for name in columns} for i in range(most)]
