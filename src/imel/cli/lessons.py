"""`imel lessons`: the lessons of a run, what each is worth, and what the policy is without some."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.errors import ImelError
from imel.explain.lesson_words import episode_words, number, return_words, steps_words
from imel.explain.reduced import lesson_sizes, random_lessons
from imel.explain.worth import Worth, lesson_worth
from imel.pictures.lesson_figures import deletion_figure, lessons_figure
from imel.policies import Policy
from imel.runs.deletion import delete_lessons, play_sampled
from imel.runs.evaluation import EVALUATION_SEED, evaluate
from imel.runs.layout import DELETION, LESSONS
from imel.runs.stored import StoredRun

Array = NDArray[Any]
Part = tuple[dict[str, Any], list[str]]
"""A part of what is said: for JSON, and as lines."""

_FRESH = 1_000_000
"""Episodes of the policy gradient start this far from those of the evaluation."""


@dataclass(frozen=True)
class LessonsArguments(StoredRunArguments):
    """List the largest lessons of a policy that has some (ridge), and draw when they were taught.

    The picture is lessons.png. The size of a lesson is what it adds to the action: the root mean
    square over remembered states.

    --worth asks which lessons help and which harm: what each is worth to the return, to first
    order, by the policy gradient of fresh episodes. --drop-harmful evaluates the policy without
    those that harm, on other starts. --deletion evaluates it without the lessons that carry most of
    it, without those of the episodes most alike, and without as many at random.

    All of it is about this policy without what it was taught there, not about what another run
    would have become.

    examples:
      imel lessons runs/cheetah
      imel lessons runs/cheetah --worth --gradient-episodes 64
      imel lessons runs/cheetah --deletion --episodes 20
    """

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
    arguments: LessonsArguments = parse(LessonsArguments, argv, "imel lessons")
    stored = arguments.open(count=1, episodes=1, draws=1, gradient_episodes=4)
    policy = _policy_of(stored)
    judged = arguments.worth or arguments.drop_harmful
    plays = judged or arguments.deletion
    env = stored.environment() if plays else stored.env or stored.title
    columns = ("episodes", "counts", "starts", "ends", "returns")
    lessons = {name: policy.lessons.column(name).cpu().numpy() for name in columns}
    lessons["returns"] = lessons["returns"] / lessons["counts"]  # of an episode on average
    lessons["sizes"] = lesson_sizes(policy)
    worth = _worth_of(policy, env, arguments) if judged else None
    if worth is not None:
        lessons |= {"worth": worth.values, "errors": worth.errors}
    title, picture = f"{env}: {len(policy.lessons):,} lessons", stored.folder / LESSONS
    lessons_figure(title, lessons).savefig(picture)
    rows, said = _largest(lessons, arguments.count)
    lines = [f"{title}; {said[0]}", *said[1:], f"picture: {picture}"]
    parts: dict[str, Part] = {}
    if worth is not None:
        parts["worth"] = _judged(worth, lessons["episodes"])
        if arguments.drop_harmful:
            parts["dropped"] = _without_harmful(policy, worth, env, arguments)
    if arguments.deletion:
        parts["deletion"] = _delete(policy, stored.folder / DELETION, env, arguments)
    if arguments.json:
        about = {"model": str(stored.model_path), "lessons": rows, "picture": str(picture)}
        document = about | {name: found for name, (found, _) in parts.items()}
        print(json.dumps(document, indent=2, default=np.ndarray.tolist))
    else:
        print("\n".join(lines + [line for _, said in parts.values() for line in ["", *said]]))
    return 0


def _policy_of(stored: StoredRun) -> Any:
    """Return the trained policy, which has lessons."""
    policy = Policy.load(stored.checkpoint)
    if policy.lessons is None:
        raise ImelError(
            f"{stored.model_path} holds a {type(policy).__name__}, which has memories and no "
            "lessons: see imel why"
        )
    if not len(policy.lessons):
        raise ImelError(f"the policy in {stored.model_path} has had no lesson yet")
    return policy


@contextmanager
def _progress_bar(name: str, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show how far some work is, on standard error."""
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _largest(lessons: dict[str, Array], count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the largest lessons."""
    order = np.argsort(-lessons["sizes"], kind="stable")[:count]
    rows = [{name: column[i].item() for name, column in lessons.items()} for i in order]
    squares = np.square(lessons["sizes"])
    share = float(squares[order].sum() / (squares.sum() or 1.0))
    table = {
        "size": [f"{row['sizes']:.3f}" for row in rows],
        "episode": [episode_words(row["episodes"], row["counts"]) for row in rows],
        "steps of run": [steps_words(row["starts"], row["ends"]) for row in rows],
        "return": [return_words(row["returns"], row["ends"]) for row in rows],
    }
    if "worth" in lessons:
        table["worth"] = [f"{number(row['worth'])} ± {number(row['errors'])}" for row in rows]
    heading = f"the {len(rows)} largest have {share:.0%} of the sum of squared sizes"
    return rows, [heading, pd.DataFrame(table).to_string(index=False, col_space=13)]


def _worth_of(policy: Any, env: str, arguments: LessonsArguments) -> Worth:
    """Estimate what lessons are worth from episodes that no evaluation plays."""
    first = arguments.seed + _FRESH
    seeds = range(first, first + arguments.gradient_episodes)
    with _progress_bar("policy gradient", arguments.json) as progress:
        played = play_sampled(policy, env, seeds, progress)
    return lesson_worth(policy, played, policy.settings.gamma)


def _judged(worth: Worth, episodes: Array) -> Part:
    """Return which lessons help and harm, how many would by chance, and the worth of each."""
    count, harmful, helpful = len(episodes), episodes[worth.harmful()], episodes[worth.scores > 2.0]
    columns = {"episodes": episodes, "worth": worth.values, "error": worth.errors}
    lessons = pd.DataFrame(columns).to_dict("records")
    document = {"episodes": worth.episodes, "harmful": harmful, "helpful": helpful}
    return document | {"lessons": lessons}, [
        f"worth to the return, to first order, by {worth.episodes} fresh episodes: {len(helpful)} "
        f"of {count} lessons help and {len(harmful)} harm by more than two standard errors",
        f"(about {0.023 * count:.0f} of each are expected by chance)",
    ]


def _without_harmful(policy: Any, worth: Worth, env: str, arguments: LessonsArguments) -> Part:
    """Evaluate the policy without the lessons that harm, and without as many at random."""
    harmful = policy.lessons.column("episodes").cpu().numpy()[worth.harmful()]
    if not len(harmful):
        return {"lessons": []}, ["no lesson harms by two standard errors: nothing is dropped"]
    count, episodes, seed = len(harmful), arguments.episodes, arguments.seed

    def returns(lessons: Array) -> Array:
        return np.array(evaluate(policy.without(lessons=lessons), env, episodes, seed).returns)

    whole, without = returns(harmful[:0]), returns(harmful)
    draws = [random_lessons(policy, count, seed + draw) for draw in range(arguments.draws)]
    drawn = np.array([returns(lessons).mean() for lessons in draws])
    change = float(without.mean() - whole.mean())
    # Not paired: after the first step episodes of two policies have nothing in common
    spread = np.var([without, whole], axis=1, ddof=1).sum() if episodes > 1 else np.inf
    error = float((spread / episodes) ** 0.5)
    verdict = "better" if change > 2 * error else "worse" if change < -2 * error else "no different"
    played = {"whole": whole, "without": without, "random": drawn}
    names = ["with all lessons", f"without the {count} that harm", f"without {count} at random"]
    width = max(map(len, names))
    return {"lessons": harmful, **played, "change": change, "error": error}, [
        f"deterministic return over {episodes} other starts (mean ± deviation)",
        *(f"  {n:<{width}}  {_words(r)}" for n, r in zip(names, played.values(), strict=True)),
        f"without them the policy is {verdict}: a change of {number(change)} ± {number(error)} "
        "(standard error)",
        "later lessons may have made up for harmful ones, and are then too much",
    ]


def _delete(policy: Any, picture: Path, env: str, arguments: LessonsArguments) -> Part:
    """Evaluate the policy without some of its lessons; draw a curve."""
    episodes, draws = arguments.episodes, arguments.draws
    with _progress_bar("deletion", arguments.json) as progress:
        whole, deletions = delete_lessons(policy, env, episodes, draws, arguments.seed, progress)
    title = f"{env}: without some of {len(policy.lessons):,} lessons"
    deletion_figure(title, whole, deletions).savefig(picture)
    kinds = {"largest": "largest shares", "similar": "most similar", "random": "at random"}
    cells = {"nothing": [f"{_words(whole)} (0.00)"] * len(kinds)}
    for each in deletions:
        removals = [getattr(each, kind) for kind in kinds]
        cells[f"{each.share:.0%} ({each.count} lesson{'s' if each.count > 1 else ''})"] = [
            f"{_words(removal.returns)} ({removal.shift:.2f})" for removal in removals
        ]
    table = pd.DataFrame.from_dict(cells, "index", columns=list(kinds.values()))
    document = {"episodes": episodes, "draws": draws, "whole": whole, "picture": str(picture)}
    return document | {"without": [asdict(each) for each in deletions]}, [
        f"deterministic return over {episodes} episodes without some lessons (mean ± deviation; at "
        f"random that of {draws} draws), and in brackets the change of the action",
        table.to_string(col_space=22),
        f"picture: {picture}",
    ]


def _words(returns: Array) -> str:
    """Return a mean and a deviation."""
    return f"{number(float(returns.mean()))} ± {number(float(returns.std()))}"
