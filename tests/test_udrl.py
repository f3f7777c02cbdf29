"""Upside-Down RL: commands are kept track of, the best episodes taught, and a toy task learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import udrl
from benchmarks.udrl import Commanded, Settings, Udrl
from imel.bench.run import FINAL_EPISODES
from imel.bench.store import Store
from imel.bench.tasks import find_task
from imel.report.results import gather
from pages import ROOT
from small import points
from toy import ScriptedEnv

Array = NDArray[Any]
SMALL = Settings(n_envs=4, steps_per_iteration=64, updates_per_iteration=50, hidden=32)


class GuessEnv(gymnasium.Env[Array, Any]):
    """Ten steps, each of which pays where the action has the sign that is shown."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, **arguments: Any) -> tuple[Array, dict[str, Any]]:
        super().reset(**arguments)
        self.left = 10
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float((self.state > 0.0) == bool(np.ravel(action)[0] > 0.0))
        self.left -= 1
        return self._shown(), reward, self.left == 0, False, {}

    def _shown(self) -> Array:
        self.state = float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self.state], np.float32)


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
    model = Udrl(points(), 0, replace(SMALL, replay_size=3, last_few=2))
    for total in (1.0, 4.0, 2.0, 3.0):
        inputs = np.zeros(4, np.float32)
        model.remember([[inputs, np.zeros(2), total / 2.0]] * 2)
    assert [episode.total for episode in model.best] == [4.0, 3.0, 2.0]
    assert model.best[0].inputs[:, -2:].tolist() == [[4.0, 2.0], [2.0, 1.0]]
    assert model.evaluation_command().tolist() == [3.5, 2.0]
    drawn = np.array([model.exploratory_command() for _ in range(200)])
    assert (drawn[:, 1] == 2.0).all()
    assert 3.5 <= drawn[:, 0].min() < 3.6
    assert 3.9 < drawn[:, 0].max() <= 4.0, "up to a standard deviation above the mean"


@pytest.mark.parametrize(
    "actions", [gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-2.0, 2.0, (1,))], ids=type
)
def test_udrl_learns_a_toy_task(actions: Any) -> None:
    env, others = (make_vec_env(lambda: GuessEnv(actions), 4, seed=seed) for seed in (0, 100))
    model = Udrl(env, 1, SMALL)
    first = udrl.evaluate(model, others, 20)
    while model.steps < 4096:
        model.iterate()
    best, last = model.evaluation_command()[0], udrl.evaluate(model, others, 20)
    assert np.mean(last) > np.mean(first) + 0.5 * (best - np.mean(first)), (first, last, best)


def test_udrl_fills_a_store_that_is_reported_once_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--tasks", "Pendulum-v1", "--steps", "2048", "--store", str(tmp_path), "--seeds"]
    udrl.main([*command, "3"])
    udrl.main([*command, "3", "4"])
    assert len(capsys.readouterr().out.splitlines()) == 2, "what is there is not run again"
    (task,) = gather(Store(tmp_path).rows()).tasks
    assert [run.seed for run in task.groups["udrl"].runs] == [3, 4]
    rows = udrl.train(find_task("Pendulum-v1"), 3, 2048, Settings())
    assert len(rows[-1]["eval_returns"]) == FINAL_EPISODES
    assert task.groups["udrl"].runs[0].evaluated == pytest.approx(rows[-1]["eval_return"])


def test_committed_runs_have_the_present_settings() -> None:
    run = udrl.identity(find_task("hopper"), 30, 300_000, Settings())
    assert Store(ROOT / "results" / "paper").final_row(run) is not None
