"""Why this action: the memories behind an answer of the policy, and what it is without some.

policy + observation -> influence of each memory, familiarity of the state -> Explanation
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.explain.explanation import Explanation, Kind
from imel.explain.familiarity import Familiarity, familiarity_of
from imel.explain.influence import influence_at
from imel.explain.reduced import Rows, chosen_rows, policy_without
from imel.policy import ImelPolicy

__all__ = [
    "Explanation",
    "Familiarity",
    "Kind",
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
    policy: ImelPolicy,
    observation: One,
    without: Rows | None = None,
    without_episodes: Rows | None = None,
) -> Explanation: ...


@overload
def explain(
    policy: ImelPolicy,
    observation: Many,
    without: Rows | None = None,
    without_episodes: Rows | None = None,
) -> list[Explanation]: ...


def explain(
    policy: ImelPolicy,
    observation: NDArray[Any],
    without: Rows | None = None,
    without_episodes: Rows | None = None,
) -> Explanation | list[Explanation]:
    """The memories behind the policy's mean at an observation, or at each of several.

    :param observation: [d_s] for one explanation, [T, d_s] for a list of them
    :param without: rows of the memory, or a mask over them, that the policy is to do without
    :param without_episodes: episodes it is to do without
    """
    states = np.asarray(observation, dtype=np.float32)
    assert policy.observation_space.shape is not None
    width = policy.observation_space.shape[0]
    if states.ndim not in (1, 2) or states.shape[-1] != width:
        raise ImelError(
            f"observations of shape ({width},) are explained, or several as (T, {width}), "
            f"not {states.shape}"
        )
    if not np.isfinite(states).all():
        raise ImelError("the observation is not finite")
    left_out = chosen_rows(policy, without, without_episodes)
    kept = np.flatnonzero(~left_out)
    if left_out.any():
        policy = policy_without(policy, left_out)
    tensors = torch.as_tensor(states.reshape(-1, width), device=policy.device)
    explained = [_explain(policy, kept, state[None]) for state in tensors]
    return explained[0] if states.ndim == 1 else explained


def _explain(policy: ImelPolicy, numbers: NDArray[Any], state: Tensor) -> Explanation:
    """`numbers` are those of the memory's rows before some were left out."""
    memory = policy.memory
    mean = policy.decide(state)[0][0]
    influence = influence_at(policy, policy.normaliser(state))
    if influence.kind == "none":
        places, place = policy.normaliser(memory.column("states")), policy.normaliser(state)
        nearness = torch.cdist(place, places)[0]
        order = nearness.argsort(stable=True)
    else:
        # Those without a share may still add something: after the others, what adds most first
        added = influence.contributions.abs().sum(dim=1).argsort(descending=True, stable=True)
        order = added[influence.weights[added].abs().argsort(descending=True, stable=True)]

    def array(column: Tensor) -> NDArray[Any]:
        return column[order].cpu().numpy()

    return Explanation(
        observation=state[0].cpu().numpy(),
        mean=mean.cpu().numpy(),
        kind=influence.kind,
        familiarity=float(familiarity_of(policy)(state)[0]),
        effective_neighbours=influence.effective_neighbours,
        weights=array(influence.weights),
        contributions=array(influence.contributions),
        rows=numbers[order.cpu().numpy()],
        **{name: array(memory.column(name)) for name in Explanation.columns()},
    )
