"""An episode that a policy plays: what it decided at each step, and what came of it."""

from __future__ import annotations

import numpy as np
import pytest

from imel import IMeL
from imel.environments.playing import environment_of, play_policy
from imel.errors import ImelError
from imel.policies import Policy


@pytest.fixture(scope="module", params=["Pendulum-v1", "CartPole-v1"])
def played(request: pytest.FixtureRequest) -> tuple[Policy, str]:
    env_id: str = request.param
    return IMeL("RidgePolicy", env_id, rollout_size=64, seed=0).learn(64).policy, env_id


def test_mean_actions_are_those_that_the_policy_predicts(played: tuple[Policy, str]) -> None:
    policy, env_id = played
    seen = list[int]()
    with environment_of(policy, env_id) as env:
        for number, (decision, step) in enumerate(play_policy(env, policy, 3, look=seen.append)):
            assert seen == list(range(number + 1)), "it is looked at before each step"
            predicted, _ = policy.predict(step.observation, deterministic=True)
            np.testing.assert_array_equal(step.action, predicted)
            np.testing.assert_array_equal(decision.state, policy.observe(step.observation)[0])
            mode = policy.distribution.mode(decision.mean)
            np.testing.assert_array_equal(decision.action, mode)


def test_sampled_actions_are_drawn_by_the_seed(played: tuple[Policy, str]) -> None:
    policy, env_id = played

    def actions(seed: int, sampled: bool) -> list[float]:
        steps = play_policy(env, policy, seed, sampled)
        return [value for decision, _ in steps for value in decision.action]

    with environment_of(policy, env_id) as env:
        drawn = actions(3, sampled=True)
        assert drawn == actions(3, sampled=True)
        assert drawn not in (actions(4, sampled=True), actions(3, sampled=False))


def test_environment_with_other_spaces_is_refused(played: tuple[Policy, str]) -> None:
    policy, _ = played
    refusal = "the model was not made for Acrobot-v1: it observes"
    with pytest.raises(ImelError, match=refusal), environment_of(policy, "Acrobot-v1"):
        pass
