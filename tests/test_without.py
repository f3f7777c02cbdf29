"""What would one of the paper's policies do, had it not seen that? What the others make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from imel import IMeL
from imel.errors import ImelError
from imel.explain import policy_without
from imel.policies import Policy
from small import BATCH, POLICIES, STATES, differing, small_model, tensors_of

papers_policies = pytest.mark.parametrize("name", sorted({*POLICIES} - {"RidgePolicy"}))


def trained(policy: str = "MkiPolicy", **settings: Any) -> IMeL:
    return small_model(policy, **settings).learn(2 * BATCH)


def rebuilt(policy: Policy, kept: np.ndarray) -> Policy:
    """A new policy with the same weights that has only ever had some of the rows."""
    arguments = policy._get_constructor_parameters() | {"memory_size": len(kept)}
    made = type(policy)(policy.observation_space, policy.action_space, **arguments)
    state = policy.state_dict()
    for name in policy.memory.column_names:
        state[f"memory.{name}"] = policy.memory.column(name)[kept]
    state["memory._size"] = torch.tensor(len(kept))
    made.load_state_dict(state)
    return made


def means(policy: Policy) -> np.ndarray:
    return policy.act(torch.from_numpy(STATES))[0].numpy()


@papers_policies
def test_it_is_the_policy_rebuilt_from_what_is_left(name: str) -> None:
    policy = trained(name).policy
    rows = np.arange(0, len(policy.memory), 3)
    kept = np.setdiff1d(np.arange(len(policy.memory)), rows)
    before = means(policy)

    reduced = policy_without(policy, rows)

    np.testing.assert_allclose(means(reduced), means(rebuilt(policy, kept)), rtol=0, atol=1e-6)
    assert len(reduced.memory) == len(kept)
    if name != "RegressorPolicy":  # which needs no memories to answer
        assert np.abs(means(reduced) - before).max() > 1e-4


def test_the_model_itself_is_not_changed() -> None:
    model = trained()
    before, answered = tensors_of(model), means(model.policy)
    reduced = policy_without(model.policy, [0, 5])
    with torch.no_grad():
        for parameter in reduced.parameters():
            parameter.add_(1.0)
    reduced.normaliser.update(torch.full((9, 2), 50.0))

    assert differing(before, tensors_of(model)) == []
    np.testing.assert_array_equal(means(model.policy), answered)


@papers_policies
def test_an_explanation_without_rows_is_that_of_the_reduced_policy(name: str) -> None:
    model = trained(name)
    largest = model.explain(STATES[0]).rows[:10]

    why = model.explain(STATES[0], without=largest)

    reduced = policy_without(model.policy, largest)
    np.testing.assert_allclose(why.mean, means(reduced)[0], rtol=0, atol=1e-6)
    assert not np.isin(largest, why.rows).any()
    assert len(why.rows) == len(model.policy.memory) - 10
    memory = model.policy.memory
    np.testing.assert_array_equal(why.states, memory.column("states")[why.rows].numpy())
    if why.exact:
        np.testing.assert_allclose(why.contributions.sum(axis=0), why.mean, rtol=0, atol=1e-5)


def test_a_mask_rows_and_episodes_say_the_same() -> None:
    model = trained()
    episodes = model.policy.memory.column("episodes").numpy()
    chosen = np.unique(episodes)[1:3]
    mask = np.isin(episodes, chosen)

    by_mask = model.explain(STATES[1], without=mask)
    by_rows = model.explain(STATES[1], without=np.flatnonzero(mask).tolist())
    by_episodes = model.explain(STATES[1], without_episodes=chosen)

    for why in (by_rows, by_episodes):
        np.testing.assert_array_equal(why.rows, by_mask.rows)
        np.testing.assert_array_equal(why.mean, by_mask.mean)
    assert not np.isin(by_episodes.episodes, chosen).any()


def test_nothing_left_out_is_the_policy_as_it_is() -> None:
    model = trained()
    np.testing.assert_array_equal(
        model.explain(STATES[0], without=[]).mean, model.explain(STATES[0]).mean
    )


def test_lessons_are_not_taken_from_a_policy_of_memories() -> None:
    with pytest.raises(ImelError, match="MkiPolicy has memories and no lessons") as refusal:
        trained().policy_without(lessons=[0])
    assert "without_episodes" in str(refusal.value)
    with pytest.raises(ImelError, match="no lessons"):
        trained().explain(STATES[0], without_lessons=[0])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"without": [128]}, "0 to 127"),
        ({"without": [-1]}, "0 to 127"),
        ({"without": [0.5]}, "by their rows"),
        ({"without": [True, False]}, r"mask over 128 memories"),
        ({"without": list(range(128))}, "at least one"),
        ({"without_episodes": [999]}, "no memory of episode 999"),
    ],
)
def test_what_cannot_be_left_out_is_refused(arguments: dict[str, list[int]], reason: str) -> None:
    with pytest.raises(ImelError, match=reason):
        trained().explain(STATES[0], **arguments)
