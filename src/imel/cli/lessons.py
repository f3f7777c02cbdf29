"""`imel lessons`: the lessons of a run, what each is worth, and what the policy is without some."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.errors import ImelError
from imel.explain.lesson_words import episode_words, number, return_words, steps_words
from imel.explain.reduced import lesson_sizes, random_lessons
from imel.explain.worth import Worth, lesson_worth
from imel.pictures.curve import deletion_figure, lessons_figure
from imel.pictures.style import Array
from imel.policies import Policy
from imel.runs.evaluation import EVALUATION_SEED, delete_lessons, evaluate, play_sampled
from imel.runs.layout import DELETION, LESSONS

Part = tuple[dict[str, Any], list[str]]
"""A part of what is said: for JSON, and as lines."""

_FRESH = 1_000_000
"""Episodes of the policy gradient start this far from those of the evaluation."""


@dataclass(frozen=True)
class LessonsArguments(StoredRunArguments):
    """List the largest lessons of a policy that has some (ridge), and draw them: lessons.png.

    The size of a lesson is what it adds to the action: the root mean square over remembered states.
    --worth estimates to first order, by the policy gradient of fresh episodes. --deletion takes
    back the lessons that carry most, those of the episodes most alike, and as many at random. It is
    about this policy, not about what another run would have become.

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
    """Evaluate the policy without the lessons that harm by two standard errors, and without as many
    at random. Implies --worth."""
    gradient_episodes: int = 32
    """Episodes with sampled actions, for the policy gradient of --worth."""
    deletion: Flag = False
    """Evaluate the policy without 1 %, 5 % and 20 % of its lessons; also draw deletion.png."""
    episodes: int = 10
    """Deterministic episodes of each evaluation."""
    draws: int = 5
    """Draws of random lessons, to compare with."""
    seed: int = EVALUATION_SEED
    """Seed of the episodes, and of the random lessons."""
    json: Flag = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: LessonsArguments = parse(LessonsArguments, argv, "imel lessons")
    stored = given.open(count=1, episodes=1, draws=1, gradient_episodes=4)
    policy: Any = Policy.load(stored.checkpoint)
    if not policy.lessons:  # None, or empty
        held = f"a {type(policy).__name__}, which has memories and no lessons: see imel why"
        held = held if policy.lessons is None else "a policy that has had no lesson yet"
        raise ImelError(f"{stored.model_path} holds {held}")
    judged = given.worth or given.drop_harmful
    env = stored.environment() if judged or given.deletion else stored.env or stored.title
    columns = ("episodes", "counts", "starts", "ends", "returns")
    lessons = {name: policy.lessons.column(name).cpu().numpy() for name in columns}
    lessons["returns"] = lessons["returns"] / lessons["counts"]  # of an episode on average
    lessons["sizes"] = lesson_sizes(policy)
    parts: dict[str, Part] = {}
    if judged:
        first = given.seed + _FRESH  # which no evaluation plays
        seeds = range(first, first + given.gradient_episodes)
        with tqdm(total=1.0, leave=False, disable=given.json or None) as bar:
            played = play_sampled(policy, env, seeds, lambda done: bar.update(done - bar.n))
        worth = lesson_worth(policy, played, policy.settings.gamma)
        lessons |= {"worth": worth.values, "errors": worth.errors}
        parts["worth"] = _judged(worth, lessons["episodes"])
        if given.drop_harmful:
            harmful = lessons["episodes"][worth.harmful()]
            parts["dropped"] = _without_harmful(policy, harmful, env, given)
    if given.deletion:
        parts["deletion"] = _delete(policy, stored.folder / DELETION, env, given)
    title, picture = f"{env}: {len(policy.lessons):,} lessons", stored.folder / LESSONS
    lessons_figure(title, lessons).savefig(picture)
    rows, said = _largest(lessons, given.count)
    lines = [f"{title}; {said[0]}", *said[1:], f"picture: {picture}"]
    if given.json:
        about = {"model": str(stored.model_path), "lessons": rows, "picture": str(picture)}
        document = about | {name: found for name, (found, _) in parts.items()}
        print(json.dumps(document, indent=2, default=np.ndarray.tolist))
    else:
        print("\n".join(lines + [line for _, said in parts.values() for line in ["", *said]]))
    return 0


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


def _without_harmful(policy: Any, harmful: Array, env: str, given: LessonsArguments) -> Part:
    """Evaluate the policy without the lessons that harm, and without as many at random."""
    if not len(harmful):
        return {"lessons": []}, ["no lesson harms by two standard errors: nothing is dropped"]
    count, episodes, seed = len(harmful), given.episodes, given.seed

    def returns(lessons: Array) -> Array:
        return np.array(evaluate(policy.without(lessons=lessons), env, episodes, seed).returns)

    whole, without = returns(harmful[:0]), returns(harmful)
    draws = [random_lessons(policy, count, seed + draw) for draw in range(given.draws)]
    drawn = np.array([returns(lessons).mean() for lessons in draws])
    change = float(without.mean() - whole.mean())
    # Not paired: after the first step episodes of two policies have nothing in common
    spread = np.var([without, whole], axis=1, ddof=1).sum() if episodes > 1 else np.inf
    error = float((spread / episodes) ** 0.5)
    verdict = "better" if change > 2 * error else "worse" if change < -2 * error else "no different"
    played = {"whole": whole, "without": without, "random": drawn}
    return {"lessons": harmful, **played, "change": change, "error": error}, [
        f"deterministic return over {episodes} other starts (mean ± deviation)",
        f"  with all lessons: {_words(whole)}",
        f"  without the {count} that harm: {_words(without)}",
        f"  without {count} at random: {_words(drawn)}",
        f"without them the policy is {verdict}: a change of {number(change)} ± {number(error)} "
        "(standard error)",
    ]


def _delete(policy: Any, picture: Path, env: str, given: LessonsArguments) -> Part:
    """Evaluate the policy without some of its lessons; draw a curve."""
    episodes, draws = given.episodes, given.draws
    with tqdm(total=1.0, leave=False, disable=given.json or None) as bar:
        whole, deletions = delete_lessons(
            policy, env, episodes, draws, given.seed, lambda done: bar.update(done - bar.n)
        )
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
        f"deterministic return over {episodes} episodes without some lessons (mean ± deviation; "
        f"at random that of {draws} draws), and in brackets the change of the action",
        table.to_string(col_space=22),
        f"picture: {picture}",
    ]


def _words(returns: Array) -> str:
    """Return a mean and a deviation."""
    return f"{number(float(returns.mean()))} ± {number(float(returns.std()))}"
