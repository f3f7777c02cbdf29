"""Stable-Baselines3's callbacks work on IMeL, and watching a run does not change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)

from imel import IMeL
from small import BATCH, answers, differing, points, small_model, tensors_of

STEPS = BATCH // 4
"""Calls of a callback in one iteration."""


class Watcher(BaseCallback):
    """Keeps the model's answers every time it is called at a multiple of `every` steps."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self.seen: dict[int, NDArray[Any]] = {}

    def _on_step(self) -> bool:
        if self.n_calls % self.every == 0:
            self.seen[self.model.num_timesteps] = answers(self.model)
        return True


def test_eval_callback_evaluates_and_saves_the_best_model(tmp_path: Path) -> None:
    watcher = Watcher()
    callback = EvalCallback(
        points(1, seed=1),
        eval_freq=STEPS,
        n_eval_episodes=2,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        callback_on_new_best=watcher,
        verbose=0,
    )

    small_model().learn(3 * BATCH, callback)

    assert callback.evaluations_timesteps == [BATCH, 2 * BATCH, 3 * BATCH]
    best = IMeL.load(tmp_path / "best_model")
    np.testing.assert_array_equal(answers(best), watcher.seen[best.num_timesteps])
    assert best.num_timesteps == max(watcher.seen)


def test_checkpoint_callback_writes_files_that_load(tmp_path: Path) -> None:
    watcher = Watcher(STEPS)
    saver = CheckpointCallback(save_freq=STEPS, save_path=str(tmp_path), name_prefix="toy")

    small_model().learn(3 * BATCH, [saver, watcher])

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"toy_{n * BATCH}_steps.safetensors" for n in (2, 3, 1)]
    for steps, expected in watcher.seen.items():
        for suffix in (".zip", ""):
            loaded = IMeL.load(tmp_path / f"toy_{steps}_steps{suffix}")
            np.testing.assert_array_equal(answers(loaded), expected)
            assert loaded.num_timesteps == steps


def test_a_reward_threshold_stops_learning_at_once() -> None:
    stop = StopTrainingOnRewardThreshold(reward_threshold=-1e9)
    callback = EvalCallback(points(1), eval_freq=5, callback_on_new_best=stop, verbose=0)
    model = small_model()
    before = tensors_of(model)

    model.learn(100 * BATCH, callback)

    assert model.num_timesteps == 5 * 4
    assert differing(before, tensors_of(model)) == []
    model.learn(BATCH, reset_num_timesteps=False)
    assert len(model.policy.memory) == BATCH


def test_a_number_of_episodes_stops_learning() -> None:
    model = small_model().learn(100 * BATCH, StopTrainingOnMaxEpisodes(max_episodes=2))

    assert model.num_timesteps == 2 * 16 * 4


def test_progress_bar_counts_every_step() -> None:
    model = small_model().learn(BATCH, progress_bar=True)
    callback = ProgressBarCallback()

    model.learn(2 * BATCH, callback, reset_num_timesteps=False)

    assert callback.pbar.total == 2 * BATCH
    assert callback.pbar.n == 2 * BATCH


def test_watching_with_random_actions_does_not_change_what_is_learned() -> None:
    unwatched = small_model().learn(3 * BATCH)
    callback = EvalCallback(points(1), eval_freq=5, deterministic=False, verbose=0)

    watched = small_model().learn(3 * BATCH, callback)

    assert callback.n_calls == 3 * STEPS
    assert differing(tensors_of(unwatched), tensors_of(watched)) == []


def test_callbacks_see_what_each_step_returned() -> None:
    class Reader(BaseCallback):
        rewards: list[float]
        dones = 0

        def _on_training_start(self) -> None:
            self.rewards = []

        def _on_step(self) -> bool:
            self.rewards += list(self.locals["rewards"])
            self.dones += int(self.locals["dones"].sum())
            assert len(self.locals["infos"]) == self.training_env.num_envs
            return True

    reader = Reader()
    model = small_model().learn(BATCH, reader)

    assert reader.dones == 4
    remembered = model.policy.memory.column("rewards")
    np.testing.assert_allclose(sorted(reader.rewards), sorted(remembered.tolist()))
