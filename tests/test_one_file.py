"""The algorithm in one file acts as the package does, lesson by lesson, and needs nothing of it."""

from __future__ import annotations

import re
import runpy
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

from imel import IMeL
from pages import ROOT
from toy import PointEnv

PATH = ROOT / "examples" / "imel_in_one_file.py"
SMALL = {"rollout_size": 256, "memory_size": 768, "full_step_gain": 2.0}
"""The oldest of three rollouts is forgotten from the fourth iteration on; steps are shortened."""


class CalmEnv(PointEnv):
    """States do not depend on actions, so nothing amplifies a difference; some episodes end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, reward, _, truncated, info = super().step(action)
        return state, reward, bool(self.np_random.random() < 0.05), truncated, info


@pytest.mark.parametrize(
    ("env", "iterations", "settings", "tolerance"),
    [
        (CalmEnv, 9, SMALL, 1e-4),
        ("Pendulum-v1", 4, {}, 5e-3),  # the defaults; episodes of 200 steps, cut by the clock
        ("Hopper-v5", 6, SMALL, 5e-3),  # episodes end by falling
    ],
)
def test_one_file_acts_as_the_package(
    env: Any, iterations: int, settings: dict[str, Any], tolerance: float
) -> None:
    file, registered = runpy.run_path(str(PATH)), isinstance(env, str)
    model = IMeL("RidgePolicy", env if registered else make_vec_env(env, 8), seed=3, **settings)
    model.learn(iterations * model.n_envs * model.n_steps)
    policy: Any = model.policy

    make = (lambda: gymnasium.make(env)) if registered else env
    learner = file["Imel"](make, 3, file["Settings"](**settings))
    for _ in range(iterations):
        learner.iterate()

    for name in ("states", "actions", "means", "stds", "rewards", "terminated", "steps"):
        mine = np.concatenate([rollout[name] for rollout in learner.rollouts])
        theirs = policy.memory.column("behaviour_means" if name == "means" else name)
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance, err_msg=name)
    lessons = policy.lessons.column("coefficients")
    # The package counts what a reset begins as an episode more in each environment
    episodes = policy.lessons.column("episodes") - model.n_envs
    assert list(learner.lessons) == episodes.tolist()
    np.testing.assert_allclose(np.stack(list(learner.lessons.values())), lessons, atol=tolerance)
    np.testing.assert_allclose(sum(learner.lessons.values()), learner.theta)
    np.testing.assert_allclose(learner.std, policy.std, atol=tolerance)


def test_one_file_imports_nothing_of_the_package() -> None:
    imports = re.findall(r"^\s*(?:import|from) (\w+)", PATH.read_text(), re.MULTILINE)
    assert set(imports) <= {"argparse", "collections", "dataclasses", "gymnasium", "numpy", "torch"}
