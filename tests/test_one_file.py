"""The algorithm in one file acts as the package does, lesson by lesson, and needs nothing of it."""

from __future__ import annotations

import re
import runpy
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from imel import IMeL
from pages import ROOT
from toy import PointEnv

PATH = ROOT / "examples" / "imel_in_one_file.py"
SMALL = {"rollout_size": 256, "memory_size": 768}
"""Three rollouts are remembered: the oldest ones are forgotten from the fourth iteration on."""


class CalmEnv(PointEnv):
    """States do not depend on actions, so nothing amplifies a difference; some episodes end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, reward, _, truncated, info = super().step(action)
        return state, reward, bool(self.np_random.random() < 0.05), truncated, info


class Actions(BaseCallback):
    """Keeps all actions as sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[NDArray[Any]] = []

    def _on_step(self) -> bool:
        self.seen.append(self.locals["actions"].copy())
        return True


@pytest.mark.parametrize(
    ("env", "iterations", "settings", "tolerance"),
    [
        (CalmEnv, 9, SMALL, 1e-4),
        ("Pendulum-v1", 5, {}, 2e-3),  # the defaults; episodes of 200 steps, cut by the clock
        ("Hopper-v5", 6, SMALL, 2e-3),  # episodes end by falling
    ],
)
def test_one_file_acts_as_the_package(
    env: Any, iterations: int, settings: dict[str, Any], tolerance: float
) -> None:
    file, actions = runpy.run_path(str(PATH)), Actions()
    made = env if isinstance(env, str) else make_vec_env(env, 8)
    model = IMeL("RidgePolicy", made, seed=3, **settings)
    model.learn(iterations * model.n_envs * model.n_steps, callback=actions)
    make = (lambda: gymnasium.make(env)) if isinstance(env, str) else env

    learner = file["Imel"](make, 3, file["Settings"](**settings))
    rollouts = [learner.iterate() for _ in range(iterations)]

    # Rows come one environment after the other, within an iteration
    shape = (model.n_envs, model.n_steps, -1)
    found = [each["actions"].reshape(shape).swapaxes(0, 1).numpy() for each in rollouts]
    np.testing.assert_allclose(np.concatenate(found), np.array(actions.seen), atol=tolerance)
    policy: Any = model.policy
    lessons = policy.lessons.column("coefficients")
    begun = policy.lessons.column("episodes") - model.n_envs  # a reset counts as an episode each
    assert list(learner.lessons) == begun.tolist()
    for mine, theirs in zip(learner.lessons.values(), lessons, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)
    np.testing.assert_allclose(sum(learner.lessons.values()), learner.theta)
    np.testing.assert_allclose(learner.std, policy.std, atol=tolerance)


def test_one_file_is_short_and_imports_nothing_of_the_package() -> None:
    text = PATH.read_text()
    assert len(text.splitlines()) <= 300
    imports = re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)
    assert set(imports) <= {"argparse", "collections", "dataclasses", "gymnasium", "numpy", "torch"}
