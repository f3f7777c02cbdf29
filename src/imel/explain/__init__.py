"""Why this action: what is behind an answer of the policy, and what it is without some of it.

policy + observation -> LessonExplanation of a `RidgePolicy`: the episodes that taught the action
                     -> Explanation of one of the paper's: the memories it is interpolated from
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.explanation import Explanation, Kind
from imel.explain.familiarity import Familiarity, familiarity_of
from imel.explain.influence import explain_memories
from imel.explain.lessons import LessonExplanation, explain_lessons
from imel.explain.reduced import Rows, chosen_rows, policy_without, refuse_other_family
from imel.names import DimensionNames, names_for
from imel.policy import ImelPolicy, PaperPolicy, RidgePolicy

__all__ = [
    "Explanation",
    "Familiarity",
    "Kind",
    "LessonExplanation",
    "Many",
    "One",
    "Rows",
    "chosen_rows",
    "explain",
    "familiarity_of",
    "policy_without",
]

One = np.ndarray[tuple[int], np.dtype[Any]]
Many = np.ndarray[tuple[int, int], np.dtype[Any]]


@overload
def explain(
    policy: RidgePolicy,
    observation: One,
    *,
    without_lessons: Rows | None = None,
    names: DimensionNames | None = None,
) -> LessonExplanation: ...


@overload
def explain(
    policy: PaperPolicy,
    observation: One,
    without: Rows | None = None,
    without_episodes: Rows | None = None,
) -> Explanation: ...


@overload
def explain(
    policy: ImelPolicy,
    observation: NDArray[Any],
    without: Rows | None = None,
    without_episodes: Rows | None = None,
    without_lessons: Rows | None = None,
    names: DimensionNames | None = None,
) -> Any: ...


def explain(
    policy: ImelPolicy,
    observation: NDArray[Any],
    without: Rows | None = None,
    without_episodes: Rows | None = None,
    without_lessons: Rows | None = None,
    names: DimensionNames | None = None,
) -> Any:
    """Explain the policy's mean at an observation, or at each of several.

    A `RidgePolicy` is explained by its lessons (`LessonExplanation`), one of the paper's policies
    by its memories (`Explanation`).

    :param observation: [d_s] for one explanation, [T, d_s] for a list of them
    :param without: rows of the memory, or a mask over them, that one of the paper's policies is to
        do without
    :param without_episodes: episodes whose memories one of the paper's policies is to do without
    :param without_lessons: episodes whose lessons a `RidgePolicy` is to do without
    :param names: names of state and action dimensions; numbers if not given
    """
    states = _checked(policy, observation)
    memories = without is not None or without_episodes is not None
    refuse_other_family(policy, memories, without_lessons is not None)
    width = states.shape[-1]
    tensors = torch.as_tensor(states.reshape(-1, width), device=policy.device)
    explained: list[Any]
    if isinstance(policy, RidgePolicy):
        if without_lessons is not None and len(without_lessons):
            policy = policy_without(policy, lessons=without_lessons)
        named = names or names_for(None, policy.state_dim, policy.action_dim)
        explained = list(explain_lessons(policy, tensors, named))
    elif isinstance(policy, PaperPolicy):
        left_out = chosen_rows(policy, without, without_episodes)
        kept = np.flatnonzero(~left_out)
        if left_out.any():
            policy = policy_without(policy, left_out)
        explained = [explain_memories(policy, kept, state[None]) for state in tensors]
    else:
        raise ImelError(f"{type(policy).__name__} is neither a RidgePolicy nor a PaperPolicy")
    return explained[0] if states.ndim == 1 else explained


def _checked(policy: ImelPolicy, observation: NDArray[Any]) -> NDArray[Any]:
    """Return observations; refuse what the policy cannot observe."""
    states = np.asarray(observation, dtype=np.float32)
    width = policy.state_dim
    if states.ndim not in (1, 2) or states.shape[-1] != width:
        raise ImelError(
            f"observations of shape ({width},) are explained, or several as (T, {width}), "
            f"not {states.shape}"
        )
    if not np.isfinite(states).all():
        raise ImelError("the observation is not finite")
    return states
