"""Deterministic evaluations during training, and the best model so far.

They change nothing about a run: they have environments and starts of their own, and put every
random state back. When one is due follows from the steps alone, so a resumed run takes the same.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from imel.algorithm import IMeL
from imel.errors import ImelError
from imel.policies import Policy
from imel.runs import layout
from imel.runs.evaluation import evaluate
from imel.runs.plan import Plan
from imel.runs.stored import describe

EPISODES = 5
_SEED = 20_000
"""Of the first episode: the evaluation at the end has other starts, so it tells what is chosen here
from what was lucky here."""


class Evaluations(BaseCallback):
    """Evaluates the policy now and then; keeps the best model beside the last one.

    Writes `evaluations.json` and `best.safetensors`. Of equally good models the latest is kept.
    """

    model: IMeL

    def __init__(self, folder: Path, plan: Plan, resumed_at: int | None) -> None:
        super().__init__()
        self._folder, self._plan = folder, plan
        rows = [] if resumed_at is None else layout.read_evaluations(folder / layout.EVALUATIONS)
        self._rows = [row for row in rows if row["timesteps"] < (resumed_at or 0)]
        # The best file may be of a step that this run has not reached again
        kept = describe(folder / layout.BEST, None).timesteps
        known = any(row["timesteps"] == kept for row in self._rows)
        self._best = max((_mean(row) for row in self._rows), default=-np.inf) if known else -np.inf

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        model, count = self.model, self._plan.run.evaluations
        before = max(0, model.num_timesteps - model.n_envs * model.n_steps)
        total = model._total_timesteps
        if model.num_timesteps * count // total > before * count // total:
            self._evaluate(model)

    def _on_training_end(self) -> None:
        model = self.model
        if self._plan.run.evaluations and model.learned_timesteps >= model._total_timesteps:
            self._evaluate(model)

    def _evaluate(self, model: IMeL) -> None:
        settings = self._plan.settings
        try:
            with _random_states_kept(model.policy):
                played = evaluate(
                    model.policy, self._plan.env, EPISODES, _SEED, workers=settings.workers
                )
        except ImelError as error:
            warnings.warn(f"no evaluation: {error}", RuntimeWarning, stacklevel=2)
            return
        row = {
            "timesteps": model.num_timesteps,
            "seed": _SEED,
            "episodes": EPISODES,
            "deterministic": played.as_json(),
        }
        self._rows.append(row)
        self.logger.record("eval/mean_reward", _mean(row))
        self.logger.record("eval/mean_ep_length", float(np.mean(played.lengths)))
        try:
            if _mean(row) >= self._best:
                model.save(self._folder / layout.BEST)
                self._best = _mean(row)
            layout.write_json(self._folder / layout.EVALUATIONS, self._rows)
        except OSError as error:
            if not self._plan.run.go_on_if_full:
                raise
            warnings.warn(f"no best model: {error}", RuntimeWarning, stacklevel=2)


def best_of(folder: Path) -> tuple[int, float] | None:
    """Return after how many steps the best model of a run was kept, and its mean return."""
    steps = describe(folder / layout.BEST, None).timesteps
    rows = layout.read_evaluations(folder / layout.EVALUATIONS)
    found = [row for row in rows if row["timesteps"] == steps]
    return (found[0]["timesteps"], _mean(found[0])) if found else None


def _mean(row: dict[str, Any]) -> float:
    return float(row["deterministic"]["mean"])


@contextlib.contextmanager
def _random_states_kept(policy: Policy) -> Iterator[None]:
    """Put the policy's generator and the global ones, which environments may use, back."""
    own, of_python = policy.generator.get_state(), random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002 (not ours, and left as it was)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        policy.generator.set_state(own)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
