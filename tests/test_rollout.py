"""Rollouts over scripted environments: what is stored is what happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from imel.data.experience import Rollout, flatten_time
from imel.data.rollout import EpisodeClock, FloatArray, OnStep, collect
from imel.errors import EnvironmentFaultError, NonFiniteError
from imel.policies import NearestPolicy
from toy import ScriptedEnv


class ScriptedActor:
    """mu = step / 2 at observation (episode, step), sigma = 0.25; the scaling of a real policy."""

    def __init__(self, env: ScriptedEnv) -> None:
        self.policy = NearestPolicy(env.observation_space, env.action_space)
        self.distribution, self.observe = self.policy.distribution, self.policy.observe

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return states[:, 1:] / 2.0, torch.full((states.shape[0], 1), 0.25)

    def to_environment(self, actions: FloatArray) -> FloatArray:
        return self.policy.to_environment(actions)


class Run:
    """A vector of scripted environments with all that a rollout needs, seeded alike each time."""

    def __init__(self, *envs: ScriptedEnv) -> None:
        self.envs = envs
        self.vector = DummyVecEnv([lambda env=env: env for env in envs])  # type: ignore[misc]
        self.actor = ScriptedActor(envs[0])
        self.clock = EpisodeClock(len(envs))
        self.generator = torch.Generator().manual_seed(0)
        self.observations: NDArray[Any] = np.asarray(self.vector.reset())

    def collect(self, n_steps: int, on_step: OnStep = lambda step: True) -> Rollout:
        rollout = self.attempt(n_steps, on_step)
        assert rollout is not None
        return rollout

    def attempt(self, n_steps: int, on_step: OnStep) -> Rollout | None:
        made = (self.actor, n_steps, self.clock, self.generator, on_step)
        rollout, self.observations = collect(self.vector, self.observations, *made)
        return rollout


def test_episodes_and_steps_are_counted_across_resets_and_rollouts() -> None:
    together = Run(*(ScriptedEnv(episode_length=2) for _ in range(3))).collect(5)
    assert together.episodes.T.tolist() == [[0, 0, 3, 3, 6], [1, 1, 4, 4, 7], [2, 2, 5, 5, 8]]
    run = Run(ScriptedEnv(episode_length=2), ScriptedEnv(episode_length=3))
    first, second = run.collect(4), run.collect(3)
    episodes = torch.cat([first.episodes, second.episodes])
    steps = torch.cat([first.steps, second.steps])
    assert episodes.T.tolist() == [[0, 0, 2, 2, 4, 4, 5], [1, 1, 1, 3, 3, 3, 6]]
    assert steps.T.tolist() == [[0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0]]
    run.clock.restart(2)
    run.observations = np.asarray(run.vector.reset())
    after = run.collect(4)
    assert int(after.episodes.min()) == 7, "no episode is used again"
    assert after.steps[:, 0].tolist() == [0, 1, 0, 1]


def test_columns_are_what_the_environment_saw_and_answered() -> None:
    rollout = Run(ScriptedEnv(episode_length=3), ScriptedEnv(episode_length=2)).collect(7)
    states = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert rollout.states[:, 0].tolist() == states
    assert rollout.rewards[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert torch.equal(rollout.means, rollout.states[:, :, 1:] / 2.0)
    assert (rollout.stds == 0.25).all()
    # True successors, also where an episode ends
    assert torch.equal(rollout.next_states, rollout.states + torch.tensor([0.0, 1.0]))
    assert len(rollout) == 14
    # One environment after the other
    assert flatten_time(rollout.steps).tolist() == [0, 1, 2, 0, 1, 2, 0, *[0, 1, 0, 1, 0, 1, 0]]
    noise = torch.randn(7, 2, 1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rollout.actions, rollout.means + 0.25 * noise)


@pytest.mark.parametrize("truncate", [True, False])
def test_termination_and_truncation_are_told_apart(truncate: bool) -> None:
    rollout = Run(ScriptedEnv(episode_length=2, truncate=truncate)).collect(5)
    ends = [False, True, False, True, False]
    never = [False] * 5
    assert rollout.truncated[:, 0].tolist() == (ends if truncate else never)
    assert rollout.terminated[:, 0].tolist() == (never if truncate else ends)
    assert rollout.ended[:, 0].tolist() == [False, True, False, True, True]


def test_actions_are_stored_as_sampled_and_sent_clipped_in_the_units_of_the_environment() -> None:
    env = ScriptedEnv(episode_length=6, bounds=(-1.0, 7.0))
    rollout = Run(env).collect(6)
    sampled = rollout.actions[:, 0]  # means go up to 2.5, beyond the action range
    assert (sampled > 1.0).any()
    assert (sampled.abs() < 1.0).any()
    sent = torch.from_numpy(np.stack(env.received))
    torch.testing.assert_close(sent, 3.0 + 4.0 * sampled.clamp(-1.0, 1.0))
    assert sent.max() == 7.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["reward", "observation"])
@pytest.mark.parametrize("last", [True, False], ids=["at the end", "on the way"])
def test_what_is_not_finite_is_refused_with_environment_and_step(
    value: float, place: Any, last: bool
) -> None:
    bad_step = 5 if last else 4  # of the second episode of three steps
    bad = ScriptedEnv(episode_length=3, bad_step=bad_step, bad_value=value, bad_place=place)
    run = Run(ScriptedEnv(episode_length=9), bad)
    where = f"environment 1 returned a non-finite {place}.* at step {bad_step - 3} of episode 2"
    with pytest.raises(NonFiniteError, match=where):
        run.collect(9)


def test_first_observations_are_finite_and_of_the_right_shape_or_refused() -> None:
    run = Run(ScriptedEnv(), ScriptedEnv())
    run.observations[1, 1] = np.nan
    with pytest.raises(NonFiniteError, match="environment 1"):
        run.collect(2)
    run.observations, reason = np.zeros((3, 2)), r"observations of shape \(3, 2\), not \(2, 2\)"
    with pytest.raises(EnvironmentFaultError, match=reason):
        run.collect(2)


def test_on_step_sees_what_callbacks_read_and_can_end_the_rollout() -> None:
    env = ScriptedEnv(episode_length=1)
    run, seen = Run(env), list[dict[str, Any]]()

    def stop_after_two(step: dict[str, Any]) -> bool:
        seen.append(dict(step))
        return len(seen) < 2

    assert run.attempt(6, stop_after_two) is None, "no experience"
    assert len(env.received) == len(seen) == 2
    assert [step["rewards"].tolist() for step in seen] == [[1.0], [1.0]]
    assert [step["dones"].tolist() for step in seen] == [[True], [True]]
    assert seen[0]["infos"][0]["terminal_observation"].tolist() == [0.0, 1.0]
    assert run.observations.tolist() == [[2, 0]]
    assert run.clock.episodes.tolist() == [2]
