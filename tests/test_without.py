"""What would a policy do, had it not seen some memories? What the others make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from imel import IMeL
from imel.errors import ImelError
from imel.explain import policy_without
from imel.policies import Policy
from small import BATCH, POLICIES, STATES, differing, small_model, tensors_of


@pytest.fixture(scope="module")
def model() -> IMeL:
    return small_model("MkiPolicy").learn(2 * BATCH)


def rebuilt(policy: Policy, kept: np.ndarray) -> Policy:
    """A new policy with the same weights that has only ever had some of the rows."""
    settings = replace(policy.settings, memory_size=len(kept))
    made = type(policy)(policy.observation_space, policy.action_space, settings)
    state = policy.state_dict()
    for name in policy.memory.column_names:
        state[f"memory.{name}"] = policy.memory.column(name)[kept]
    state["memory._size"] = torch.tensor(len(kept))
    made.load_state_dict(state)
    return made


def means(policy: Policy) -> np.ndarray:
    return policy.act(torch.from_numpy(STATES))[0].numpy()


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"RidgePolicy"}))
def test_it_is_the_policy_rebuilt_from_what_is_left(name: str) -> None:
    model = small_model(name).learn(2 * BATCH)
    policy, memory = model.policy, model.policy.memory
    rows = model.explain(STATES[0]).rows[:40]
    kept = np.setdiff1d(np.arange(len(memory)), rows)
    before, held = means(policy), tensors_of(model)

    reduced = policy_without(policy, rows)

    np.testing.assert_allclose(means(reduced), means(rebuilt(policy, kept)), rtol=0, atol=1e-6)
    assert len(reduced.memory) == len(kept)
    if name != "RegressorPolicy":  # which needs no memories to answer
        assert np.abs(means(reduced) - before).max() > 1e-4
    why = model.explain(STATES[0], without=rows)
    np.testing.assert_allclose(why.mean, means(reduced)[0], rtol=0, atol=1e-6)
    assert sorted(why.rows) == kept.tolist(), "numbers in the whole memory"
    np.testing.assert_array_equal(why.states, memory.column("states")[why.rows].numpy())

    with torch.no_grad():
        for parameter in reduced.parameters():
            parameter.add_(1.0)
    reduced.normaliser.update(torch.full((9, 2), 50.0))
    assert differing(held, tensors_of(model)) == [], "the model itself is not changed"
    np.testing.assert_array_equal(means(policy), before)


def test_a_mask_rows_and_episodes_say_the_same(model: IMeL) -> None:
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
    nothing = model.explain(STATES[0], without=[])
    np.testing.assert_array_equal(nothing.mean, model.explain(STATES[0]).mean)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"without": [128]}, "by their rows, 0 to 127, .+ 128 is out of bounds"),
        ({"without": [0.5]}, "by their rows"),
        ({"without": [True, False]}, r"mask over 128 memories"),
        ({"without": list(range(128))}, "at least one"),
        ({"without_episodes": [999]}, "no memory of episode 999"),
        ({"without_lessons": [0]}, "MkiPolicy has memories and no lessons: .+ without_episodes"),
    ],
)
def test_what_cannot_be_left_out_is_refused(
    model: IMeL, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ImelError, match=reason) as refusal:
        model.explain(STATES[0], **arguments)
    assert "\n" not in str(refusal.value)
