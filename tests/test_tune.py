"""`imel tune`: the space, the search and its pruning, a study that is killed, the command."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from unittest.mock import MagicMock

import optuna
import pytest
from matplotlib.image import imread
from optuna.trial import TrialState

from imel.bench.pool import Failure, Finished, Message, Pool, Processes
from imel.bench.run import EVALUATIONS, Run
from imel.bench.store import Store
from imel.cli.main import main
from imel.errors import ImelError, SettingsError
from imel.policies import RidgePolicy
from imel.registry import policy_names
from imel.settings import Range, setting
from imel.tune.study import JOURNAL, Problem, completed, counted, opened
from imel.tune.tuning import comparison, new_seeds, search

PROBLEM = Problem("Pendulum-v1", "ridge", 1000, (0, 1), {})


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


def gamma(run: Run) -> float:
    return float(run.settings()["gamma"])


def ask(study: optuna.Study) -> optuna.Trial:
    return study.ask(PROBLEM.space)


# --- the space ---


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.filterwarnings("error")  # Optuna warns of values that are out of range
def test_the_default_settings_are_a_point_of_every_space(policy: str) -> None:
    fixed = {"rollout_size": 500}
    problem = Problem("Pendulum-v1", policy, 1000, (0,), fixed)
    usual = problem.run(fixed, 0).settings()
    assert problem.default == {name: usual[name] for name in problem.space}
    assert {"memory_size", "std"} <= problem.space.keys()
    assert not problem.space.keys() & fixed.keys()
    study = optuna.create_study()
    study.enqueue_trial(problem.default)
    assert study.ask(problem.space).params == problem.default


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("seed", range(4))
def test_every_point_of_every_space_is_settings_that_can_be_made(policy: str, seed: int) -> None:
    problem = Problem("Pendulum-v1", policy, 1000, (0,), {"n_envs": 2})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    overrides = problem.overrides(study.ask(problem.space).params)
    settings = problem.run(overrides, 0).settings()
    assert settings["memory_size"] >= settings["rollout_size"]
    assert {name: settings[name] for name in overrides} == overrides
    assert settings["n_envs"] == 2


class OwnPolicy(RidgePolicy):
    """Of a user: a setting more, which says itself where it is searched, but not its default."""

    @dataclasses.dataclass(frozen=True)
    class Settings(RidgePolicy.Settings):
        wit: int = setting(30, search=Range(1, 9))


def test_what_is_searched_is_what_the_policys_settings_declare() -> None:
    own = dataclasses.replace(PROBLEM, policy=f"{__name__}:OwnPolicy")
    assert own.space.keys() - PROBLEM.space.keys() == {"wit"}
    assert own.default["wit"] == 9  # the nearest there is; what is run is the default itself
    assert own.run(own.overrides(own.default), 0).settings()["wit"] == 30
    discrete = dataclasses.replace(PROBLEM, task="CartPole-v1").space
    assert PROBLEM.space.keys() - discrete.keys() == {"std", "std_rate"}  # there is no sigma
    with pytest.raises(SettingsError, match="did you mean 'nearest'"):
        _ = dataclasses.replace(PROBLEM, policy="nearst").space


# --- the search ---


def test_the_first_trial_is_the_default_and_the_best_is_the_highest_mean(tmp_path: Path) -> None:
    pool, heard = ScriptedPool(lambda run: gamma(run) + run.seed), MagicMock()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        search(study, PROBLEM, pool, heard, 4)  # none can be pruned before so many have ended
        assert study.trials[0].params == PROBLEM.default
        assert study.trials[0].value == pytest.approx(RidgePolicy.Settings().gamma + 0.5)
        gammas = [gamma(run) for run in pool.started if run.seed == 1]
        assert completed(study)[0].value == max(gammas) + 0.5
        assert len(counted(study)) == heard.ended.call_count == 4
    assert pool.started[0].settings() == PROBLEM.run({}, 0).settings()
    assert [run.seed for run in pool.started] == [0, 1] * 4
    assert pool.closed
    assert [call.args[1] for call in heard.advanced.mock_calls[:3]] == [0.05, 0.1, 0.15]


def test_a_trial_behind_the_median_is_pruned_and_its_second_seed_never_run(tmp_path: Path) -> None:
    values = iter([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 2.2, 5.0, 5.0])
    pool, heard = ScriptedPool(lambda run: next(values)), MagicMock()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        search(study, PROBLEM, pool, heard, 6)
        outcomes = [call.args[1] for call in heard.ended.mock_calls]
        assert outcomes == [1.0, 2.0, 3.0, 4.0, None, 5.0]
        assert pool.stopped == [4]
        pruned = study.trials[4]
        assert pruned.state is TrialState.PRUNED
        # No trial is judged in its first third
        assert max(pruned.intermediate_values) == EVALUATIONS // 3
    assert [run.seed for run in pool.started] == [0, 1] * 4 + [0] + [0, 1]


def test_a_failed_trial_counts_and_the_search_goes_on(tmp_path: Path) -> None:
    results: list[float | Failure] = [1.0, Failure("it rained"), 2.0]
    outcomes = iter(results)
    problem = Problem("Pendulum-v1", "mki", 1000, (0,), {})
    with opened(tmp_path, problem, seed=0) as (study, _):
        search(study, problem, ScriptedPool(lambda _: next(outcomes), jobs=2), MagicMock(), 3)
        errors = [trial.user_attrs.get("error") for trial in study.trials]
        assert errors == [None, "it rained", None]
        assert [trial.value for trial in completed(study)] == [2.0, 1.0]
        assert len(counted(study)) == 3


# --- a study that is killed ---


def test_trials_running_at_a_kill_are_failed_and_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        assert ask(study).params == PROBLEM.default
        study.tell(ask(study), 1.0)
        drawn = ask(study).params  # and the process is killed
    pool = ScriptedPool(gamma)
    for _ in range(2):  # at the second time nothing is left to do
        with opened(tmp_path, PROBLEM, seed=0) as (study, _):
            states = [trial.state for trial in study.trials[:3]]
            assert states == [TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL]
            search(study, PROBLEM, pool, MagicMock(), 3)
            assert [trial.number for trial in counted(study)] == [1, 3, 4]
            assert study.trials[3].params == PROBLEM.default
            assert study.trials[4].params not in (drawn, study.trials[1].params)
    assert len(pool.started) == 4


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
    with pytest.raises(ImelError, match="steps: 1000 then, 2000 now"):
        opened(tmp_path, dataclasses.replace(PROBLEM, steps=2000), seed=0).__enter__()


@pytest.mark.parametrize("content", ["no study\n", "[1]\n", '{"op_code": 0}\n'])
def test_a_file_that_is_no_study_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(content * 2)
    with pytest.raises(ImelError, match=r"^\S+ is not a study: .*$"):
        opened(tmp_path, PROBLEM, seed=0).__enter__()


# --- a study of several processes ---


def work_on(folder: Path, start: Event, done: Connection) -> None:
    """Search with an own pool, slowly enough for processes to overlap; say who was last."""
    start.wait()
    progress = MagicMock()
    progress.advanced.side_effect = lambda *_: time.sleep(0.005)
    with opened(folder, PROBLEM, seed=0) as (study, last):
        search(study, PROBLEM, ScriptedPool(gamma), progress, 12)
        done.send(last())


def test_processes_share_a_study_and_one_of_them_is_the_last(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that is held
    start, (ours, theirs) = context.Event(), context.Pipe(duplex=False)
    work = (tmp_path, start, theirs)
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
        search(study, PROBLEM, ScriptedPool(gamma), MagicMock(), 3)
        assert len(counted(study)) == 2, "the third is under way elsewhere"
        assert not last()
        other.kill()
        other.join()
        assert last()
        assert [trial.number for trial in counted(study)] == [1, 2]
        search(study, PROBLEM, ScriptedPool(gamma), MagicMock(), 3)
        assert len(counted(study)) == 3
        assert study.trials[-1].params == PROBLEM.default


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


def test_settings_are_called_better_on_seeds_nobody_searched_on_by_evidence() -> None:
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
    for best in ([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 3.0, 9.0], [9.0]):  # equal, unsure, single
        lines, better = comparison(best, [1.0, 2.0, 3.0, 4.0][: len(best)])
        assert not better
        assert lines[-1] == "not shown to be better than the default ones"


def test_the_best_settings_are_written_as_a_config_that_train_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    words = ["tune", "Pendulum-v1", "--policy", "regressor", "--steps", "256", "--seeds", "0"]
    words += ["--trials", "2", "--confirm-seeds", "1", "--jobs", "2", "--study", str(study)]
    words += ["--set", "n_envs=2", "rollout_size=64", "gradient_steps=1"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "2 of 2 trials to do" in output
    assert "best: trial" in output
    for name in ("history.png", "importance.png"):
        assert imread(study / name).std() > 0.05  # not an empty picture
    assert "use it" not in output  # of a single seed nothing follows
    if "no better settings" not in output:
        rows = Store(study / "confirmation").rows()
        assert [row["seed"] for row in rows if row["final"]] == [1000, 1000]
        assert "on 1 new seeds the best settings return" in output

    # The same command has nothing left to do, and says the same
    assert main(words) == 0
    again = capsys.readouterr().out
    assert "0 of 2 trials to do" in again
    assert again.splitlines()[-4:] == output.splitlines()[-4:]

    run = tmp_path / "run"
    config = ("--config", str(study / "best.json"), "--run-dir", str(run))
    assert main(["train", *config, "--eval-episodes", "1"]) == 0
    trained = json.loads((run / "config.json").read_text())
    best = json.loads((study / "best.json").read_text())
    assert {name: trained[name] for name in best} == best
    chosen = {"env": "Pendulum-v1", "policy": "regressor", "total_timesteps": 256, "n_envs": 2}
    assert chosen.items() <= best.items()


WRONG = {
    "--trials 0": "trials=0 must be at least 1",
    "--policy nearst": "did you mean 'nearest'",
    "--set gama=1": "did you mean 'gamma'",
    "--seeds 0 0": "--seeds takes different numbers",
    "--study file": "file",
    "--seed 1": "optuna is not installed: pip install 'imel[tune]'",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_is_refused_in_one_line_and_nothing_is_written(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    if "optuna" in WRONG[words]:
        monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "Pendulum-v1", *words.split()]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert WRONG[words] in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_is_stopped_is_heard_of_no_more_and_makes_room() -> None:
    pool = Processes(1)
    pool.start("one", Run("Pendulum-v1", "mki", 0, 10**9))
    assert not pool.has_room()
    [process] = multiprocessing.active_children()
    pool.stop("one")
    assert pool.has_room()
    assert not process.is_alive()
    assert pool.messages(0.1) == []
