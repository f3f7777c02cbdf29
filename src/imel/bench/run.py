"""One seed of one algorithm on one task, in this process: a learning curve as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

from imel.bench.algorithms import find_algorithm, settings_hash
from imel.bench.store import IDENTITY, Row
from imel.bench.tasks import find_task
from imel.runs.stored import provenance

POINTS = 50  # rows of a learning curve
EVALUATIONS = 10  # rows of it with a deterministic evaluation
EPISODES, FINAL_EPISODES = 5, 20  # of an evaluation, and of the one at the end
_EVALUATION_ENVS = 5
_EVALUATION_SEED = 1_000_000  # added to the run's: no evaluation starts where training did


@dataclass(frozen=True)
class Run:
    """What is to be run; overrides are settings that differ from the algorithm's own."""

    task: str
    algorithm: str
    seed: int
    steps: int
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The complete settings of the algorithm on the task."""
        return find_algorithm(self.algorithm).settings(find_task(self.task), self.overrides)

    def identity(self) -> dict[str, Any]:
        """The columns that tell this run from any other."""
        digest = settings_hash(find_task(self.task), self.settings())
        return dict(
            zip(IDENTITY, (self.task, self.algorithm, digest, self.seed, self.steps), strict=True)
        )


class LearningCurve(BaseCallback):
    """Records rows at iteration boundaries; the time of its evaluations does not count."""

    def __init__(
        self, steps: int, evaluate: Callable[[int], list[float]], on_row: Callable[[Row], None]
    ) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._steps, self._evaluate, self._on_row = steps, evaluate, on_row
        self._returns: list[float] = []
        self._points = self._evaluations = 0
        self._start = self._evaluating = np.zeros(2)

    def _on_training_start(self) -> None:
        self._start = _clocks()

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._returns += [float(info["episode"]["r"]) for info in infos if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        step = self.model.num_timesteps
        points, evaluations = (step * n // self._steps for n in (POINTS, EVALUATIONS))
        if points > self._points:
            due, self._points = evaluations > self._evaluations, points
            self._evaluations = evaluations
            self._record(EPISODES if due else 0, final=False)

    def _on_training_end(self) -> None:
        self._record(FINAL_EPISODES, final=True)

    def _record(self, episodes: int, final: bool) -> None:
        before = _clocks()
        seconds, cpu_seconds = before - self._start - self._evaluating
        returns = self._evaluate(episodes) if episodes else None
        row = {
            "step": self.model.num_timesteps,
            "train_return": float(np.mean(self._returns)) if self._returns else None,
            "train_episodes": len(self._returns),
            "eval_return": float(np.mean(returns)) if returns else None,
            "eval_returns": returns,
            "seconds": float(seconds),
            "cpu_seconds": float(cpu_seconds),
            "final": final,
        }
        self._evaluating = self._evaluating + _clocks() - before
        self._returns = []
        self.rows.append(row)
        self._on_row(row)


def _clocks() -> NDArray[np.float64]:
    """Seconds on the wall, and of this process: the latter do not count what else the core does."""
    return np.array([time.perf_counter(), time.process_time()])


def train(run: Run, on_row: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """Learn and evaluate: the run's rows, the last of them final; `on_row` sees each at once."""
    torch.set_num_threads(1)  # runs go side by side, one core each
    task, settings = find_task(run.task), run.settings()
    constant = {**run.identity(), "overrides": dict(run.overrides), "settings": settings}
    constant |= {"environment": task.as_json(), **provenance()}
    model = find_algorithm(run.algorithm).make(task, settings, run.seed)
    env = model.get_env()
    assert env is not None
    evaluated: VecEnv = task.make_vector(_EVALUATION_ENVS, run.seed + _EVALUATION_SEED)
    if isinstance(env, VecNormalize):  # observations as in training, rewards as they are
        evaluated = VecNormalize(evaluated, training=False, norm_reward=False)

    def evaluate(episodes: int) -> list[float]:
        # From the same starts every time, whatever the algorithm
        evaluated.seed(run.seed + _EVALUATION_SEED)
        if isinstance(env, VecNormalize):
            sync_envs_normalization(env, evaluated)
        returns, _ = evaluate_policy(
            model, evaluated, episodes, deterministic=True, return_episode_rewards=True
        )
        return [float(value) for value in np.asarray(returns)]

    curve = LearningCurve(run.steps, evaluate, on_row)
    with closing(env), closing(evaluated):
        model.learn(run.steps, callback=curve)
    return [constant | row for row in curve.rows]
