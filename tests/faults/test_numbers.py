"""Rows 6, 7 and 8, through a whole model: extreme rewards, far states, too few memories.

The functions behind them are tested one by one in test_gaussian, interpolators, test_training.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from imel import IMeL
from imel.policies.paper.paper_policy import ContextSettings
from small import BATCH, POLICIES, points, small_model, tensors_of
from toy import FloatArray, PointEnv

STEPS = 4 * BATCH


class Reward(gymnasium.Wrapper[FloatArray, FloatArray, FloatArray, FloatArray]):
    """Pays `reward`, with its sign changing each step if `alternating`."""

    def __init__(self, reward: float, alternating: bool = False) -> None:
        super().__init__(PointEnv())
        self.reward, self.alternating = reward, alternating

    def step(self, action: FloatArray) -> tuple[FloatArray, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        if self.alternating:
            self.reward = -self.reward
        return observation, self.reward, terminated, truncated, info


class Still(Reward):
    """Nothing varies: the same observation and the same reward, always."""

    def step(self, action: FloatArray) -> tuple[FloatArray, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (np.zeros_like(observation), *rest)

    def reset(self, **options: Any) -> tuple[FloatArray, dict[str, Any]]:
        observation, info = super().reset(**options)
        return np.zeros_like(observation), info


def assert_finite(model: IMeL) -> None:
    """Weights, memory, normaliser and the policy's answers are finite."""
    wrong = [name for name, tensor in tensors_of(model).items() if not torch.isfinite(tensor).all()]
    assert wrong == []
    answer, _ = model.predict(np.zeros((3, 2), dtype=np.float32), deterministic=True)
    assert np.isfinite(answer).all()


@pytest.mark.parametrize("policy", ["RidgePolicy", "MkiPolicy"])
@pytest.mark.parametrize("alternating", [False, True], ids=["constant", "alternating"])
@pytest.mark.parametrize("reward", [1e30, 0.0])
def test_fault_06_extreme_or_no_rewards_leave_every_number_finite(
    policy: str, reward: float, alternating: bool
) -> None:
    model = small_model(policy, env=Reward(reward, alternating)).learn(STEPS)
    assert model.num_timesteps == STEPS
    assert_finite(model)


@pytest.mark.parametrize("policy", ["RidgePolicy", "MkiPolicy"])
def test_fault_06_without_any_variance_every_number_stays_finite(policy: str) -> None:
    model = small_model(policy, env=Still(0.0)).learn(STEPS)
    assert model.num_timesteps == STEPS
    assert_finite(model)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("distance", [1e6, 1e30])
def test_fault_07_far_from_every_memory_the_answer_is_finite_and_within_bounds(
    policy: str, distance: float
) -> None:
    model = small_model(policy).learn(BATCH)
    states = distance * np.array([[1, 1], [-1, 1], [0, -1]], dtype=np.float32)
    actions, _ = model.predict(states, deterministic=True)
    space = model.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert np.isfinite(actions).all()
    assert ((space.low <= actions) & (actions <= space.high)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_08_with_one_episode_in_memory_the_fit_is_skipped_and_learning_goes_on(
    policy: str,
) -> None:
    model = small_model(policy, env=points(n_envs=1), rollout_size=8, memory_size=8)
    model.learn(8)  # half an episode
    epochs = model.settings.critic_epochs if policy == "RidgePolicy" else 0
    assert model._n_updates == epochs
    assert_finite(model)
    model.learn(32, reset_num_timesteps=False)
    assert_finite(model)


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_08_before_any_experience_the_answer_is_finite(policy: str) -> None:
    assert_finite(small_model(policy))
    if issubclass(POLICIES[policy].Settings, ContextSettings):
        assert_finite(small_model(policy, prior_size=1))
