"""Upside-Down RL: commands are kept track of, the best episodes taught, and a toy task learned."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env

from imel.bench.algorithms import find_algorithm
from imel.bench.run import FINAL_EPISODES, Run, train
from imel.bench.tasks import find_task
from imel.bench.udrl import Commanded, Udrl, UdrlSettings
from small import points
from toy import ScriptedEnv

Array = NDArray[Any]
SMALL = UdrlSettings(n_envs=4, steps_per_iteration=64, updates_per_iteration=50, hidden=32)


class GuessEnv(gymnasium.Env[Array, Any]):
    """Ten steps, each of which pays where the action has the sign that is shown."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float((self.state > 0.0) == bool(np.ravel(action)[0] > 0.0))
        self.left -= 1
        return self._shown(), reward, self.left == 0, False, {}

    def _shown(self) -> Array:
        self.state = float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self.state], np.float32)


class ContinuousGuessEnv(GuessEnv):
    """The same by the sign of a number."""

    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)


def test_commands_lose_what_was_obtained_and_begin_again_with_the_episode() -> None:
    commands = iter(np.array([[100.0, 3.0], [200.0, 2.0]]))
    inner = make_vec_env(ScriptedEnv, 1)
    env = Commanded(inner, lambda: next(commands))
    observation: Any = env.reset()
    assert observation[0, -2:].tolist() == [100.0, 3.0]
    total = 0.0
    for step in range(1, 100):
        observation, rewards, dones, _ = env.step(np.array([inner.action_space.sample()]))
        total += float(rewards[0])
        if dones[0]:
            break
        assert observation[0, -2:].tolist() == [100.0 - total, max(3.0 - step, 1.0)]
    assert dones[0]
    assert observation[0, -2:].tolist() == [200.0, 2.0]


def test_best_episodes_are_kept_with_the_commands_they_fulfilled() -> None:
    model = Udrl(points(), 0, UdrlSettings(**{**vars(SMALL), "replay_size": 3, "last_few": 2}))
    for total in (1.0, 4.0, 2.0, 3.0):
        inputs = np.zeros(4, np.float32)
        model._remember([[inputs, np.zeros(2), total / 2.0]] * 2)
    assert [episode.total for episode in model.best] == [4.0, 3.0, 2.0]
    assert model.best[0].inputs[:, -2:].tolist() == [[4.0, 2.0], [2.0, 1.0]]
    assert model.evaluation_command().tolist() == [3.5, 2.0]
    drawn = np.array([model.exploratory_command() for _ in range(200)])
    assert (drawn[:, 1] == 2.0).all()
    assert 3.5 <= drawn[:, 0].min() < 3.6
    assert 3.9 < drawn[:, 0].max() <= 4.0, "up to a standard deviation above the mean"


@pytest.mark.parametrize("env", [ContinuousGuessEnv, GuessEnv])
def test_udrl_learns_a_toy_task(env: Any) -> None:
    model = Udrl(make_vec_env(env, 4, seed=0), 1, SMALL)
    model.learn(4096)
    best = model.evaluation_command()[0]
    first, last = played(model, env, random=True), played(model, env, random=False)
    assert last > first + 0.5 * (best - first), (first, last, best)


def played(model: Udrl, env: Any, random: bool) -> float:
    """The mean return of twenty episodes, deterministic or at random."""
    inner = make_vec_env(env, 4, seed=100)
    commanded = Commanded(inner, model.evaluation_command)
    observation: Any = commanded.reset()
    returns: list[float] = []
    inner.action_space.seed(0)
    while len(returns) < 20:
        actions = model.predict(observation, deterministic=True)[0]
        if random:
            actions = np.array([inner.action_space.sample() for _ in range(4)])
        observation, _, _, infos = commanded.step(actions)
        returns += [info["episode"]["r"] for info in infos if "episode" in info]
    return float(np.mean(returns))


def test_udrl_runs_in_the_bench_the_same_each_time() -> None:
    run = Run("Pendulum-v1", "udrl", 3, 3000, {"warm_up_episodes": 4, "updates_per_iteration": 5})
    first, second = train(run), train(run)
    assert len(first[-1]["eval_returns"]) == FINAL_EPISODES
    assert [row["eval_returns"] for row in first] == [row["eval_returns"] for row in second]
    assert first[-1]["settings"]["updates_per_iteration"] == 5


def test_udrl_has_one_setting_for_all_tasks() -> None:
    algorithm = find_algorithm("udrl")
    settings = [algorithm.settings(find_task(task), {}) for task in ("hopper", "inverted-pendulum")]
    assert settings[0] == settings[1] == vars(UdrlSettings())
