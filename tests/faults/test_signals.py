"""Row 17: a run that was asked to stop can be gone on with, and ends as if it had not been."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driver import AtCall
from harness import TRAIN, Baseline, differences_of_runs, go_on, train, wait_until

from imel import IMeL
from imel.checkpoints.run_checkpoints import checkpoints_in

pytest_plugins = ("baseline",)

INTERRUPT, TERMINATE = (signal.SIGINT, 130), (signal.SIGTERM, 143)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(*INTERRUPT, marks=pytest.mark.slow), TERMINATE]
)
def test_fault_17_a_signal_ends_the_run_with_its_code_and_it_resumes_to_the_same_end(
    number: signal.Signals, code: int, baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped = train(run)
    wait_until(lambda: checkpoints_in(run / "checkpoints"), stopped)
    stopped.send(number)
    assert stopped.wait() == code, stopped.text
    assert stopped.text.splitlines()[-1].endswith(f"go on with: imel resume {run}")
    assert 2 <= IMeL.load(run / "model.safetensors").iteration < 10

    last = go_on(run)
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []


def test_fault_17_a_signal_in_the_last_rollout_does_not_pass_for_the_end(
    baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # Two environments: the 1,260th step of each is past the 2,500 asked for, inside an iteration
    late = AtCall("imel.runs.running", "StopOnSignal", "_on_step", 1260, signal.SIGTERM)
    stopped = train(run, late)
    assert stopped.wait() == 143, stopped.text
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [INTERRUPT, TERMINATE])
def test_fault_17_the_installed_command_behaves_alike(
    number: signal.Signals, code: int, baseline: Baseline, tmp_path: Path
) -> None:
    imel, run = str(Path(sys.executable).with_name("imel")), tmp_path / "run"
    process = subprocess.Popen([imel, *TRAIN, "--run-dir", str(run)], stdout=subprocess.DEVNULL)
    while not checkpoints_in(run / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) == code
    again = subprocess.Popen([imel, "resume", str(run)], stdout=subprocess.DEVNULL)
    while not (run / "model.safetensors").is_file():
        time.sleep(0.01)
    again.kill()
    again.wait()
    subprocess.run([imel, "resume", str(run)], stdout=subprocess.DEVNULL, check=True)
    assert differences_of_runs(baseline.run, run) == []
