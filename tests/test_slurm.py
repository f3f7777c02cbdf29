"""`imel bench --slurm`: grids as jobs of submitit, jobs that are killed, what sbatch is asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from submitit.core.core import Job

from imel.bench.launch import grid, launch, unfinished
from imel.bench.pool import Failure, Finished
from imel.bench.run import Run
from imel.bench.slurm_pool import Request, SlurmPool, _work
from imel.bench.store import Store
from imel.cli.main import main

SMALL = {"rollout_size": 64, "n_envs": 4, "memory_size": 128}

ENVIRONMENTS = """
import os, pathlib, signal
import gymnasium
from toy import ScriptedEnv

HERE = pathlib.Path(__file__).parent

class Dies(ScriptedEnv):
    lives = 1

    def step(self, action):
        deaths = HERE / f"{type(self).__name__}.deaths"
        died = len(deaths.read_text()) if deaths.exists() else 0
        if died < self.lives:
            deaths.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

class DiesAlways(Dies):
    lives = 100

class Raises(ScriptedEnv):
    def step(self, action):
        with open(HERE / "raised", "a") as file:
            file.write("x")
        raise RuntimeError("the arm fell off")

for env in (ScriptedEnv, Dies, DiesAlways, Raises):
    name = f"Slurm{env.__name__.removesuffix('Env')}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
"""


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Prefix of environments that jobs can make too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "slurm_environments.py").write_text(ENVIRONMENTS)
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(Job, "_results_timeout_s", 1)  # for file systems that lag behind
    return "slurm_environments:Slurm"


class Outcomes:
    def __init__(self) -> None:
        self.of: dict[str, Mapping[str, Any] | Failure] = {}

    def advanced(self, run: Run, step: int) -> None:
        raise AssertionError("jobs tell nothing before they end")

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        self.of[f"{run.task.partition('Slurm')[2]} {run.seed}"] = outcome


def local(store: Store, jobs: int | None = None) -> SlurmPool:
    return SlurmPool(store, Request(), {}, jobs, cluster="local")


def test_a_grid_of_jobs_completes_though_one_of_them_is_killed(prefix: str, tmp_path: Path) -> None:
    store, heard = Store(tmp_path / "store"), Outcomes()
    runs = grid([f"{prefix}Scripted-v0", f"{prefix}Dies-v0"], ["nearest"], [0], 128, SMALL)
    assert launch(runs, store, local(store, jobs=2), heard) == []
    assert sorted(heard.of) == ["Dies-v0 0", "Scripted-v0 0"]
    for outcome in heard.of.values():
        assert isinstance(outcome, dict)
        assert outcome["eval_return"] == 15.0
    assert (tmp_path / "modules" / "Dies.deaths").read_text() == "x"
    assert unfinished(runs, store) == []
    assert len(list(store.folder.glob("*.jsonl"))) == 2, "each result is stored once"


def test_a_job_that_is_always_killed_fails_and_one_that_raises_is_not_repeated(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.bench.slurm_pool.RETRIES", 1)
    store, heard = Store(tmp_path / "store"), Outcomes()
    runs = grid([f"{prefix}DiesAlways-v0", f"{prefix}Raises-v0"], ["nearest"], [0], 128, SMALL)
    launch(runs, store, local(store, jobs=2), heard)
    killed, raised = heard.of["DiesAlways-v0 0"], heard.of["Raises-v0 0"]
    assert isinstance(killed, Failure)
    assert isinstance(raised, Failure)
    assert killed.error.startswith("its job was lost 2 times; it has printed into ")
    assert Path(killed.error.rpartition(" ")[2]).is_file()
    assert raised.error.endswith("RuntimeError: the arm fell off")
    assert (tmp_path / "modules" / "DiesAlways.deaths").read_text() == "xx"
    assert (tmp_path / "modules" / "raised").read_text() == "x"
    assert unfinished(runs, store) == runs


def test_a_result_outlives_the_command_and_no_job_does_it_again(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = Store(tmp_path / "store"), Run("Pendulum-v1", "nearest", 0, 64, SMALL)
    assert isinstance(_work(run, store.folder), Finished)  # and the command has been killed
    assert unfinished([run], store) == []
    monkeypatch.setattr("imel.bench.slurm_pool.carry_out", None)
    again = _work(run, store.folder)
    assert isinstance(again, Finished)
    assert again.rows[-1] == store.final_row(run.identity())


def test_jobs_under_way_are_cancelled_when_the_command_ends(prefix: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    pool = local(store, jobs=1)
    pool.start("long", Run("Pendulum-v1", "nearest", 0, 10**9, SMALL))
    assert not pool.has_room()
    assert pool.messages(0.1) == []
    submitted = pool._running["long"].submitted
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
    cluster: Path, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tasks", f"{prefix}Scripted-v0", "--algorithms", "nearest", "--seeds", "0", "1"]
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
