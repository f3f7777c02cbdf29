"""Which lessons of a run help and which harm, for `imel lessons`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from imel.explain import policy_without
from imel.explain.lesson_words import number
from imel.explain.reduced import random_lessons
from imel.explain.worth import Worth, lesson_worth
from imel.policies import RidgePolicy
from imel.runs.evaluation import evaluate, play_sampled
from imel.runs.stored import StoredRun

Array = NDArray[Any]

_FRESH = 1_000_000
"""Episodes of the policy gradient start this far from those of the evaluation."""


@contextmanager
def progress_bar(name: str, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show how far some work is, on standard error."""
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def mean_words(returns: Array) -> str:
    """Return a mean and a deviation."""
    return f"{number(float(returns.mean()))} ± {number(float(returns.std()))}"


def worth_of(
    policy: RidgePolicy, env: str, stored: StoredRun, episodes: int, seed: int, quiet: bool
) -> Worth:
    """Estimate what lessons are worth from episodes that no evaluation plays."""
    first = seed + _FRESH
    with progress_bar("policy gradient", quiet) as progress:
        seeds = range(first, first + episodes)
        played = play_sampled(policy, env, seeds, progress)
    return lesson_worth(
        policy, played, float(stored.config.get("gamma", RidgePolicy.Settings().gamma))
    )


def judged_lessons(worth: Worth, policy: RidgePolicy) -> dict[str, Any]:
    """Return which lessons help and which harm, and the worth of each."""
    episodes = policy.lessons.column("episodes").cpu().numpy()
    return {
        "harmful": episodes[worth.harmful()].tolist(),
        "helpful": episodes[worth.scores > 2.0].tolist(),
        "lessons": [
            {"episodes": int(episode), "worth": float(value), "error": float(error)}
            for episode, value, error in zip(episodes, worth.values, worth.errors, strict=True)
        ],
    }


def worth_words(worth: Worth) -> list[str]:
    """Say how many lessons help and harm, and how many would by chance."""
    count, harmful = len(worth.values), len(worth.harmful())
    helpful = int((worth.scores > 2.0).sum())
    return [
        "",
        f"worth to the return, to first order, by {worth.episodes} fresh episodes: {helpful} of "
        f"{count} lessons help and {harmful} harm by more than two standard errors",
        f"(about {0.023 * count:.0f} of each are expected by chance)",
    ]


def drop_harmful(
    policy: RidgePolicy, worth: Worth, env: str, episodes: int, draws: int, seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Evaluate the policy without the lessons that harm, and without as many at random."""
    harmful = policy.lessons.column("episodes").cpu().numpy()[worth.harmful()]
    if not len(harmful):
        return {"lessons": []}, ["no lesson harms by two standard errors: nothing is dropped"]

    def returns(lessons: Array) -> Array:
        reduced = policy_without(policy, lessons=lessons)
        return np.array(evaluate(reduced, env, episodes, seed).returns)

    whole, without = returns(harmful[:0]), returns(harmful)
    drawn = [
        returns(random_lessons(policy, len(harmful), seed + draw)).mean() for draw in range(draws)
    ]
    change, error = _difference(without, whole)
    verdict = "better" if change > 2 * error else "worse" if change < -2 * error else "no different"
    lines = [
        "",
        f"deterministic return over {episodes} other starts (mean ± deviation)",
        f"  with all lessons            {mean_words(whole)}",
        f"  without the {len(harmful):>3} that harm     {mean_words(without)}",
        f"  without {len(harmful):>3} at random       {mean_words(np.array(drawn))}",
        f"without them the policy is {verdict}: {change:+,.0f} ± {error:,.0f} (standard error)",
        "later lessons may have made up for harmful ones, and are then too much",
    ]
    document = {
        "lessons": harmful.tolist(),
        "whole": whole.tolist(),
        "without": without.tolist(),
        "random": [float(value) for value in drawn],
        "change": change,
        "error": error,
    }
    return document, lines


def _difference(after: Array, before: Array) -> tuple[float, float]:
    """Return the mean difference of returns and its standard error."""
    # Not paired: after the first step episodes of two policies have nothing in common
    variances = [
        returns.var(ddof=1) / len(returns) if len(returns) > 1 else np.inf
        for returns in (after, before)
    ]
    return float(after.mean() - before.mean()), float(sum(variances) ** 0.5)
