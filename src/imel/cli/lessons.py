"""`imel lessons`: the lessons of a run, what each is worth, and what the policy is without some."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.cli.lesson_worth import (
    drop_harmful,
    judged_lessons,
    mean_words,
    progress_bar,
    worth_of,
    worth_words,
)
from imel.errors import ImelError
from imel.explain.lesson_words import episode_words, number, return_words, steps_words
from imel.explain.reduced import lesson_sizes
from imel.explain.worth import Worth
from imel.pictures.lessons import LessonHistory, deletion_figure, lessons_figure
from imel.pictures.run import DOTS_PER_INCH
from imel.policies import Policy, RidgePolicy
from imel.runs.evaluation import EVALUATION_SEED, Deletion, delete_lessons
from imel.runs.layout import DELETION, LESSONS
from imel.runs.stored import StoredRun

Array = NDArray[Any]

_DESCRIPTION = """\
List the largest lessons of a RidgePolicy's run, and draw when they were taught into lessons.png.
The size of a lesson is what it adds to the action: the root mean square over remembered states.

--worth asks which lessons help and which harm: what each is worth to the return, to first order,
by the policy gradient of fresh episodes. --drop-harmful evaluates the policy without those that
harm, on other starts. --deletion evaluates it without the lessons that carry most of it, without
those of the episodes most alike, and without as many at random.

All of it is about this policy without what it was taught there, not about what another run would
have become.

examples:
  imel lessons runs/cheetah
  imel lessons runs/cheetah --worth --gradient-episodes 64
  imel lessons runs/cheetah --deletion --episodes 20"""


@dataclass(frozen=True)
class LessonsArguments(StoredRunArguments):
    """Which run, and what is asked about its lessons."""

    count: int = 10
    """How many lessons are listed."""
    worth: Flag = False
    """Estimate what each lesson is worth to the return, with a standard error."""
    drop_harmful: Flag = False
    """Evaluate the policy without the lessons that are worth less than nothing by two standard
    errors, and without as many at random. Implies --worth."""
    gradient_episodes: int = 32
    """Episodes with sampled actions, for the policy gradient of --worth."""
    deletion: Flag = False
    """Evaluate the policy without the 1 %, 5 % and 20 % of lessons that carry the largest shares of
    it, the most similar, and as many at random; also draw deletion.png."""
    episodes: int = 10
    """Deterministic episodes of each evaluation."""
    draws: int = 5
    """Draws of random lessons: which ones are drawn matters more than which episodes are played."""
    seed: int = EVALUATION_SEED
    """Seed of the episodes, and of the random lessons."""
    json: Flag = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: LessonsArguments = parse(LessonsArguments, argv, "imel lessons", _DESCRIPTION)
    stored = arguments.open(count=1, episodes=1, draws=1, gradient_episodes=4)
    policy = _policy_of(stored)
    judged = arguments.worth or arguments.drop_harmful
    played = judged or arguments.deletion
    env = stored.environment() if played else stored.env or stored.title
    worth = (
        worth_of(policy, env, stored, arguments.gradient_episodes, arguments.seed, arguments.json)
        if judged
        else None
    )
    history = history_of(policy, f"{env}: {len(policy.lessons):,} lessons", worth)
    picture = stored.folder / LESSONS
    lessons_figure(history).savefig(picture, dpi=DOTS_PER_INCH)
    document: dict[str, Any] = {
        "model": str(stored.model_path),
        "lessons": largest_first(history, arguments.count),
        "picture": str(picture),
    }
    lines = [*_listed(history, document["lessons"]), f"picture: {picture}"]
    if worth is not None:
        document["worth"] = {"episodes": worth.episodes, **judged_lessons(worth, policy)}
        lines += worth_words(worth)
    if arguments.drop_harmful and worth is not None:
        document["dropped"], said = drop_harmful(
            policy, worth, env, arguments.episodes, arguments.draws, arguments.seed
        )
        lines += said
    if arguments.deletion:
        document["deletion"], said = _delete(policy, stored, env, arguments)
        lines += said
    text = json.dumps(document, indent=2, default=np.ndarray.tolist)
    print(text if arguments.json else "\n".join(lines))
    return 0


def _policy_of(stored: StoredRun) -> RidgePolicy:
    policy = Policy.load(str(stored.model_path))
    if policy.lessons is None:
        raise ImelError(
            f"{stored.model_path} holds a {type(policy).__name__}, which has memories and no "
            "lessons: see imel why"
        )
    if not len(policy.lessons):
        raise ImelError(f"the policy in {stored.model_path} has had no lesson yet")
    return policy


def history_of(policy: RidgePolicy, title: str, worth: Worth | None) -> LessonHistory:
    """Return the lessons of a policy with their sizes, in the order in which they began."""
    names = ("episodes", "counts", "starts", "ends")
    columns = {name: policy.lessons.column(name).cpu().numpy() for name in names}
    returns = policy.lessons.column("returns").cpu().numpy() / columns["counts"]
    judged = {} if worth is None else {"worth": worth.values, "errors": worth.errors}
    return LessonHistory(title, **columns, returns=returns, sizes=lesson_sizes(policy), **judged)


def largest_first(history: LessonHistory, count: int) -> list[dict[str, Any]]:
    """Return the largest lessons as rows."""
    names = ["episodes", "counts", "starts", "ends", "returns", "sizes"]
    names += ["worth", "errors"] if history.worth is not None else []
    return [
        {name: getattr(history, name)[i].item() for name in names}
        for i in np.argsort(-history.sizes, kind="stable")[:count]
    ]


def _listed(history: LessonHistory, rows: list[dict[str, Any]]) -> list[str]:
    total = float(np.square(history.sizes).sum()) or 1.0
    shown = sum(row["sizes"] ** 2 for row in rows) / total
    judged = f"  {'worth':>16}" if history.worth is not None else ""
    lines = [
        f"{history.title}; the {len(rows)} largest have {shown:.0%} of the sum of squared sizes",
        f"{'size':>7}  {'episode':>11}  {'steps of run':>15}  {'return':>9}{judged}",
    ]
    for row in rows:
        steps = steps_words(row["starts"], row["ends"])
        value = return_words(row["returns"], row["ends"])
        episode = episode_words(row["episodes"], row["counts"])
        line = f"{row['sizes']:>7.3f}  {episode:>11}  {steps:>15}  {value:>9}"
        if judged:
            line += f"  {number(row['worth']):>7} ± {number(row['errors']):<6}"
        lines.append(line)
    return lines


# --- without some lessons ---


def _delete(
    policy: RidgePolicy, stored: StoredRun, env: str, arguments: LessonsArguments
) -> tuple[dict[str, Any], list[str]]:
    """Evaluate the policy without some of its lessons; draw a curve."""
    with progress_bar("deletion", arguments.json) as progress:
        whole, deletions = delete_lessons(
            policy, env, arguments.episodes, arguments.draws, arguments.seed, progress
        )
    path = stored.folder / DELETION
    title = f"{env}: without some of {len(policy.lessons):,} lessons"
    deletion_figure(title, whole, deletions).savefig(path, dpi=DOTS_PER_INCH)
    lines = [*_deletion_words(whole, deletions, arguments), f"picture: {path}"]
    document = {
        "episodes": arguments.episodes,
        "draws": arguments.draws,
        "whole": whole,
        "without": [asdict(each) for each in deletions],
        "picture": str(path),
    }
    return document, lines


def _deletion_words(
    whole: Array, deletions: Sequence[Deletion], arguments: LessonsArguments
) -> list[str]:
    lines = [
        f"\ndeterministic return over {arguments.episodes} episodes (mean ± deviation; at random "
        f"that of {arguments.draws} draws), and in brackets the change of the action",
        f"{'without':<20}  {'the largest shares':>24}  {'the most similar':>24}  {'at random':>24}",
        f"{'nothing':<20}" + f"  {mean_words(whole):>17} (0.00)" * 3,
    ]
    for each in deletions:
        name = f"{each.share:.0%} ({each.count} lesson{'s' if each.count > 1 else ''})"
        cells = (
            f"  {mean_words(removal.returns):>17} ({removal.shift:.2f})"
            for removal in (each.largest, each.similar, each.random)
        )
        lines.append(f"{name:<20}{''.join(cells)}")
    return lines
