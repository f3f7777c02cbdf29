"""What the lessons of a trained policy are worth, measured by playing it with and without some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.environments.playing import environment_of, play_policy
from imel.explain.reduced import largest_lessons, random_lessons, similar_lessons
from imel.explain.worth import PlayedEpisode
from imel.policies import Policy, RidgePolicy
from imel.runs.evaluation import evaluate

Array = NDArray[Any]

SHARES = (0.01, 0.05, 0.2)
"""Of the lessons, that are taken back."""


@dataclass(frozen=True, eq=False)
class Removal:
    """The policy without some lessons: its returns, and how far its action has moved."""

    returns: Array  # [episodes], or [draws] means over episodes
    shift: float
    """Root mean square of the change of the mean over the states that the whole policy visits."""


@dataclass(frozen=True, eq=False)
class Deletion:
    """The policy without a share of its lessons, chosen in three ways."""

    share: float
    count: int
    largest: Removal
    similar: Removal
    random: Removal


def play_sampled(
    policy: RidgePolicy,
    env_id: str,
    seeds: Sequence[int],
    progress: Callable[[float], None] = lambda share: None,
) -> list[PlayedEpisode]:
    """Play an episode with sampled actions for each seed."""
    played = []
    with environment_of(policy, env_id) as env:
        for number, seed in enumerate(seeds, start=1):
            episode = play_policy(env, policy, seed, sampled=True)
            steps = [(each.state, each.action, step.reward) for each, step in episode]
            played.append(PlayedEpisode(*map(np.array, zip(*steps, strict=True))))
            progress(number / len(seeds))
    return played


def visited_states(policy: Policy, env_id: str, seed: int) -> Array:
    """Return the raw states of a deterministic episode."""  # [T, d_s]
    with environment_of(policy, env_id) as env:
        return np.array([decision.state for decision, _ in play_policy(env, policy, seed)])


def delete_lessons(
    policy: RidgePolicy,
    env_id: str,
    episodes: int,
    draws: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[Array, list[Deletion]]:
    """Evaluate a policy without the lessons that carry most of it, similar ones and random ones.

    Return the returns of the whole policy and one `Deletion` for each of the `SHARES`.
    """
    visited = torch.from_numpy(visited_states(policy, env_id, seed))
    means = policy.act(visited)[0]
    done, all_of_it = 1, 1 + len(SHARES) * (2 + draws)

    def without(lessons: Array) -> Removal:
        nonlocal done
        reduced = policy.without(lessons=lessons)
        shift = float((reduced.act(visited)[0] - means).square().sum(dim=1).mean().sqrt())
        returns = np.array(evaluate(reduced, env_id, episodes, seed).returns)
        done += 1
        progress(done / all_of_it)
        return Removal(returns, shift)

    whole, deletions = np.array(evaluate(policy, env_id, episodes, seed).returns), []
    for share in SHARES:
        assert policy.lessons is not None
        count = max(1, round(share * len(policy.lessons)))
        drawn = [without(random_lessons(policy, count, seed + draw)) for draw in range(draws)]
        deletion = Deletion(
            share,
            count,
            largest=without(largest_lessons(policy, count)),
            similar=without(similar_lessons(policy, visited.numpy(), count)),
            random=Removal(
                np.array([each.returns.mean() for each in drawn]),
                float(np.mean([each.shift for each in drawn])),
            ),
        )
        deletions.append(deletion)
    return whole, deletions
