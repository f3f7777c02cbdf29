"""Tracked runs: what W&B and trackio are sent is what progress.csv holds, also after a resume."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imel.runs.trackers import TrackerOutput, track
from stable_baselines3.common.logger import Figure, Logger
from wandb.proto import wandb_internal_pb2

from imel.cli.main import main
from small import BATCH, small_model

Rows = dict[int, dict[str, float]]

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
CLOCK = {"time/fps", "time/time_elapsed"}
"""Not the same when an iteration is done again."""

# In a process of its own: trackio decides at its import where it writes. The run is interrupted
# in its fourth iteration, after the checkpoint of the second, and resumed
SCRIPT = """
import signal, sys
sys.path.insert(0, sys.argv[2])
import gymnasium
from imel.cli.main import main
from toy import PointEnv

class Interrupted(PointEnv):
    left = 4 * 64

    def step(self, action):
        Interrupted.left -= 1
        if Interrupted.left == 0:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)

gymnasium.register("Interrupted-v0", Interrupted, disable_env_checker=True)
flags = "--rollout-size 64 --memory-size 128 --n-envs 4 --checkpoint-every 2"
words = "train Interrupted-v0 --total-timesteps 384 --eval-episodes 0 --run-dir run --track"
assert main([*words.split(), sys.argv[1], "--progress-json", *flags.split()]) == 130
assert main(["resume", "run"]) == 0
if sys.argv[1] == "trackio":
    import json
    from trackio.sqlite_storage import SQLiteStorage
    name = "run-" + json.load(open("run/tracking.json"))["identity"]
    json.dump(SQLiteStorage.get_logs("imel", name), open("rows.json", "w"), default=str)
"""


@pytest.fixture(scope="module", params=["wandb", "trackio"])
def tracked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a run was tracked, interrupted and resumed."""
    folder = tmp_path_factory.mktemp(request.param)
    local = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, request.param, str(Path(__file__).parent)],
        cwd=folder,
        env={**os.environ, **local, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


def tracked_rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Every row a tracker holds, in the order it was sent."""
    if folder.name.startswith("wandb"):
        files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
        return [row for file in files for row in wandb_rows(file)]
    return [
        (row["step"], {key: value for key, value in row.items() if "/" in key})
        for row in json.loads((folder / "rows.json").read_text())
    ]


def wandb_rows(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The history in an offline run's file: protocol buffers in the log format of LevelDB."""
    content, at, record = path.read_bytes(), 7, b""
    rows = []
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            history = wandb_internal_pb2.Record.FromString(record).history  # type: ignore[attr-defined]
            items = {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                for item in history.item
            }
            if items:
                step = int(items["_step"])
                rows.append((step, {k: v for k, v in items.items() if not k.startswith("_")}))
            record = b""
    return rows


def progress(folder: Path) -> Rows:
    with (folder / "run" / "progress.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return {int(row["time/total_timesteps"]): row for row in rows}


def test_the_tracker_and_progress_json_hold_what_progress_csv_holds_also_after_a_resume(
    tracked: Path,
) -> None:
    expected, sent = progress(tracked), tracked_rows(tracked)
    lines = (tracked / "run" / "progress.json").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert list(expected) == [64, 128, 192, 256, 320, 384]
    # Nothing twice: it stopped with a checkpoint
    assert [step for step, _ in sent] == list(expected)
    assert [row["time/total_timesteps"] for row in written] == list(expected)
    for (step, row), line in zip(sent, written, strict=True):
        assert line == pytest.approx(expected[step], rel=1e-12, nan_ok=True)
        assert row.keys() == expected[step].keys()
        for key in row.keys() - CLOCK:
            assert row[key] == pytest.approx(expected[step][key], rel=1e-12, nan_ok=True)
    listed = set(re.findall(r"^\| `(\w+/\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert {key for _, row in sent for key in row} <= listed
    if tracked.name.startswith("wandb"):  # trackio's rows were found by the identity
        first, second = sorted(tracked.glob("wandb/offline-run-*"))
        identity = json.loads((tracked / "run" / "tracking.json").read_text())["identity"]
        assert first.name.endswith(f"-{identity}")
        # W&B numbers folders that begin in the same second
        assert re.fullmatch(rf"offline-run-\d+_\d+-{identity}(-1)?", second.name)


# --- the output by itself ---


class Recorder:
    """Stands for a tracked run."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.finished = False

    def log(self, values: dict[str, Any], step: int) -> None:
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished = True


def test_only_numbers_are_sent_and_whole_ones_stay_whole() -> None:
    run = Recorder()
    output = TrackerOutput(run)
    values: dict[str, Any] = {
        "a": 3,
        "b": 0.5,
        "c": np.float32(0.25),
        "d": np.int64(7),
        "text": "x",
        "figure": Figure(None, close=True),  # type: ignore[arg-type]
        "tensor": torch.zeros(2),
        "nan": math.nan,
    }
    output.write(values, {}, step=5)
    ((step, sent),) = run.rows
    assert step == 5
    assert math.isnan(sent.pop("nan"))
    assert sent == {"a": 3, "b": 0.5, "c": 0.25, "d": 7}
    assert [type(value) for value in sent.values()] == [int, float, float, int]


def test_rows_of_before_are_not_sent_again() -> None:
    run = Recorder()
    output = TrackerOutput(run, next_step=65)
    for step in (64, 65, 128):
        output.write({"a": step}, {}, step)
    output.close()
    assert run.rows == [(65, {"a": 65}), (128, {"a": 128})]
    assert run.finished


def test_a_tracker_that_breaks_does_not_end_the_training() -> None:
    class Broken(Recorder):
        def log(self, values: dict[str, Any], step: int) -> None:
            super().log(values, step)
            raise ConnectionError("the service is gone")

    run = Broken()
    model = small_model()
    model.set_logger(Logger(None, [TrackerOutput(run)]))
    with pytest.warns(RuntimeWarning, match="no longer tracked: ConnectionError: the service"):
        model.learn(3 * BATCH)
    model.logger.close()
    assert model.num_timesteps == 3 * BATCH
    assert len(run.rows) == 1


# --- what cannot be tracked ---


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_there_is_not_is_refused_before_anything_is_written(
    tracker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, tracker, None)
    assert main(["train", "Pendulum-v1", "--run-dir", "run", "--track", tracker]) == 2
    reason = f"{tracker} is not installed: pip install 'imel[{tracker}]'"
    assert capsys.readouterr().err == f"imel: error: {reason}\n"
    assert list(tmp_path.iterdir()) == []


def test_wandb_without_an_account_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nobody is there to be asked
    assert main(["train", "Pendulum-v1", "--run-dir", "run", "--track", "wandb"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("imel: error: wandb: No API key")
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown tracker 'wandd'; did you mean 'wandb'"):
        track("wandd", "imel", "run", {})
