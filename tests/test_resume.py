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
from imel.checkpoints import RunCheckpoints, checkpoints_in, latest_checkpoint
from imel.checkpoints.checkpoint import prepare
from imel.checkpoints.model_file import contents_of
from imel.checkpoints.run_checkpoints import differences
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
        learn(resumed, parts)

        assert resumed.num_timesteps == whole.num_timesteps
        assert not differing(tensors, resumed.learner.tensors())
        assert progress_of(resumed) == progress
        logged = [
            [{k: v for k, v in page.items() if not k.startswith("time/")} for page in pages]
            for pages in (book.pages[begun:], second_book.pages)
        ]
        assert str(logged[0]) == str(logged[1])  # as text, since a NaN equals nothing


def test_environments_start_again_at_checkpoints_only(tmp_path: Path) -> None:
    model = learn(small_model(), tmp_path, stop=4 * BATCH, every=4)
    assert model.remaining_timesteps == TOTAL - 4 * BATCH
    learn(model, tmp_path, every=4)
    assert model.remaining_timesteps == 0
    without = small_model().learn(TOTAL)
    # One episode of 16 steps a rollout and environment; two checkpoints end four episodes more
    assert model.learner.clock.next_episode == without.learner.clock.next_episode + 2 * 4
    assert int(model.policy.memory.column("steps").max()) == 15


def test_the_last_few_checkpoints_are_kept_and_what_a_killed_writer_left_is_none(
    tmp_path: Path,
) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    learn(small_model(), tmp_path, every=2)
    (tmp_path / ".iteration-00000012.safetensors.x1y2").write_bytes(b"half a checkpoint")
    paths = checkpoints_in(tmp_path)
    assert [path.stem for path in paths] == ["iteration-00000008", "iteration-00000010"]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.path == paths[-1]


def test_never_taking_or_keeping_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for every, keep in ((0, 1), (1, 0)):
        with pytest.raises(ImelError, match="1 or more"):
            RunCheckpoints(tmp_path, every, keep)


def test_differences_name_what_was_and_what_is() -> None:
    then, now = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}
    found = ["b: 2 then, 4 now", "c: 3 then, None now", "d: None then, 5 now"]
    assert differences(then, now) == found


def test_a_checkpoint_that_cannot_be_written_ends_the_run_or_not_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

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
    assert absent[:3] == [True] * 3
    (path,) = checkpoints_in(tmp_path)
    assert IMeL.load(path).iteration == 1
    assert model.iteration == whole.iteration == 2


def test_a_checkpoint_holds_what_the_model_was_when_it_was_taken(tmp_path: Path) -> None:
    model = small_model().learn(BATCH)
    before = {name: tensor.clone() for name, tensor in model.learner.tensors().items()}
    write = prepare(tmp_path / "model", *contents_of(model))
    model.policy.memory.states.fill_(7.0)
    write()
    assert not differing(before, IMeL.load(tmp_path / "model").learner.tensors())
