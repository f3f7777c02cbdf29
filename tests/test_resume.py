"""A run that was stopped goes on as if it had not been: from Python, with `RunCheckpoints`."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from imel import IMeL, ImelError
from imel.checkpoints import Checkpoint, RunCheckpoints, checkpoints_in, latest_checkpoint
from imel.checkpoints.run_checkpoints import differences
from imel.errors import CheckpointError
from small import BATCH, LogBook, differing, points, small_model

TOTAL = 11 * BATCH


class StopAt(BaseCallback):
    """Ends training in the middle of a rollout."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def _on_step(self) -> bool:
        return self.num_timesteps < self._steps


def learn(model: IMeL, folder: Path, stop: int = TOTAL + BATCH, every: int = 3) -> IMeL:
    steps = TOTAL - model.num_timesteps
    callbacks = [RunCheckpoints(folder, every=every, keep=2), StopAt(stop)]
    return model.learn(steps, callbacks, reset_num_timesteps=model.iteration == 0)


def progress_of(model: IMeL) -> dict[str, Any]:
    progress: dict[str, Any] = model.learner.progress()
    for episode in progress["episodes"]:
        del episode["t"]  # wall time
    return progress


@pytest.mark.parametrize(
    ("policy", "settings", "stops"),
    [
        ("RidgePolicy", {}, (3 * BATCH + 8, 8 * BATCH + 4, 10 * BATCH)),
        ("RidgePolicy", {"trust_region": 0.05, "memory_size": 5 * BATCH}, (8 * BATCH + 4,)),
        ("MkiPolicy", {}, (3 * BATCH + 8, 10 * BATCH)),
        ("MkiPolicy", {"std_mode": "advantage"}, (8 * BATCH + 4,)),
        ("NpPolicy", {"std_mode": "model"}, (3 * BATCH + 8, 8 * BATCH + 4)),
        ("AnpPolicy", {}, (8 * BATCH + 4,)),
        ("RegressorPolicy", {"std_mode": "paper"}, (10 * BATCH,)),
        ("NearestPolicy", {}, (3 * BATCH + 8,)),
    ],
)
def test_resumed_run_ends_bit_for_bit_like_the_uninterrupted_one(
    tmp_path: Path,
    policy: str,
    settings: dict[str, Any],
    stops: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = small_model(policy, **settings)
    book = LogBook.of(whole)
    learn(whole, tmp_path / "whole")
    tensors, progress = whole.learner.tensors(), progress_of(whole)
    for stop in stops:
        parts = tmp_path / str(stop)
        learn(small_model(policy, **settings), parts, stop)
        newest = latest_checkpoint(parts)
        assert newest is not None
        with monkeypatch.context() as patch:  # what has been read is not read again
            patch.setattr("imel.checkpoints.checkpoint.safe_open", None)
            resumed = IMeL.resume(newest, points())
        begun = resumed.iteration
        second_book = LogBook.of(resumed)
        assert resumed.remaining_timesteps == TOTAL - resumed.num_timesteps
        learn(resumed, parts)

        assert resumed.remaining_timesteps == 0
        assert resumed.num_timesteps == whole.num_timesteps
        assert not differing(tensors, resumed.learner.tensors())
        assert progress_of(resumed) == progress
        logged = [
            [{k: v for k, v in page.items() if not k.startswith("time/")} for page in pages]
            for pages in (book.pages[begun:], second_book.pages)
        ]
        assert str(logged[0]) == str(logged[1])  # as text, since a NaN equals nothing


def test_environments_start_again_at_checkpoints_only(tmp_path: Path) -> None:
    with_checkpoints = learn(small_model(), tmp_path, every=4)
    steps = with_checkpoints.policy.memory.column("steps")
    episodes_with = with_checkpoints.learner.clock.next_episode
    without = small_model()
    without.learn(TOTAL)
    # One episode of 16 steps a rollout and environment; two checkpoints end four episodes more
    assert episodes_with == without.learner.clock.next_episode + 2 * 4
    assert int(steps.max()) == 15


def test_the_last_few_checkpoints_are_kept_and_what_a_killed_writer_left_is_none(
    tmp_path: Path,
) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    learn(small_model(), tmp_path, every=2)
    (tmp_path / ".iteration-00000012.safetensors.x1y2").write_bytes(b"half a checkpoint")
    paths = checkpoints_in(tmp_path)
    names = [path.name for path in paths]
    assert names == ["iteration-00000008.safetensors", "iteration-00000010.safetensors"]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.path == paths[-1]


def test_a_damaged_newest_checkpoint_is_refused_unless_an_older_one_will_do(
    tmp_path: Path,
) -> None:
    learn(small_model(), tmp_path)
    older, newest = checkpoints_in(tmp_path)
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    with pytest.raises(CheckpointError, match=newest.name):
        latest_checkpoint(tmp_path)
    whole = latest_checkpoint(tmp_path, fall_back=True)
    assert isinstance(whole, Checkpoint)
    assert whole.path == older
    older.write_bytes(b"")
    with pytest.raises(CheckpointError, match=newest.name):
        latest_checkpoint(tmp_path, fall_back=True)


def test_differences_name_what_was_and_what_is() -> None:
    then, now = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}
    assert differences(then, now) == [
        "b: 2 then, 4 now",
        "c: 3 then, None now",
        "d: None then, 5 now",
    ]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_or_not_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for never in ({"every": 0}, {"keep": 0}):
        with pytest.raises(ImelError, match="1 or more"):
            RunCheckpoints(tmp_path, **never)
    monkeypatch.setattr("imel.files.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*iteration-00000003"):
        learn(small_model(), tmp_path)
    model = small_model()
    callback = RunCheckpoints(tmp_path, every=3, go_on_if_full=True)
    with pytest.warns(RuntimeWarning, match=r"no checkpoint.*No space left"):
        model.learn(TOTAL, callback)
    assert model.num_timesteps == TOTAL
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, usual = threading.Event(), os.fsync
    absent: list[bool] = []

    def slow(descriptor: int) -> None:
        assert disk.wait(60)
        usual(descriptor)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            if isinstance(self.model, IMeL) and self.model.iteration == 1:
                absent.append(not checkpoints_in(tmp_path))
                if len(absent) == 3:
                    disk.set()
            return True

    monkeypatch.setattr("imel.files.os.fsync", slow)
    whole = small_model().learn(2 * BATCH)
    model = small_model().learn(2 * BATCH, [RunCheckpoints(tmp_path, every=1), Watch()])
    assert absent[:3] == [True] * 3  # and yet it holds what the model was when it was taken
    (path,) = checkpoints_in(tmp_path)
    assert IMeL.load(path).iteration == 1
    assert model.iteration == whole.iteration == 2
