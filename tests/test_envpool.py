"""EnvPool's environments: Gymnasium's transitions, ends, seeds and statistics, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from imel import IMeL, ImelError
from imel.bench.tasks import TASKS
from imel.checkpoints.run_checkpoints import RunCheckpoints, checkpoints_in
from imel.environments.envpool import EnvPoolEnvironments, make_envpool
from imel.environments.making import make_environments
from small import SMALL, differing, tensors_of

WHOLE_STATE = {"exclude_current_positions_from_observation": False}


def alongside(env_id: str, env_kwargs: dict[str, Any], steps: int) -> Any:
    """Step EnvPool's and Gymnasium's environment from one state with the same random actions."""
    pool, env = make_envpool(env_id, 2, 1, env_kwargs), gymnasium.make(env_id, **env_kwargs)
    pool.seed(3)
    start: Any = np.asarray(pool.reset())[0]
    env.reset(seed=0)
    bare: Any = env.unwrapped
    bare.set_state(start[: bare.model.nq], start[bare.model.nq :][: bare.model.nv])
    env.action_space.seed(0)
    for _ in range(steps):
        action = env.action_space.sample()
        stepped: Any = pool.step(np.stack([action, action]))
        yield tuple(part[0] for part in stepped), env.step(action)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Walker2d-v5", "Swimmer-v5", "Hopper-v5"])
def test_envpool_and_gymnasium_agree_on_transitions(env_id: str) -> None:
    for stepped, (last, reward, terminated, truncated, _) in alongside(env_id, WHOLE_STATE, 40):
        observation, paid, done, info = stepped
        assert done == (terminated or truncated)
        seen = info["terminal_observation"] if done else observation
        np.testing.assert_allclose(seen, last, rtol=0.0, atol=1e-6)  # rounding grows with time
        assert paid == pytest.approx(reward, abs=1e-6)  # EnvPool's rewards are in single precision
        if done:
            assert np.abs(observation - last).max() > 0.01  # a new episode has begun
            assert info["TimeLimit.truncated"] is False
            break
    assert done == (env_id == "Hopper-v5")


@pytest.mark.parametrize(
    ("env_id", "options"),
    [("Ant-v5", {}), ("Humanoid-v5", {}), ("Ant-v5", TASKS["ant"].env_kwargs)],
)
def test_envpool_and_gymnasium_agree_on_a_step_with_contacts(env_id: str, options: Any) -> None:
    # Contacts are solved to a tolerance, so that two builds of MuJoCo drift apart from here
    stepped, other = next(alongside(env_id, {**WHOLE_STATE, **options}, 1))
    np.testing.assert_allclose(stepped[0], other[0], rtol=0.0, atol=1e-5)
    assert stepped[1] == pytest.approx(other[1], abs=1e-5)


@pytest.mark.parametrize("name", ["ant", "humanoid", "halfcheetah", "double-pendulum"])
def test_tasks_of_the_bench_have_the_same_spaces_on_both_backends(name: str) -> None:
    pool, env = TASKS[name].make_envpool(2, seed=0), TASKS[name].make()
    assert pool.observation_space == env.observation_space
    assert pool.action_space == env.action_space
    assert np.asarray(pool.reset()).shape == (2, *env.observation_space.shape)  # type: ignore[misc]


def test_episodes_cut_by_the_time_limit_are_reported_as_monitor_does() -> None:
    env = make_envpool("Pendulum-v1", 3, 2)
    env.seed(0)
    env.reset()
    returns = np.zeros(3)
    for step in range(1, 201):
        observations, rewards, dones, infos = env.step(np.zeros((3, 1), np.float32))
        returns += rewards
        assert dones.all() == dones.any() == (step == 200)
    for i, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True
        assert info["episode"]["l"] == 200
        assert info["episode"]["r"] == pytest.approx(returns[i], rel=1e-5)
        assert not np.allclose(info["terminal_observation"], np.asarray(observations)[i])


def test_seeds_decide_the_episodes_whatever_the_number_of_threads() -> None:
    def observations(seed: int, threads: int) -> Any:
        env = make_envpool("Hopper-v5", 3, threads)
        env.seed(seed)
        first = [np.asarray(env.reset())]
        return first + [np.asarray(env.step(np.zeros((3, 3), np.float32))[0]) for _ in range(150)]

    one = observations(2**31 + 5, 1)
    np.testing.assert_array_equal(one, observations(2**31 + 5, 3))
    assert not np.array_equal(one[0], observations(6, 1)[0])
    assert not np.array_equal(one[0][0], one[0][1])


def test_a_run_resumes_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    whole = IMeL("RidgePolicy", "Hopper-v5", backend="envpool", seed=1, n_envs=4, **SMALL)
    whole.learn(8 * SMALL["rollout_size"], RunCheckpoints(tmp_path, every=4, keep=9))
    resumed = IMeL.resume(checkpoints_in(tmp_path)[0], "Hopper-v5")
    assert resumed.iteration == 4
    again = RunCheckpoints(tmp_path / "again", every=4)
    resumed.learn(resumed.remaining_timesteps, again, reset_num_timesteps=False)
    assert resumed.num_timesteps == whole.num_timesteps
    assert not differing(tensors_of(whole), tensors_of(resumed))
    assert whole.dimension_names.state[0] != "state 0"


@pytest.mark.parametrize(
    ("env_id", "settings", "complaint"),
    [
        ("Pusher-v3", {}, "cannot make environment 'Pusher-v3'"),
        ("GymV26Environment-v0", {}, "EnvPool has no 'GymV26Environment-v0'"),
        ("CartPole-v1", {}, "EnvPool's 'CartPole-v1' has a space that is no Box"),
        ("Hopper-v5", {"workers": True}, "EnvPool has threads of its own"),
    ],
)
def test_what_envpool_cannot_step_is_refused_in_one_line(
    env_id: str, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ImelError, match=complaint) as refused:
        make_environments(env_id, 2, backend="envpool", **settings)
    assert "\n" not in str(refused.value)


def test_what_envpool_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImelError, match="EnvPool's 'Hopper-v5' has no option 'gravity'"):
        make_envpool("Hopper-v5", 2, 1, {"gravity": 1.0})
    with pytest.raises(ImelError, match="EnvPool does not render"):
        EnvPoolEnvironments("Hopper-v5", 2, 1, {}, None).render()
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImelError, match=r"envpool is not installed: pip install 'imel\[envpool\]'"):
        IMeL("RidgePolicy", "Hopper-v5", backend="envpool")
