"""`imel tune`: the space, the search and its pruning, a study that is killed, the command."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import fields
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import optuna
import pytest
from matplotlib.image import imread
from optuna.trial import TrialState

from imel.bench.pool import Failure, Finished, Message, Processes
from imel.bench.run import EVALUATIONS, Run
from imel.bench.store import Row, Store
from imel.cli.main import main
from imel.errors import ImelError, SettingsError
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.runs.plan import POLICY_NAMES
from imel.tune.search import Search
from imel.tune.space import SPACES, distributions, find_space, overrides
from imel.tune.study import JOURNAL, Problem, completed, counted, default_trial, opened
from imel.tune.tuning import comparison_words, new_seeds

PROBLEM = Problem("Pendulum-v1", "ridge", 1000, (0, 1), {})


def row(step: int, evaluated: float, final: bool = False) -> Row:
    return {"step": step, "eval_return": evaluated, "final": final}


class ScriptedPool:
    """Carries out a run by asking what it returns: one evaluation a tenth, one at the end."""

    def __init__(self, returns: Callable[[Run], float | Failure], jobs: int = 1) -> None:
        self.returns, self.jobs = returns, jobs
        self.started: list[Run] = []
        self.stopped: list[Hashable] = []
        self.closed = False
        self._running: dict[Hashable, list[Message]] = {}

    def has_room(self) -> bool:
        return len(self._running) < self.jobs

    def start(self, key: Hashable, run: Run) -> None:
        self.started.append(run)
        result = self.returns(run)
        tenth = run.steps // EVALUATIONS
        if isinstance(result, Failure):
            self._running[key] = [result]
            return
        rows = [row(part * tenth, result) for part in range(1, EVALUATIONS)]
        last = row(run.steps, result, final=True)
        self._running[key] = [*rows, last, Finished([*rows, last])]

    def stop(self, key: Hashable) -> None:
        self.stopped.append(key)
        del self._running[key]

    def messages(self, seconds: float) -> list[tuple[Hashable, Message]]:
        heard = []
        for key, script in list(self._running.items()):
            heard.append((key, script.pop(0)))
            if not script:
                del self._running[key]
        return heard

    def close(self) -> None:
        self.closed = True


class Heard:
    def __init__(self) -> None:
        self.shares: list[float] = []
        self.outcomes: list[float | Failure | None] = []

    def advanced(self, number: int, share: float) -> None:
        self.shares.append(share)

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        self.outcomes.append(outcome)


def gamma(run: Run) -> float:
    return float(run.settings()["gamma"])


# --- the space ---


@pytest.mark.parametrize("policy", SPACES)
@pytest.mark.parametrize("fixed", [{}, {"gamma": 0.9}, {"rollout_size": 512}])
def test_the_default_settings_are_a_point_of_every_space(
    policy: str, fixed: dict[str, Any]
) -> None:
    problem = Problem("hopper", policy, 1000, (0,), fixed)
    default = problem.run(fixed, 0).settings()
    drawn = overrides(problem.space, problem.default, problem.rest)
    assert problem.run({**drawn, **fixed}, 0).settings() == default
    study = optuna.create_study()
    study.enqueue_trial(problem.default)
    trial = study.ask(distributions(problem.space))
    assert trial.params == problem.default
    for name, drawn in problem.default.items():
        distribution = trial.distributions[name]
        assert distribution._contains(distribution.to_internal_repr(drawn)), name


def test_the_corners_of_every_space_are_settings_that_can_be_made() -> None:
    for policy in SPACES:
        problem = Problem("Pendulum-v1", policy, 1000, (0,), {})
        for seed in range(4):
            sampler = optuna.samplers.RandomSampler(seed=seed)
            trial = optuna.create_study(sampler=sampler).ask(distributions(problem.space))
            settings = problem.run(problem.overrides(trial.params), 0).settings()
            assert settings["memory_size"] % settings["rollout_size"] == 0
            assert settings["policy"] == POLICY_NAMES[policy].__name__


def test_every_policy_has_a_space_of_settings_and_options_that_it_uses() -> None:
    assert SPACES.keys() == POLICY_NAMES.keys()
    for policy, space in SPACES.items():
        chosen = POLICY_NAMES[policy]
        names = [parameter.name for parameter in space]
        used = {
            f.name for cls in (chosen.settings_class, chosen.options_class) for f in fields(cls)
        }
        assert set(names) <= used
        assert len(set(names)) == len(names)
        bounds = {"trust_region"} if policy == "ridge" else {"kl_budget"}
        assert bounds | {"std", "gamma", "memory_size"} <= set(names)


def test_what_is_fixed_is_not_searched_and_reaches_every_run() -> None:
    space = find_space("mki", ["gamma"])
    assert "gamma" not in {parameter.name for parameter in space}
    problem = Problem("Pendulum-v1", "mki", 1000, (0,), {"gamma": 0.9, "n_envs": 2})
    settings = problem.run(problem.overrides(problem.default), 0).settings()
    assert (settings["gamma"], settings["n_envs"]) == (0.9, 2)
    with pytest.raises(SettingsError, match="no space is declared for 'nearst'; did you mean"):
        find_space("nearst", [])


def test_defaults_beside_the_space_are_run_as_they_are() -> None:
    problem = Problem("Pendulum-v1", "ridge", 1000, (0,), {"rollout_size": 60})
    assert problem.default["memory_size / rollout_size"] == 16  # the most there are
    assert RidgePolicy.Settings.memory_size > 16 * 60
    settings = problem.run(problem.overrides(problem.default), 0).settings()
    assert settings["memory_size"] == RidgePolicy.Settings.memory_size


# --- the search ---


def test_the_first_trial_is_the_default_and_the_best_is_the_highest_mean(tmp_path: Path) -> None:
    pool, heard = ScriptedPool(lambda run: gamma(run) + run.seed), Heard()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        Search(study, PROBLEM, pool, heard).run(6)
        assert pool.started[0].settings() == PROBLEM.run({}, 0).settings()
        assert [run.seed for run in pool.started[:2]] == [0, 1]
        default = default_trial(study, PROBLEM)
        assert default is not None
        assert default.number == 0
        usual = RidgePolicy.Settings.gamma
        assert default.value == pytest.approx(usual + 0.5)
        assert default.user_attrs["returns"] == [usual, usual + 1.0]
        gammas = [gamma(run) for run in pool.started if run.seed == 1]
        assert completed(study)[0].value == max(gammas) + 0.5
        assert pool.closed
        assert len(counted(study)) == len(heard.outcomes) == 6
    assert heard.shares[:3] == [0.05, 0.1, 0.15]


def test_a_trial_behind_the_median_is_pruned_and_its_second_seed_never_run(tmp_path: Path) -> None:
    values = iter([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 2.2, 5.0, 5.0])
    pool, heard = ScriptedPool(lambda run: next(values)), Heard()
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        Search(study, PROBLEM, pool, heard).run(6)
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
    pool, heard = ScriptedPool(lambda run: next(outcomes), jobs=2), Heard()
    with opened(tmp_path, problem, seed=0) as (study, _):
        Search(study, problem, pool, heard).run(4)
        states = [trial.state for trial in study.trials]
        assert states.count(TrialState.FAIL) == 2
        assert study.trials[1].user_attrs["error"] == "it rained"
        assert [trial.value for trial in completed(study)] == [2.0, 1.0]


# --- a study that is killed ---


def ask(study: optuna.Study) -> optuna.Trial:
    return study.ask(distributions(PROBLEM.space))


def test_trials_running_at_a_kill_are_failed_and_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        study.tell(ask(study), 1.0)
        drawn = ask(study).params
        ask(study)  # and the process is killed
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        assert [trial.state for trial in study.trials] == [
            TrialState.COMPLETE,
            TrialState.FAIL,
            TrialState.FAIL,
        ]
        assert [trial.number for trial in counted(study)] == [0]
        pool = ScriptedPool(gamma)
        Search(study, PROBLEM, pool, Heard()).run(3)
        assert [trial.number for trial in counted(study)] == [0, 3, 4]
        assert drawn not in [trial.params for trial in counted(study)]
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        pool = ScriptedPool(gamma)
        Search(study, PROBLEM, pool, Heard()).run(3)
        assert pool.started == []


def test_the_default_settings_are_tried_again_if_their_trial_was_killed(tmp_path: Path) -> None:
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        assert ask(study).params == PROBLEM.default
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
    other = Problem("Pendulum-v1", "ridge", 2000, (0, 1), {})
    with (
        pytest.raises(ImelError, match=r"something else \(steps: 1000 then, 2000 now\)"),
        opened(tmp_path, other, seed=0),
    ):
        pass


# --- a study of several processes ---


def work_on(folder: Path, trials: int, start: Event, done: Connection) -> None:
    """Search with an own pool, slowly enough for processes to overlap; say who was last."""
    start.wait()

    def slow(run: Run) -> float:
        time.sleep(0.05)
        return gamma(run)

    with opened(folder, PROBLEM, seed=0) as (study, last):
        Search(study, PROBLEM, ScriptedPool(slow), Heard()).run(trials)
        done.send(last())


def test_processes_share_a_study_and_one_of_them_is_the_last(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that is held
    start = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    workers = [
        context.Process(target=work_on, args=(tmp_path, 12, start, theirs)) for _, theirs in pipes
    ]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(ours.recv() for ours, _ in pipes) == [False, True]
    with opened(tmp_path, PROBLEM, seed=0) as (study, _):
        trials = counted(study)
        assert 12 <= len(trials) <= 13  # two may take the last one
        assert study.user_attrs.get("interrupted") is None
        assert [trial.params for trial in trials].count(PROBLEM.default) == 1
        drawn = {tuple(trial.params.values()) for trial in trials}
        assert len(drawn) == len(trials), "processes draw by themselves"


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
    drawn = ours.recv()
    with opened(tmp_path, PROBLEM, seed=0) as (study, last):
        Search(study, PROBLEM, ScriptedPool(gamma), Heard()).run(3)
        assert len(counted(study)) == 2, "the third is under way elsewhere"
        other.kill()
        other.join()
        assert last()
        assert [trial.number for trial in counted(study)] == [1, 2]
        pool = ScriptedPool(gamma)
        Search(study, PROBLEM, pool, Heard()).run(3)
        assert len(counted(study)) == 3
        assert drawn == PROBLEM.default
        assert default_trial(study, PROBLEM) is not None


def test_nobody_joins_a_study_that_is_being_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.tune.study._SECONDS_TO_OPEN", 0.2)
    with opened(tmp_path, PROBLEM, seed=0) as (_, last):
        with opened(tmp_path, PROBLEM, seed=0) as (_, other_last):
            assert not other_last()
        assert last()
        with (
            pytest.raises(ImelError, match="another process is finishing the study in"),
            opened(tmp_path, PROBLEM, seed=0),
        ):
            pass


# --- confirmation and command ---


def test_a_comparison_is_of_seeds_nobody_searched_on() -> None:
    problem = Problem("Pendulum-v1", "mki", 1000, (0, 1001), {})
    assert new_seeds(problem, 3) == [1000, 1002, 1003]
    *listed, said = comparison_words([10.0, 11.0, 12.0, 13.0], [1.0, 2.0, 3.0, 11.5])
    assert listed[0] == "    best: 10.0 11.0 12.0 13.0  (mean 11.5)"
    assert listed[1] == " default: 1.0 2.0 3.0 11.5  (mean 4.4)"
    found = re.search(r"4 new seeds .* return (\S+) \[(\S+), (\S+)\]", said)
    assert found is not None
    value, low, high = map(float, found.groups())
    assert low < value == 11.5 - 2.5 < high
    assert said.endswith(f"P(better) = {14 / 16:.2f}")


def command(*words: str) -> list[str]:
    return [
        "tune",
        "Pendulum-v1",
        "--policy",
        "regressor",
        "--steps",
        "256",
        "--seeds",
        "0",
        *words,
    ]


def test_the_best_settings_are_written_as_a_config_that_train_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    fixed = ("--set", "n_envs=2", "rollout_size=64", "gradient_steps=1")
    words = command("--trials", "2", "--confirm-seeds", "1", "--jobs", "2", "--study", str(study))
    assert main([*words, *fixed]) == 0
    output = capsys.readouterr().out
    assert "2 of 2 trials to do" in output
    assert "0 (default)" in output
    for name in ("history.png", "importance.png"):
        assert imread(study / name).std() > 0.05  # not an empty picture
    rows = Store(study / "confirmation").rows()
    best = json.loads((study / "best.json").read_text())
    if "no better settings" not in output:
        assert [row["seed"] for row in rows if row["final"]] == [1000, 1000]
        assert "on 1 new seeds the best settings return" in output
        assert best["policy_kwargs"] in [row["settings"]["policy_kwargs"] for row in rows]

    # The same command has nothing left to do, and says the same
    assert main([*words, *fixed]) == 0
    again = capsys.readouterr().out
    assert "0 of 2 trials to do" in again
    assert again.splitlines()[-4:] == output.splitlines()[-4:]

    run = tmp_path / "run"
    config = ("--config", str(study / "best.json"), "--run-dir", str(run))
    assert main(["train", *config, "--eval-episodes", "1"]) == 0
    trained = json.loads((run / "config.json").read_text())
    assert {name: trained[name] for name in best} == best
    assert (best["env"], best["policy"], best["total_timesteps"]) == (
        "Pendulum-v1",
        "regressor",
        256,
    )
    assert (best["n_envs"], best["rollout_size"], best["gradient_steps"]) == (2, 64, 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--trials", "0"], "trials=0 must be at least 1"),
        (["--policy", "nearst"], "did you mean 'nearest'"),
        (["--set", "gama=1"], "did you mean 'gamma'"),
        (["--seeds", "0", "0"], "names a seed twice"),
        (["--study", "file"], "file"),
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
    assert main(["tune", "Pendulum-v1", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "Pendulum-v1"]) == 2
    assert "optuna is not installed: pip install 'imel[tune]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = command("--trials", "4", "--confirm-seeds", "0", "--jobs", "1", "--study", str(study))
    code = "import sys; from imel.cli.main import main; sys.exit(main())"

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True
        )

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
        states = [trial.state for trial in reopened.trials]
        assert len(counted(reopened)) == 4
        assert states[2] is TrialState.FAIL


def test_a_run_that_is_stopped_is_heard_of_no_more_and_makes_room() -> None:
    pool = Processes(1)
    pool.start("one", Run("Pendulum-v1", "mki", 0, 10**9))
    assert not pool.has_room()
    [process] = multiprocessing.active_children()
    pool.stop("one")
    assert pool.has_room()
    assert not process.is_alive()
    assert pool.messages(0.1) == []
