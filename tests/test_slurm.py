"""`imel bench --slurm`: grids as jobs of submitit, jobs that are killed, what sbatch is asked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from submitit.core.core import Job

from bench_environments import PREFIX
from imel.bench.launch import grid, launch, unfinished
from imel.bench.pool import Failure, Finished
from imel.bench.run import Run
from imel.bench.slurm_pool import Request, SlurmPool, _work
from imel.bench.store import Store
from imel.cli.main import main
from stored import SMALL, Listener


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs find this folder's modules, and note here what they do to themselves."""
    monkeypatch.setenv("BENCH_FOLDER", str(tmp_path))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(Job, "_results_timeout_s", 1)  # for file systems that lag behind


def local(store: Store, jobs: int | None = None) -> SlurmPool:
    return SlurmPool(store, Request(), {}, jobs, cluster="local")


def test_a_grid_of_jobs_completes_though_one_of_them_is_killed(tmp_path: Path) -> None:
    store, heard = Store(tmp_path / "store"), Listener()
    runs = grid([f"{PREFIX}Scripted-v0", f"{PREFIX}Dies-v0"], ["nearest"], [0], 128, SMALL)
    assert launch(runs, store, local(store, jobs=2), heard) == []
    assert sorted(heard.outcomes) == ["Dies-v0 0", "Scripted-v0 0"]
    for outcome in heard.outcomes.values():
        assert isinstance(outcome, dict)
        assert outcome["eval_return"] == 15.0
    assert (tmp_path / "Dies.deaths").read_text() == "x"
    assert not heard.steps, "jobs tell nothing before they end"
    assert unfinished(runs, store) == []
    assert sum(row["final"] for row in store.rows()) == 2, "each result is stored once"


def test_a_job_that_is_always_killed_fails_and_one_that_raises_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmPool, "retries", 1)
    store, heard = Store(tmp_path / "store"), Listener()
    runs = grid([f"{PREFIX}DiesAlways-v0", f"{PREFIX}Raises-v0"], ["nearest"], [0], 128, SMALL)
    launch(runs, store, local(store, jobs=2), heard)
    killed, raised = heard.outcomes["DiesAlways-v0 0"], heard.outcomes["Raises-v0 0"]
    assert isinstance(killed, Failure)
    assert isinstance(raised, Failure)
    assert killed.error.startswith("lost 2 times: its job has printed into ")
    assert Path(killed.error.rpartition(" ")[2]).is_file()
    assert raised.error.endswith("RuntimeError: the arm fell off")
    assert (tmp_path / "DiesAlways.deaths").read_text() == "xx"
    assert (tmp_path / "raised").read_text() == "x"
    assert unfinished(runs, store) == runs


def test_a_result_outlives_the_command_and_no_job_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = Store(tmp_path / "store"), Run("Pendulum-v1", "nearest", 0, 64, SMALL)
    assert isinstance(_work(run, store.folder), Finished)  # and the command has been killed
    assert unfinished([run], store) == []
    monkeypatch.setattr("imel.bench.slurm_pool.carry_out", None)
    again = _work(run, store.folder)
    assert isinstance(again, Finished)
    assert again.rows[-1] == store.final_row(run.identity())


def test_jobs_under_way_are_cancelled_when_the_command_ends(tmp_path: Path) -> None:
    pool = local(Store(tmp_path / "store"), jobs=1)
    pool.start("long", Run("Pendulum-v1", "nearest", 0, 10**9, SMALL))
    assert not pool.has_room()
    assert pool.messages(0.1) == []
    submitted = pool.under_way["long"].handle
    assert submitted.state == "RUNNING"
    pool.close()
    assert pool.has_room()
    submitted._process.wait(timeout=20)


# As SLURM does, it runs a copy of the script: submitit moves the one it hands over
SBATCH = """#!/bin/bash
cp "$1" {folder}/asked.sh
echo "Submitted batch job 4711"
for task in 0 1; do
  (SLURM_JOB_ID=4711 SLURM_ARRAY_JOB_ID=4711 SLURM_ARRAY_TASK_ID=$task \\
    bash {folder}/asked.sh; touch {folder}/ended.$task) > /dev/null 2>> {folder}/errors &
done
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
  case "$1" in --output|--error) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
for task in 0 1; do
  [ -e {folder}/ended.$task ] && state=FAILED || state=RUNNING
  echo "4711_$task|$state|node1"
done
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for SLURM's commands, which runs an array of two jobs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT}.items():
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_the_command_says_what_it_asks_for_and_asks_for_it(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tasks", f"{PREFIX}Scripted-v0", "--algorithms", "nearest", "--seeds", "0", "1"]
    words += ["--steps", "64", "--store", str(tmp_path / "store"), "--set", "memory_size=128"]
    asked = ["--partition", "cpu", "--time", "90", "--memory", "2.5", "--sbatch", "account=lab"]
    assert main(["bench", *words, "rollout_size=64", "n_envs=4", "--slurm", *asked]) == 0
    output = capsys.readouterr().out
    request = "partition cpu, 1 core, 2.5 GB, 90 minutes, account=lab"
    assert f"each is a SLURM job: {request}; logs in {tmp_path / 'store' / 'slurm'}" in output
    lines = (cluster / "asked.sh").read_text().splitlines()
    for flag in ("partition=cpu", "time=90", "mem=2560MB", "account=lab", "cpus-per-task=1"):
        assert f"#SBATCH --{flag}" in lines
    assert "#SBATCH --array=0-1%2" in lines
    assert any(line.startswith("export OMP_NUM_THREADS=1") for line in lines)
    rows = Store(tmp_path / "store").rows()
    assert sorted(row["seed"] for row in rows if row["final"]) == [0, 1]
    assert (cluster / "errors").read_text() == ""


def test_what_sbatch_refuses_is_said_in_one_line(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster / "sbatch").write_text("#!/bin/bash\necho 'invalid partition: gpuu' >&2\nexit 1\n")
    words = ["--tasks", "Pendulum-v1", "--algorithms", "nearest", "--seeds", "0", "--quick"]
    store = ["--store", str(tmp_path / "store")]
    assert main(["bench", *words, *store, "--slurm", "--partition", "gpuu"]) == 2
    refusal = "imel: error: SLURM refused the jobs: invalid partition: gpuu\n"
    assert capsys.readouterr().err.endswith(refusal)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--slurm", "--ray", "local"], "--ray and --slurm: give one of them"),
        (["--partition", "cpu"], "need --slurm"),
        (["--slurm", "--sbatch", "account"], "--sbatch account: not of the form KEY=VALUE"),
        (["--slurm", "--time", "0"], "time=0 must be at least 1"),
        (["--slurm", "--quick"], "srun is not on this machine"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench", "--store", str(tmp_path / "store"), *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "store").exists()
