"""`imel why`: play an episode, and say which lessons or memories made one of its actions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from imel.cli.arguments import EnvironmentId, Flag, RunPath, parse, require_at_least
from imel.cli.why_lessons import lessons_document, print_lessons
from imel.errors import SettingsError
from imel.explain import Explanation, explain, familiarity_of
from imel.explain.explanation import vector
from imel.names import DimensionNames, names_of
from imel.pictures.why import Chosen, draw_frames
from imel.playing import make_environment, play, require_spaces
from imel.policy import ImelPolicy, RidgePolicy
from imel.runs.evaluation import EVALUATION_SEED
from imel.runs.stored import find_run

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


_COLUMNS = ("rows", "weights", "contributions", *Explanation.columns())


@dataclass(frozen=True)
class WhyArguments:
    """Which action is explained, and how."""

    run: RunPath
    """A run directory, or a model file."""
    step: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The step of the episode, from 0. By default the most and the least familiar one."""
    seed: int = EVALUATION_SEED
    """Seed of the episode. The default is that of the evaluation after training."""
    env: EnvironmentId = None
    """Environment id, if not the one the run was trained on."""
    memories: int = 8
    """How many lessons or memories are listed."""
    without_lesson: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """Episodes whose lessons a RidgePolicy is to do without; their numbers are in the table. The
    episode played is that of the whole policy, and what it would do instead is shown at the same
    step."""
    without_episode: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """The same for the memories of some episodes, of one of the paper's policies."""
    frame: Annotated[Path | None, tyro.conf.arg(metavar="PNG")] = None
    """Also draw the state beside those of the first memories, into this file."""
    json: Flag = False
    """Print JSON, with all there is to say about the memories listed."""
    threads: int = 1
    """Threads of the linear algebra."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: WhyArguments = parse(WhyArguments, argv, "imel why", _DESCRIPTION)
    require_at_least(arguments, memories=1, threads=1)
    if arguments.frame is not None and arguments.frame.suffix.lower() != ".png":
        raise SettingsError(f"{arguments.frame} is not the name of a .png file")
    torch.set_num_threads(arguments.threads)
    stored = find_run(arguments.run, arguments.env)
    env = stored.environment()
    policy = ImelPolicy.load(str(stored.model_path))
    states = observations_of(policy, env, arguments.seed)
    ridge = isinstance(policy, RidgePolicy)
    without = _without(arguments, ridge)
    names = _names(policy, env)
    chosen = [
        _explained(policy, name, step, states[step], without, names)
        for name, step in choose_steps(policy, states, arguments.step)
    ]
    describe = lessons_document if ridge else as_document
    if arguments.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "seed": arguments.seed,
            "steps": len(states),
            "explained": [describe(each, arguments.memories) for each in chosen],
        }
        print(json.dumps(document, indent=2))
    else:
        title = f"{env}, {type(policy).__name__}, an episode of {len(states)} steps"
        print(f"{title} (seed {arguments.seed})")
        for each in chosen:
            (print_lessons if ridge else print_answer)(each, arguments.memories, without)
    if arguments.frame is not None:
        note = draw_frames(arguments.frame, policy, env, arguments.seed, chosen)
        where = sys.stderr if arguments.json else sys.stdout
        print(f"picture: {arguments.frame}{'' if note is None else f' ({note})'}", file=where)
    return 0


def observations_of(policy: ImelPolicy, env_id: str, seed: int) -> NDArray[Any]:
    """Return what is observed in an episode with the mean action."""  # [T, d_s]
    with closing(make_environment(env_id, rendered=False)) as env:
        require_spaces(policy, env, env_id)
        episode = play(env, lambda seen: policy.predict(seen, deterministic=True)[0], seed)
        return np.array([step.observation for step in episode])


def choose_steps(
    policy: ImelPolicy, states: NDArray[Any], step: int | None
) -> list[tuple[str, int]]:
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
    chosen = [("the most familiar", int(scores.argmax()))]
    chosen.append(("the least familiar", int(scores.argmin())))
    return chosen if chosen[0][1] != chosen[1][1] else chosen[:1]


def _without(arguments: WhyArguments, ridge: bool) -> tuple[int, ...]:
    """Return the episodes to do without; refuse the flag of the other family."""
    if ridge and arguments.without_episode:
        raise SettingsError("a RidgePolicy is a sum of lessons: leave some out by --without-lesson")
    if not ridge and arguments.without_lesson:
        raise SettingsError("only a RidgePolicy has lessons: leave out by --without-episode")
    return arguments.without_lesson or arguments.without_episode


def _names(policy: ImelPolicy, env_id: str) -> DimensionNames:
    with closing(make_environment(env_id, rendered=False)) as env:
        return names_of(env, policy.state_dim, policy.action_dim)


def _explained(
    policy: ImelPolicy,
    name: str,
    step: int,
    state: NDArray[Any],
    without: tuple[int, ...],
    names: DimensionNames,
) -> Chosen:
    left_out = "without_lessons" if isinstance(policy, RidgePolicy) else "without_episodes"
    otherwise = explain(policy, state, names=names, **{left_out: without}) if without else None
    return Chosen(name, step, explain(policy, state, names=names), otherwise)


# --- what is said: a table on a terminal, plain lines in a pipe, or JSON ---


def print_answer(chosen: Chosen, count: int, without: tuple[int, ...]) -> None:
    """One step in words, and the first memories behind it."""
    why, console = chosen.why, Console(highlight=False, markup=False)
    assert isinstance(why, Explanation)
    console.print()
    console.print(f"step {chosen.step} ({chosen.name})", style="bold", soft_wrap=True)
    said = [f"state {vector(why.observation, 12)}", why.sentence(), why.familiarity_sentence()]
    if chosen.otherwise is not None:
        said.append(counterfactual(why, chosen.otherwise, without))
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


def counterfactual(why: Explanation, otherwise: Any, without: tuple[int, ...]) -> str:
    """What the policy would do, had it not seen some episodes."""
    left = len(why.rows) - len(otherwise.rows)
    names = ", ".join(map(str, without))
    change = otherwise.mean - why.mean
    lost = why.weights[np.isin(why.episodes, without)].sum()
    weight = f", whose weight here is {lost:.1%}" if why.kind != "none" else ""
    return (
        f"without episode{'s' if len(without) > 1 else ''} {names} ({left} memories{weight}): "
        f"mean {vector(otherwise.mean)}, a change of {vector(change)}; "
        f"familiarity {otherwise.familiarity:.2f} instead of {why.familiarity:.2f}"
    )


def as_document(chosen: Chosen, count: int) -> dict[str, Any]:
    """The same as JSON."""
    document = {"step": chosen.step, "chosen": chosen.name, **_document(chosen.why, count)}
    otherwise = chosen.otherwise
    document["without"] = None if otherwise is None else _document(otherwise, count)
    return document


def _document(why: Any, count: int) -> dict[str, Any]:
    return {
        "observation": why.observation.tolist(),
        "mean": why.mean.tolist(),
        "kind": why.kind,
        "exact": why.exact,
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
        "effective_neighbours": why.effective_neighbours,
        "memories": [
            {name: getattr(why, name)[i].tolist() for name in _COLUMNS}
            for i in range(min(count, len(why.rows)))
        ],
    }
