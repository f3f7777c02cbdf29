"""Why this action: what is behind an answer of the policy, and what it is without some of it.

policy + observation -> LessonExplanation of a `RidgePolicy`: the episodes that taught the action
                     -> Explanation of one of the paper's: the memories it is interpolated from
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.by_lessons import LessonExplanation
from imel.explain.explanation import Explanation, Kind
from imel.explain.familiarity import Familiarity, familiarity_of
from imel.explain.reduced import Rows, chosen_rows, policy_without
from imel.policies.base import Policy
from imel.policies.names import DimensionNames, names_for

__all__ = [
    "Explanation",
    "Familiarity",
    "Kind",
    "LessonExplanation",
    "Rows",
    "chosen_rows",
    "explain",
    "familiarity_of",
    "policy_without",
]


def explain(
    policy: Policy,
    observation: NDArray[Any],
    without: Rows | None = None,
    without_episodes: Rows | None = None,
    without_lessons: Rows | None = None,
    names: DimensionNames | None = None,
) -> Any:
    """Explain the policy's mean at an observation, or at each of several, which gives a list.

    A `RidgePolicy` is explained by its lessons (`LessonExplanation`), one of the paper's policies
    by its memories (`Explanation`).

    :param observation: [d_s] for one explanation, [T, d_s] for a list of them; where the policy
        observes no vectors an observation, several of them, or raw states as in its memory
    :param without: rows of the memory, or a mask over them, that one of the paper's policies is to
        do without
    :param without_episodes: episodes whose memories one of the paper's policies is to do without
    :param without_lessons: episodes whose lessons a `RidgePolicy` is to do without
    :param names: names of state and action dimensions; numbers if not given
    """
    states = _checked(policy, observation)
    width = states.shape[-1]
    tensors = torch.as_tensor(states.reshape(-1, width), device=policy.device)
    named = names or names_for(None, policy.dimensions)
    if without is not None or without_episodes is not None or without_lessons is not None:
        policy = policy.without(without_lessons, without, without_episodes)
    explained = list(policy.explain(tensors, named))
    return explained[0] if states.ndim == 1 else explained


def _checked(policy: Policy, observation: NDArray[Any]) -> NDArray[Any]:
    """Return raw states; refuse what the policy cannot observe."""
    width = policy.state_dim
    given = isinstance(observation, np.ndarray) and observation.shape[-1:] == (width,)
    if policy.features_extractor is not None and not given:
        try:
            several = policy.obs_to_tensor(observation)[1]
        except (ValueError, TypeError) as error:
            raise ImelError(f"the policy cannot observe this: {error}") from None
        observed = policy.observe(observation)
        return observed if several else observed[0]
    states = np.asarray(observation, dtype=np.float32)
    if states.ndim not in (1, 2) or states.shape[-1] != width:
        raise ImelError(
            f"observations of shape ({width},) are explained, or several as (T, {width}), "
            f"not {states.shape}"
        )
    if not np.isfinite(states).all():
        raise ImelError("the observation is not finite")
    return states
