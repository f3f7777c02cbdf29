"""`imel tune`: the space, the search and its pruning, a study that is killed, the command."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import optuna
import pytest
from matplotlib.image import imread
from optuna.trial import TrialState

from imel.bench.pool import Failure, Finished, Message, Pool, Processes
from imel.bench.progress import SearchProgress
from imel.bench.run import EVALUATIONS, Run
from imel.bench.store import Store
from imel.cli.main import main
from imel.errors import ImelError, SettingsError
from imel.policies import RidgePolicy
from imel.registry import find_policy, policy_names
from imel.settings import Range, setting
from imel.tune.search import search
from imel.tune.study import JOURNAL, Problem, completed, counted, default_trial, opened
from imel.tune.tuning import comparison, new_seeds

PROBLEM = Problem("Pendulum-v1", "ridge", 1000, (0, 1), {})
USUAL = RidgePolicy.Settings()


class ScriptedPool(Pool):
    """Carries out a run by asking what it returns: one evaluation a tenth, one at the end."""

    def __init__(self, returns: Callable[[Run], float | Failure], jobs: int = 1) -> None:
        self.returns, self.jobs, self.closed = returns, jobs, False
        self.started: list[Run] = []
        self.stopped: list[Hashable] = []
        self._running: dict[Hashable, list[Message]] = {}

    def has_room(self) -> bool:
        return len(self._running) < self.jobs

    def start(self, key: Hashable, run: Run) -> None:
        self.started.append(run)
        result = self.returns(run)
        steps = [part * run.steps // EVALUATIONS for part in range(1, EVALUATIONS + 1)]
        rows = [{"step": step, "eval_return": result, "final": False} for step in steps]
        rows[-1]["final"] = True
        script: list[Message] = [*rows, Finished(rows)]
        self._running[key] = [result] if isinstance(result, Failure) else script

    def stop(self, key: Hashable) -> None:
        self.stopped.append(key)
        del self._running[key]

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        heard = [(key, script.pop(0)) for key, script in self._running.items()]
        self._running = {key: script for key, script in self._running.items() if script}
        return heard

    def close(self) -> None:
        self.closed = True


class Heard(SearchProgress):
    """Keeps what a search says."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.outcomes: list[float | Failure | None] = []

    def advanced(self, number: int, share: float) -> None:
        self.shares.append(share)

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        self.outcomes.append(outcome)


def gamma(run: Run) -> float:
    return float(run.settings()["gamma"])


def ask(study: optuna.Study) -> optuna.Trial:
    return study.ask(PROBLEM.space.distributions)


# --- the space ---


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("fixed", [{}, {"gamma": 0.9}, {"rollout_size": 512}])
def test_the_default_settings_are_a_point_of_every_space(
    policy: str, fixed: dict[str, Any]
) -> None:
    problem = Problem("hopper", policy, 1000, (0,), fixed)
    default = problem.run(fixed, 0).settings()
    settings = problem.space.settings(problem.default, default)
    assert problem.run({**settings, **fixed}, 0).settings() == default
    assert not settings.keys() & fixed.keys()
    study = optuna.create_study()
    study.enqueue_trial(problem.default)
    assert study.ask(problem.space.distributions).params == problem.default
    for name, value in problem.default.items():
        distribution = problem.space.distributions[name]
        assert distribution._contains(distribution.to_internal_repr(value)), name


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("seed", range(4))
def test_every_point_of_every_space_is_settings_that_can_be_made(policy: str, seed: int) -> None:
    problem = Problem("Pendulum-v1", policy, 1000, (0,), {"n_envs": 2})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    overrides = problem.overrides(study.ask(problem.space.distributions).params)
    assert {"gamma", "memory_size", "std"} <= overrides.keys()
    settings = problem.run(overrides, 0).settings()
    assert settings["memory_size"] % settings["rollout_size"] == 0
    assert find_policy(settings["policy"]) is find_policy(policy)
    assert settings["n_envs"] == 2


class OwnPolicy(RidgePolicy):
    """Of a user: a setting more, which says itself where it is searched."""

    @dataclasses.dataclass(frozen=True)
    class Settings(RidgePolicy.Settings):
        wit: int = setting(3, search=Range(1, 9))


def test_what_is_searched_is_what_the_policys_settings_declare() -> None:
    ridge = PROBLEM.space.distributions
    own = dataclasses.replace(PROBLEM, policy=f"{__name__}:OwnPolicy").space
    assert own.distributions.keys() - ridge.keys() == {"wit"}
    assert own.point({**vars(USUAL), "wit": 3})["wit"] == 3
    discrete = dataclasses.replace(PROBLEM, task="CartPole-v1").space.distributions
    assert ridge.keys() - discrete.keys() == {"std", "std_rate"}  # there is no sigma
    with pytest.raises(SettingsError, match="did you mean 'nearest'"):
        _ = dataclasses.replace(PROBLEM, policy="nearst").space


def test_defaults_beside_the_space_are_run_as_they_are() -> None:
    problem = dataclasses.replace(PROBLEM, fixed={"rollout_size": 60})
    assert problem.default["memory_size / rollout_size"] == 16  # the most there are
    assert USUAL.memory_size > 16 * 60
    settings = problem.run(problem.overrides(problem.default), 0).settings()
    assert settings["memory_size"] == USUAL.memory_size


# --- the search ---


def test_the_first_trial_is_the_default_and_the_best_is_the_highest_mean(tmp_path: Path) -> None:
    pool, heard = ScriptedPool(lambda run: gamma(run) + run.seed), Heard()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        search(study, PROBLEM, pool, heard, 6)
        default = default_trial(study, PROBLEM)
        assert default is study.get_trials(deepcopy=False)[0]
        assert default.value == pytest.approx(USUAL.gamma + 0.5)
        assert default.user_attrs["returns"] == [USUAL.gamma, USUAL.gamma + 1.0]
        gammas = [gamma(run) for run in pool.started if run.seed == 1]
        assert completed(study)[0].value == max(gammas) + 0.5
        assert len(counted(study)) == len(heard.outcomes) == 6
    assert pool.started[0].settings() == PROBLEM.run({}, 0).settings()
    assert [run.seed for run in pool.started] == [0, 1] * 6
    assert pool.closed
    assert heard.shares[:3] == [0.05, 0.1, 0.15]


def test_a_trial_behind_the_median_is_pruned_and_its_second_seed_never_run(tmp_path: Path) -> None:
    values = iter([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 2.2, 5.0, 5.0])
    pool, heard = ScriptedPool(lambda run: next(values)), Heard()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        search(study, PROBLEM, pool, heard, 6)
        assert heard.outcomes == [1.0, 2.0, 3.0, 4.0, None, 5.0]
        assert pool.stopped == [4]
        pruned = study.trials[4]
        assert pruned.state is TrialState.PRUNED
        # No trial is judged in its first third
        assert max(pruned.intermediate_values) == EVALUATIONS // 3
    assert [run.seed for run in pool.started] == [0, 1] * 4 + [0] + [0, 1]


def test_a_failed_trial_counts_and_the_search_goes_on(tmp_path: Path) -> None:
    results: list[float | Failure] = [1.0, Failure("it rained"), float("nan"), 2.0]
    outcomes = iter(results)
    problem = Problem("Pendulum-v1", "mki", 1000, (0,), {})
    with opened(tmp_path, problem, seed=0) as (study, _):
        search(study, problem, ScriptedPool(lambda _: next(outcomes), jobs=2), Heard(), 4)
        errors = [trial.user_attrs.get("error") for trial in study.trials]
        assert errors == [None, "it rained", "its return is not a finite number", None]
        assert [trial.state for trial in study.trials].count(TrialState.FAIL) == 2
        assert [trial.value for trial in completed(study)] == [2.0, 1.0]


# --- a study that is killed ---


def test_trials_running_at_a_kill_are_failed_and_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        study.tell(ask(study), 1.0)
        drawn = ask(study).params
        ask(study)  # and the process is killed
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        states = [trial.state for trial in study.trials]
        assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL]
        assert [trial.number for trial in counted(study)] == [0]
        search(study, PROBLEM, ScriptedPool(gamma), Heard(), 3)
        assert [trial.number for trial in counted(study)] == [0, 3, 4]
        assert drawn not in [trial.params for trial in counted(study)]
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        pool = ScriptedPool(gamma)
        search(study, PROBLEM, pool, Heard(), 3)
        assert pool.started == []


def test_the_default_settings_are_tried_again_if_their_trial_was_killed(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path, PROBLEM, seed=0) as (study, _):
            assert ask(study).params == PROBLEM.default
            assert ask(study).params != PROBLEM.default


def test_a_journal_cut_in_the_middle_of_a_line_loses_that_line_only(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        study.tell(ask(study), 1.0)
        study.tell(ask(study), 2.0)
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-10])
    (tmp_path / f"{JOURNAL}.lock").symlink_to(journal)  # a writer was killed while it wrote
    for value in (3.0, 4.0):
        with opened(tmp_path, PROBLEM, seed=0) as (study, _):
            study.tell(ask(study), value)
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        assert [trial.value for trial in completed(study)] == [4.0, 3.0, 1.0]


def test_a_study_is_of_one_problem(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0):
        pass
    with pytest.raises(ImelError, match=r"something else \(steps: 1000 then, 2000 now\)"):
        opened(tmp_path, dataclasses.replace(PROBLEM, steps=2000), seed=0).__enter__()


@pytest.mark.parametrize("content", ["no study\n", "[1]\n", '{"op_code": 0}\n'])
def test_a_file_that_is_no_study_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(content * 2)
    with pytest.raises(ImelError, match=r"^\S+ is not a study: .*$"):
        opened(tmp_path, PROBLEM, seed=0).__enter__()


# --- a study of several processes ---


def work_on(folder: Path, trials: int, start: Event, done: Connection) -> None:
    """Search with an own pool, slowly enough for processes to overlap; say who was last."""
    start.wait()

    def slow(run: Run) -> float:
        time.sleep(0.05)
        return gamma(run)

    with opened(folder, PROBLEM, seed=0) as (study, last):
        search(study, PROBLEM, ScriptedPool(slow), Heard(), trials)
        done.send(last())


def test_processes_share_a_study_and_one_of_them_is_the_last(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that is held
    start, (ours, theirs) = context.Event(), context.Pipe(duplex=False)
    work = (tmp_path, 12, start, theirs)
    workers = [context.Process(target=work_on, args=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted([ours.recv(), ours.recv()]) == [False, True]
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        drawn = [trial.params for trial in counted(study)]
        assert 12 <= len(drawn) == len(study.trials) <= 13  # two may take the last one
        assert drawn.count(PROBLEM.default) == 1
        assert len({tuple(each.values()) for each in drawn}) == len(drawn), "draw by themselves"


def ask_and_hang(folder: Path, drawn: Connection) -> None:
    """Begin a trial and never end it."""
    with opened(folder, PROBLEM, seed=0) as (study, _):
        drawn.send(ask(study).params)
        time.sleep(3600)


def test_trials_of_a_killed_process_are_made_up_for_by_the_last(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    other = context.Process(target=ask_and_hang, args=(tmp_path, theirs))
    other.start()
    assert ours.recv() == PROBLEM.default
    with opened(tmp_path, PROBLEM, seed=0) as (study, last):
        search(study, PROBLEM, ScriptedPool(gamma), Heard(), 3)
        assert len(counted(study)) == 2, "the third is under way elsewhere"
        assert not last()
        other.kill()
        other.join()
        assert last()
        assert [trial.number for trial in counted(study)] == [1, 2]
        search(study, PROBLEM, ScriptedPool(gamma), Heard(), 3)
        assert len(counted(study)) == 3
        assert default_trial(study, PROBLEM) is not None


@pytest.mark.filterwarnings("ignore:waiting for the process")
def test_a_study_that_is_being_finished_is_waited_for(tmp_path: Path) -> None:
    joined = threading.Event()

    def join() -> None:
        with opened(tmp_path, PROBLEM, seed=0):
            joined.set()

    with opened(tmp_path, PROBLEM, seed=0) as (_, last):
        with opened(tmp_path, PROBLEM, seed=0) as (_, other_last):
            assert not other_last()
        assert last()
        thread = threading.Thread(target=join)
        thread.start()
        assert not joined.wait(0.3)
    thread.join()
    assert joined.is_set()


# --- confirmation and command ---


def test_a_comparison_is_of_seeds_nobody_searched_on() -> None:
    assert new_seeds(dataclasses.replace(PROBLEM, seeds=(0, 1001)), 3) == [1000, 1002, 1003]
    (*listed, said), better = comparison([10.0, 11.0, 12.0, 13.0], [1.0, 2.0, 3.0, 10.0])
    assert listed[0] == "    best: 10.0 11.0 12.0 13.0  (mean 11.5)"
    assert listed[1] == " default: 1.0 2.0 3.0 10.0  (mean 4.0)"
    found = re.search(r"4 new seeds .* return (\S+) \[(\S+), (\S+)\]", said)
    assert found is not None
    value, low, high = map(float, found.groups())
    assert 0.0 < low < value == 11.5 - 2.5 < high
    assert better
    assert said.endswith(f"P(better) = {15.5 / 16:.2f}")


@pytest.mark.parametrize(
    "best", [[1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 3.0, 9.0], [9.0]], ids=["equal", "unsure", "single"]
)
def test_settings_are_not_called_better_without_evidence(best: list[float]) -> None:
    lines, better = comparison(best, [1.0, 2.0, 3.0, 4.0][: len(best)])
    assert not better
    assert lines[-1] == "not shown to be better than the default ones"


def command(*words: str) -> list[str]:
    fixed = ("--policy", "regressor", "--steps", "256", "--seeds", "0")
    return ["tune", "Pendulum-v1", *fixed, *words]


def test_the_best_settings_are_written_as_a_config_that_train_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    words = command("--trials", "2", "--confirm-seeds", "1", "--jobs", "2", "--study", str(study))
    words += ["--set", "n_envs=2", "rollout_size=64", "gradient_steps=1"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "2 of 2 trials to do" in output
    assert "0 (default)" in output
    for name in ("history.png", "importance.png"):
        assert imread(study / name).std() > 0.05  # not an empty picture
    rows = Store(study / "confirmation").rows()
    best = json.loads((study / "best.json").read_text())
    assert "use it" not in output  # of a single seed nothing follows
    if "no better settings" not in output:
        assert [row["seed"] for row in rows if row["final"]] == [1000, 1000]
        assert "on 1 new seeds the best settings return" in output
        assert best["hidden"] in [row["settings"]["hidden"] for row in rows]

    # The same command has nothing left to do, and says the same
    assert main(words) == 0
    again = capsys.readouterr().out
    assert "0 of 2 trials to do" in again
    assert again.splitlines()[-4:] == output.splitlines()[-4:]

    run = tmp_path / "run"
    config = ("--config", str(study / "best.json"), "--run-dir", str(run))
    assert main(["train", *config, "--eval-episodes", "1"]) == 0
    trained = json.loads((run / "config.json").read_text())
    assert {name: trained[name] for name in best} == best
    chosen = {"env": "Pendulum-v1", "policy": "regressor", "total_timesteps": 256}
    chosen |= {"n_envs": 2, "rollout_size": 64, "gradient_steps": 1}
    assert {name: best[name] for name in chosen} == chosen


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--trials", "0"], "trials=0 must be at least 1"),
        (["--policy", "nearst"], "did you mean 'nearest'"),
        (["--set", "gama=1"], "did you mean 'gamma'"),
        (["--seeds", "0", "0"], "names a seed twice"),
        (["--study", "file"], "file"),
        (["--seed", "1"], "optuna is not installed: pip install 'imel[tune]'"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line_and_nothing_is_written(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    if "optuna" in complaint:
        monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "Pendulum-v1", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = command("--trials", "4", "--confirm-seeds", "0", "--jobs", "1", "--study", str(study))
    code = "import sys; from imel.cli.main import main; sys.exit(main())"

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", code, *words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    process = start()
    assert process.stdout is not None
    while "[2/4]" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.5)  # the third trial is under way
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    output, _ = start().communicate()
    assert "2 of 4 trials to do" in output
    assert "[4/4]" in output
    problem = Problem("Pendulum-v1", "regressor", 256, (0,), {})
    with opened(study, problem, seed=0) as (reopened, _):
        assert len(counted(reopened)) == 4
        assert reopened.trials[2].state is TrialState.FAIL


def test_a_run_that_is_stopped_is_heard_of_no_more_and_makes_room() -> None:
    pool = Processes(1)
    pool.start("one", Run("Pendulum-v1", "mki", 0, 10**9))
    assert not pool.has_room()
    [process] = multiprocessing.active_children()
    pool.stop("one")
    assert pool.has_room()
    assert not process.is_alive()
    assert pool.messages(0.1) == []
