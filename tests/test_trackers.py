"""Tracked runs: what W&B and trackio are sent is what progress.csv holds, also after a resume."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Figure

from imel.cli.main import main
from imel.runs.running import TrackerOutput

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
CLOCK = {"time/fps", "time/time_elapsed"}
"""Not the same when an iteration is done again."""

# In a process of its own: trackio decides at its import where it writes. The run is interrupted
# in its fourth iteration, after the checkpoint of the second, and resumed
SCRIPT = """
import json, signal, sys
sys.path.insert(0, sys.argv[2])
import gymnasium
import wandb
from imel.cli.main import main
from toy import PointEnv

class Interrupted(PointEnv):
    left = 4 * 64

    def step(self, action):
        Interrupted.left -= 1
        if Interrupted.left == 0:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)

def recorded(**about):
    run = init(**about)
    log = run.log
    run.log = lambda row, step: (rows.append({"step": step, **row}), log(row, step=step))
    return run

rows, init, wandb.init = [], wandb.init, recorded
gymnasium.register("Interrupted-v0", Interrupted, disable_env_checker=True)
flags = "--rollout-size 64 --memory-size 128 --n-envs 4 --checkpoint-every 2"
words = "train Interrupted-v0 --total-timesteps 384 --eval-episodes 0 --run-dir run --track"
assert main([*words.split(), sys.argv[1], "--progress-json", *flags.split()]) == 130
assert main(["resume", "run"]) == 0
if sys.argv[1] == "trackio":
    from trackio.sqlite_storage import SQLiteStorage
    name = "run-" + json.load(open("run/provenance.json"))["run"][:8]
    rows = SQLiteStorage.get_logs("imel", name)
json.dump(rows, open("rows.json", "w"), default=str)
"""


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_the_tracker_and_progress_json_hold_what_progress_csv_holds_also_after_a_resume(
    tracker: str, tmp_path: Path
) -> None:
    local = {"WANDB_MODE": "offline", "TRACKIO_DIR": f"{tmp_path}/trackio", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", SCRIPT, tracker, str(Path(__file__).parent)]
    environment = {**os.environ, **local, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=tmp_path, env=environment, check=True)

    with (tmp_path / "run" / "progress.csv").open() as file:
        expected = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    assert [row["time/total_timesteps"] for row in expected] == [64, 128, 192, 256, 320, 384]
    lines = (tmp_path / "run" / "progress.json").read_text().splitlines()
    sent = json.loads((tmp_path / "rows.json").read_text())
    listed = set(re.findall(r"^\| `(\w+/\w+)` \|", PAGE.read_text(), re.MULTILINE))
    # Nothing twice: it stopped with a checkpoint
    for row, line, tracked in zip(expected, map(json.loads, lines), sent, strict=True):
        assert line == pytest.approx(row, rel=1e-12, nan_ok=True)
        assert tracked["step"] == row["time/total_timesteps"]
        same = {key: value for key, value in tracked.items() if "/" in key}
        assert same.keys() == row.keys() <= listed
        for key in same.keys() - CLOCK:
            assert same[key] == pytest.approx(row[key], rel=1e-12, nan_ok=True)
    identity = json.loads((tmp_path / "run" / "provenance.json").read_text())["run"][:8]
    found = [path.name for path in tmp_path.glob("wandb/offline-run-*")]
    # W&B numbers folders that begin in the same second; trackio's rows were found by the identity
    assert len(found) == (2 if tracker == "wandb" else 0)
    assert all(re.fullmatch(rf"offline-run-\d+_\d+-{identity}(-1)?", name) for name in found)


# --- the output by itself ---


class Recorder:
    """Stands for the package, and for a tracked run, whose rows up to step 64 are there."""

    _next_step = 65

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.finished = False

    def init(self, **_: Any) -> Recorder:
        return self

    def log(self, values: dict[str, Any], step: int) -> None:
        self.rows.append((step, values))
        if "last" in values:
            raise ConnectionError("the service is gone")

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setitem(sys.modules, "trackio", made)
    return made


def test_new_rows_of_numbers_are_sent_and_nothing_else(recorder: Recorder) -> None:
    output = TrackerOutput("trackio", "imel", "run-1", {})
    values: dict[str, Any] = {
        **{"a": 3, "b": np.float32(0.25), "c": np.int64(7), "text": "x", "nan": math.nan},
        **{"figure": Figure(None, close=True), "tensor": torch.zeros(2)},  # type: ignore[arg-type]
    }
    for step in (64, 65):
        output.write(values, {}, step)
    output.close()
    ((step, sent),) = recorder.rows
    assert step == 65
    assert math.isnan(sent.pop("nan"))
    assert sent == {"a": 3, "b": 0.25, "c": 7}
    assert recorder.finished


def test_a_tracker_that_breaks_does_not_end_the_training(recorder: Recorder) -> None:
    output = TrackerOutput("trackio", "imel", "run-1", {})
    with pytest.warns(RuntimeWarning, match="no longer tracked: ConnectionError: the service"):
        output.write({"last": 1}, {}, 100)
    output.write({"a": 1}, {}, 200)
    output.close()
    assert [step for step, _ in recorder.rows] == [100]


# --- what cannot be tracked ---


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["train", "Pendulum-v1", "--run-dir", "run", *flags]) == 2
    assert not Path("run").exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_a_tracker_that_is_not_there_or_knows_nobody_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nobody is there to be asked
    line = refused(capsys, "--track", "wandb")
    assert line.startswith("imel: error: wandb: No API key")
    for tracker in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, tracker, None)
        line = refused(capsys, "--track", tracker)
        assert line == f"imel: error: {tracker} is not installed: pip install 'imel[{tracker}]'"
