"""`imel lessons`: the largest lessons of a run, and what the policy is without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.errors import ImelError
from imel.explain import policy_without
from imel.explain.lesson_words import episode_words, number, short
from imel.explain.reduced import largest_lessons, lesson_sizes, random_lessons
from imel.pictures.lessons import Deletion, LessonHistory, deletion_figure, lessons_figure
from imel.policy import ImelPolicy, RidgePolicy
from imel.runs.evaluation import EVALUATION_SEED, evaluate
from imel.runs.layout import DELETION, LESSONS
from imel.runs.stored import StoredRun

_DESCRIPTION = """\
List the largest lessons of a RidgePolicy's run, and draw when they were taught into lessons.png.
The size of a lesson is what it adds to the action: the root mean square over remembered states.

With --deletion also evaluate the policy without its largest lessons, and without as many at random:
what this policy does without what it was taught there, not what another run would have become.

examples:
  imel lessons runs/cheetah
  imel lessons runs/cheetah --deletion --episodes 20"""

_SHARES = (0.01, 0.05, 0.2)
_DOTS_PER_INCH = 130


@dataclass(frozen=True)
class LessonsArguments(StoredRunArguments):
    """Which run, and what is asked about its lessons."""

    count: int = 10
    """How many lessons are listed."""
    deletion: Flag = False
    """Evaluate the policy without the largest 1 %, 5 % and 20 % of lessons, and without as many
    at random; also draw deletion.png."""
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
    stored = arguments.open(count=1, episodes=1, draws=1)
    policy = ImelPolicy.load(str(stored.model_path))
    if not isinstance(policy, RidgePolicy):
        raise ImelError(
            f"{stored.model_path} holds a {type(policy).__name__}, which has memories and no "
            "lessons: see imel why"
        )
    if not len(policy.lessons):
        raise ImelError(f"the policy in {stored.model_path} has had no lesson yet")
    env = stored.environment() if arguments.deletion else stored.env or stored.title
    history = history_of(policy, f"{env}: {len(policy.lessons):,} lessons")
    picture = stored.folder / LESSONS
    lessons_figure(history).savefig(picture, dpi=_DOTS_PER_INCH)
    document: dict[str, Any] = {
        "model": str(stored.model_path),
        "lessons": largest_first(history, arguments.count),
        "picture": str(picture),
    }
    if not arguments.json:
        _print_lessons(history, document["lessons"])
        print(f"picture: {picture}")
    if arguments.deletion:
        document["deletion"] = _delete(policy, stored, env, arguments)
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0


def history_of(policy: RidgePolicy, title: str) -> LessonHistory:
    """Return the lessons of a policy with their sizes, in the order in which they began."""
    names = ("episodes", "counts", "starts", "ends")
    columns = {name: policy.lessons.column(name).cpu().numpy() for name in names}
    returns = policy.lessons.column("returns").cpu().numpy() / columns["counts"]
    return LessonHistory(title, **columns, returns=returns, sizes=lesson_sizes(policy))


def largest_first(history: LessonHistory, count: int) -> list[dict[str, Any]]:
    """Return the largest lessons as rows."""
    names = ("episodes", "counts", "starts", "ends", "returns", "sizes")
    return [
        {name: getattr(history, name)[i].item() for name in names}
        for i in np.argsort(-history.sizes, kind="stable")[:count]
    ]


def _print_lessons(history: LessonHistory, rows: list[dict[str, Any]]) -> None:
    total = float(np.square(history.sizes).sum()) or 1.0
    shown = sum(row["sizes"] ** 2 for row in rows) / total
    print(f"{history.title}; the {len(rows)} largest have {shown:.0%} of the sum of squared sizes")
    print(f"{'size':>7}  {'episode':>11}  {'steps of run':>15}  {'return':>9}")
    for row in rows:
        steps = f"{short(row['starts'])} to {short(row['ends'])}"
        episode = episode_words(row["episodes"], row["counts"])
        print(f"{row['sizes']:>7.3f}  {episode:>11}  {steps:>15}  {number(row['returns']):>9}")


def _delete(
    policy: RidgePolicy, stored: StoredRun, env: str, arguments: LessonsArguments
) -> dict[str, Any]:
    """Evaluate the policy without some of its lessons; print a table and draw a curve."""

    def returns(lessons: Any) -> Any:
        reduced = policy_without(policy, lessons=lessons)
        return np.array(evaluate(reduced, env, arguments.episodes, arguments.seed).returns)

    whole, deletions = returns([]), list[Deletion]()
    for share in _SHARES:
        count = max(1, round(share * len(policy.lessons)))
        largest = returns(largest_lessons(policy, count))
        seeds = range(arguments.seed, arguments.seed + arguments.draws)
        drawn = [returns(random_lessons(policy, count, seed)).mean() for seed in seeds]
        deletions.append(Deletion(share, count, largest, np.array(drawn)))
    path = stored.folder / DELETION
    title = f"{env}: without some of {len(policy.lessons):,} lessons"
    deletion_figure(title, whole, deletions).savefig(path, dpi=_DOTS_PER_INCH)
    if not arguments.json:
        print(
            f"\ndeterministic return over {arguments.episodes} episodes (mean ± deviation; at "
            f"random that of {arguments.draws} draws)"
        )
        print(f"{'without':<22}  {'the largest':>18}  {'at random':>18}")
        print(f"{'nothing':<22}  {_mean(whole):>18}  {_mean(whole):>18}")
        for each in deletions:
            name = f"{each.share:.0%} ({each.count} lesson{'s' if each.count > 1 else ''})"
            print(f"{name:<22}  {_mean(each.largest):>18}  {_mean(each.random):>18}")
        print(f"picture: {path}")
    return {
        "episodes": arguments.episodes,
        "draws": arguments.draws,
        "whole": whole.tolist(),
        "without": [
            {
                "share": each.share,
                "count": each.count,
                "largest": each.largest.tolist(),
                "random": each.random.tolist(),
            }
            for each in deletions
        ],
        "picture": str(path),
    }


def _mean(returns: Any) -> str:
    return f"{number(float(returns.mean()))} ± {number(float(returns.std()))}"
