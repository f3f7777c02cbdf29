"""Rows 1 and 2: a run killed at any moment ends, once resumed, as the one that was not."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from driver import AtCall, Fault, Stage
from harness import Baseline, differences_of_runs, go_on, leftovers, train

from imel.checkpoints.run_checkpoints import checkpoints_in, latest_checkpoint

pytest_plugins = ("baseline",)

KILLED = -signal.SIGKILL
STAGES: tuple[Stage, ...] = ("opened", "flushed", "renamed")
LAST_WRITE = 9
"""config.json, four checkpoints, best.safetensors, evaluations.json, model.safetensors,
evaluation.json."""


def phase(run: Path) -> str:
    """How far a run had come when it was killed."""
    if (run / "model.safetensors").is_file():
        return "after training"
    if checkpoints_in(run / "checkpoints"):
        return "after a checkpoint"
    return "before the first checkpoint"


def trial(run: Path, baseline: Baseline, draw: random.Random) -> Counter[str]:
    """Kill a run one to three times at random moments, resume it to its end, compare."""
    counts: Counter[str] = Counter(trials=1)
    kills, latest = draw.randint(1, 3), baseline.seconds
    while counts["kills"] < kills:
        code = go_on(run).kill_after(draw.uniform(0.0, latest))
        if code == KILLED:
            counts["kills"] += 1
            counts[phase(run)] += 1
            counts["inside a write"] += bool(leftovers(run))
        else:  # it was done sooner than the baseline
            assert code == 0
            shutil.rmtree(run)
            latest *= 0.8
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []
    return counts


def planted_trial(run: Path, baseline: Baseline, faults: list[Fault]) -> Counter[str]:
    """As `trial`, killed inside the writing of a file each time."""
    counts: Counter[str] = Counter(trials=1)
    for fault in faults:
        code = go_on(run, fault).wait()
        assert code in (0, KILLED)  # a resumed run may not have that many writes left
        if code == KILLED:
            counts["kills"] += 1
            counts[fault.stage] += 1
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []
    return counts


@pytest.mark.parametrize("seed", [0, 1])
def test_fault_01_killed_at_random_moments_a_run_ends_the_same(
    seed: int, baseline: Baseline, tmp_path: Path
) -> None:
    trial(tmp_path / "run", baseline, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_fault_01_trials_at_random_moments(batch: int, baseline: Baseline, tmp_path: Path) -> None:
    draw = random.Random(100 + batch)
    counts: Counter[str] = Counter()
    for i in range(10):
        counts += trial(tmp_path / str(i) / "run", baseline, draw)
    print(f"\nrandom moments, batch {batch}: {dict(counts)}")


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2))
def test_fault_01_trials_inside_the_writing_of_a_file(
    batch: int, baseline: Baseline, tmp_path: Path
) -> None:
    draw = random.Random(200 + batch)
    counts: Counter[str] = Counter()
    for i in range(12):
        faults = [
            Fault(draw.randint(2, LAST_WRITE), draw.choice(STAGES))
            for _ in range(draw.randint(1, 3))
        ]
        counts += planted_trial(tmp_path / str(i) / "run", baseline, faults)
    print(f"\ninside a write, batch {batch}: {dict(counts)}")


@pytest.mark.parametrize(
    "stage", ["opened", "flushed", pytest.param("renamed", marks=pytest.mark.slow)]
)
def test_fault_02_killed_in_a_checkpoint_the_previous_one_loads_and_leftovers_go(
    stage: Stage, baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(run, Fault(write=5, stage=stage)).wait() == KILLED  # iterations 2, 4, 6
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    assert newest.path.name == f"iteration-0000000{6 if stage == 'renamed' else 4}.safetensors"
    assert bool(leftovers(run)) == (stage != "renamed")
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert leftovers(run) == []
    assert differences_of_runs(baseline.run, run) == []


def test_fault_02_killed_in_a_checkpoint_a_run_of_the_papers_mki_ends_the_same(
    tmp_path: Path,
) -> None:
    mki = ("--policy", "mki", "--gradient-steps", "1")
    whole, run = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    uninterrupted = train(whole, also=mki)
    assert train(run, Fault(write=4, stage="flushed"), also=mki).wait() == KILLED
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert uninterrupted.wait() == 0, uninterrupted.text
    assert differences_of_runs(whole, run) == []


def test_fault_02_killed_in_the_final_save_the_leftovers_go_as_well(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, Fault(write=9, stage="flushed")).wait() == KILLED
    assert [path.name.split(".")[1] for path in leftovers(run)] == ["model"]
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert leftovers(run) == []


PROGRESS = ("stable_baselines3.common.logger", "CSVOutputFormat", "write")
EPISODES = ("stable_baselines3.common.monitor", "ResultsWriter", "write_row")


@pytest.mark.parametrize(
    "writer",
    [
        pytest.param(PROGRESS, id="progress.csv"),
        pytest.param(EPISODES, id="monitor.csv", marks=pytest.mark.slow),
    ],
)
def test_fault_01_killed_while_it_takes_up_its_logs_again_a_run_loses_no_row(
    writer: tuple[str, str, str], baseline: Baseline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(run, Fault(write=6, stage="flushed")).wait() == KILLED
    assert go_on(run, AtCall(*writer, call=3)).wait() == KILLED
    last = go_on(run)
    assert last.wait() == 0, last.text
    assert differences_of_runs(baseline.run, run) == []
