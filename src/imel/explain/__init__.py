"""Why this action: what is behind an answer of the policy, and what it is without some of it.

policy + observation -> LessonExplanation of a `RidgePolicy`: the episodes that taught the action
                     -> Explanation of any other: the memories it is computed from
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.by_lessons import LessonExplanation
from imel.explain.by_memories import Explanation
from imel.explain.familiarity import familiarity_of
from imel.explain.reduced import P, chosen_rows
from imel.policies.base import Policy, Rows
from imel.policies.names import DimensionNames, names_for

__all__ = ["Explanation", "LessonExplanation", "explain", "familiarity_of", "policy_without"]


def explain(
    policy: Policy,
    observation: NDArray[Any],
    without: Rows = None,
    without_episodes: Rows = None,
    without_lessons: Rows = None,
    names: DimensionNames | None = None,
) -> Any:
    """Explain the policy's mean at an observation, or at each of several, which gives a list.

    :param observation: [d_s] for one explanation, [T, d_s] for a list of them; where the policy
        observes no vectors an observation, several of them, or raw states as in its memory
    :param without: rows of the memory, or a mask over them, that the policy is to do without
    :param without_episodes: episodes whose memories it is to do without
    :param without_lessons: episodes whose lessons a `RidgePolicy` is to do without
    :param names: names of state and action dimensions; numbers if not given
    """
    states = _checked(policy, observation)
    tensors = torch.as_tensor(states.reshape(-1, states.shape[-1]), device=policy.device)
    named, reduced = names or names_for(None, policy.dimensions), policy
    memories = without is not None or without_episodes is not None
    if memories or without_lessons is not None:
        reduced = policy_without(policy, without, without_episodes, without_lessons)
    explained: list[Any] = list(reduced.explain(tensors, named))
    if memories:  # rows keep the numbers that they have in the whole memory
        kept = np.flatnonzero(~chosen_rows(policy, without, without_episodes))
        explained = [replace(each, rows=kept[each.rows]) for each in explained]
    return explained[0] if states.ndim == 1 else explained


def policy_without(policy: P, rows: Rows = None, episodes: Rows = None, lessons: Rows = None) -> P:
    """Return a copy of the policy that lacks some memories, or some lessons of a `RidgePolicy`.

    It is what this policy does without what it was taught there, not what a run that never saw it
    would have become: weights, normaliser, sigma and later lessons stay.

    :param rows: rows of the memory, or a mask over them (not of a `RidgePolicy`)
    :param episodes: episodes whose memories are left out (not of a `RidgePolicy`)
    :param lessons: episodes whose lessons, or the periods they are in, are taken back
    """
    return policy.without(lessons=lessons, rows=rows, episodes=episodes)


def _checked(policy: Policy, observation: NDArray[Any]) -> NDArray[Any]:
    """Return raw states; refuse what the policy cannot observe."""
    width = policy.state_dim
    given = isinstance(observation, np.ndarray) and observation.shape[-1:] == (width,)
    if policy.features_extractor is not None and not given:
        try:
            observed, several = policy.observe(observation), policy.obs_to_tensor(observation)[1]
        except (ValueError, TypeError) as error:
            raise ImelError(f"the policy cannot observe this: {error}") from None
        return observed if several else observed[0]
    states = np.asarray(observation, dtype=np.float32)
    if states.ndim not in (1, 2) or states.shape[-1] != width or not np.isfinite(states).all():
        raise ImelError(
            f"finite observations of shape ({width},) are explained, or several as (T, {width}), "
            f"not {states if states.size <= width else states.shape}"
        )
    return states
