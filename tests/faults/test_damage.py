"""Rows 3, 4, 18 and 19: damaged checkpoints, a full disk, two processes, another plan."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from driver import AtCall, Fault
from harness import Baseline, Command, command, differences_of_runs, go_on, train, wait_until

from forged import put_together, taken_apart
from imel import IMeL
from imel.checkpoints import checkpoint
from imel.checkpoints.run_checkpoints import checkpoints_in, latest_checkpoint
from imel.errors import CheckpointError
from imel.policies.ridge.ridge_policy import RidgePolicy

pytest_plugins = ("baseline",)

REFUSED = 2


def killed_run(run: Path) -> Path:
    """A run killed at its fourth checkpoint, with those of iterations 4 and 6 left."""
    assert train(run, Fault(write=6, stage="flushed")).wait() == -signal.SIGKILL
    assert [path.stem for path in checkpoints_in(run / "checkpoints")] == [
        "iteration-00000004",
        "iteration-00000006",
    ]
    return run


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed run, to be copied."""
    return killed_run(tmp_path_factory.mktemp("killed") / "run")


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    """A killed run of one's own."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


def only_error(refused: Command) -> str:
    """The one line of a command that was refused."""
    assert refused.wait() == REFUSED, refused.text
    (line,) = refused.errors
    assert "Traceback" not in refused.text
    return line


def flip_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(0).randrange(len(content) // 2, len(content))] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize("damage", [flip_one_bit, pytest.param(truncate, marks=pytest.mark.slow)])
def test_fault_03_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_used_if_asked(
    damage: Callable[[Path], None], run: Path, baseline: Baseline
) -> None:
    newest = checkpoints_in(run / "checkpoints")[-1]
    damage(newest)
    before = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}

    assert str(newest) in only_error(command("resume", run, folder=run.parent))
    visible = {path for path in before if not path.name.startswith(".")}
    assert {path: path.read_bytes() for path in visible} == {p: before[p] for p in visible}

    last = go_on(run, also=("--fall-back",))
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []
    for path in checkpoints_in(run / "checkpoints"):
        damage(path)
    with pytest.raises(CheckpointError, match=path.name):  # none is left to fall back to
        latest_checkpoint(run / "checkpoints", fall_back=True)


NO_ROOM_FOR_A_CHECKPOINT = Fault(write=5, stage="full", limit=100_000)  # that of iteration 6
NO_ROOM_FOR_LOGS = AtCall(
    "stable_baselines3.common.logger", "CSVOutputFormat", "write", call=5, limit=700
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(NO_ROOM_FOR_A_CHECKPOINT, id="checkpoint", marks=pytest.mark.slow),
        pytest.param(NO_ROOM_FOR_LOGS, id="logs"),
    ],
)
def test_fault_04_a_full_disk_ends_the_run_in_one_line_and_leaves_the_last_checkpoint(
    fault: Fault | AtCall, baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert "File too large" in only_error(train(run, fault))
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    assert IMeL.load(newest).iteration == 4

    last = go_on(run)  # there is room again
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []


def test_fault_18_a_second_process_on_a_run_is_refused_and_does_not_disturb_it(
    baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = train(run)
    wait_until((run / "config.json").is_file, first)
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGSTOP)  # however slow the others are, it is still there
    try:
        seconds = [
            command("resume", run, folder=tmp_path),
            train(run, also=("--overwrite",)),
            train(run, also=("--resume",)),
        ]
        for second in seconds:
            assert f"another process is writing a run to {run}" in only_error(second)
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    assert first.wait() == 0, first.text
    assert differences_of_runs(baseline.run, run) == []


def test_fault_19_another_plan_is_refused_with_its_differences_unless_asked_for(run: Path) -> None:
    stored = (run / "config.json").read_bytes()
    flags = ("--resume", "--trust-region", "0.5", "--gamma", "0.9")
    line = only_error(train(run, also=flags))
    assert f"gamma: {RidgePolicy.Settings.gamma} then, 0.9 now" in line
    assert f"trust_region: {RidgePolicy.Settings.trust_region!r} then, 0.5 now" in line
    assert "rollout_size" not in line
    assert (run / "config.json").read_bytes() == stored

    last = train(run, also=(*flags, "--allow-differences"))
    assert last.wait() == 0, last.text
    model = IMeL.load(run / "model.safetensors")
    assert (model.settings.gamma, model.iteration) == (0.9, 10)
    assert json.loads((run / "config.json").read_text())["gamma"] == 0.9


def test_fault_19_other_library_versions_are_refused_by_name_unless_allowed(
    run: Path, baseline: Baseline
) -> None:
    newest = checkpoints_in(run / "checkpoints")[-1]
    manifest, tensors = taken_apart(newest)
    manifest["versions"]["torch"] = "2.0.1"
    put_together(newest, json.dumps(manifest), tensors)

    line = only_error(command("resume", run, folder=run.parent))
    now = checkpoint.library_versions()["torch"]
    assert f"torch: '2.0.1' then, '{now}' now" in line

    last = go_on(run, also=("--allow-differences",))
    assert last.wait() == 0, last.text
    # The file it went on from still says what it was made with
    assert differences_of_runs(baseline.run, run) == [f"{newest.name}:manifest"]
