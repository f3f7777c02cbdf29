"""The bench: tasks, algorithms, one run, grids over processes, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

import imel.bench.run
from bench_environments import PREFIX
from imel.bench.algorithms import find_algorithm, settings_hash
from imel.bench.launch import grid, launch, unfinished
from imel.bench.pool import Failure, Processes, carry_out
from imel.bench.run import EPISODES, FINAL_EPISODES, Run, train
from imel.bench.store import Row, Store
from imel.bench.tasks import TASKS, WithoutBodyMasses, find_task
from imel.checkpoints.checkpoint import library_versions
from imel.cli.bench import table
from imel.cli.main import main
from imel.errors import ImelError, SettingsError
from imel.registry import find_policy, policy_names
from imel.report.labels import algorithm_name, task_title
from imel.report.results import gather
from imel.runs.stored import provenance
from stored import SMALL, Listener, curve

HERE = Path(__file__).parent
SCRIPTED, HANGS = f"{PREFIX}Scripted-v0", f"{PREFIX}Hangs-v0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where environments note what they do to themselves; MuJoCo logs here, too."""
    monkeypatch.setenv("BENCH_FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- tasks and algorithms ---


@pytest.mark.parametrize("name", TASKS)
def test_each_task_has_the_dimensions_of_the_paper(name: str, folder: Path) -> None:
    dimensions = {"mountaincar": (2, 1), "inverted-pendulum": (4, 1), "double-pendulum": (11, 1)}
    dimensions |= {"hopper": (11, 3), "walker2d": (17, 6), "halfcheetah": (17, 6)}
    dimensions |= {"ant": (27, 8), "humanoid": (257, 17)}
    env = find_task(name).make()
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert (*observation.shape, *(env.action_space.shape or ())) == dimensions[name]
    assert task_title(name).endswith(f" {dimensions[name]}")
    assert len(TASKS) == len(dimensions)


def test_humanoid_loses_the_masses_of_its_bodies_and_nothing_else() -> None:
    whole = gymnasium.make("Humanoid-v5", include_cfrc_ext_in_observation=False)
    observation, _ = whole.reset(seed=0)
    kept = WithoutBodyMasses(whole).observation(observation)
    body_masses = whole.unwrapped.model.body_mass[1:]  # type: ignore[attr-defined]
    inertia = observation[45:175].reshape(13, 10)
    np.testing.assert_allclose(inertia[:, 9], body_masses)
    rest = [observation[:45], inertia[:, :9].ravel(), observation[175:]]
    np.testing.assert_array_equal(kept, np.concatenate(rest))


def test_an_unknown_task_or_algorithm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ImelError, match=r"'hoper' is neither .* did you mean 'hopper'"):
        find_task("hoper")
    with pytest.raises(ImelError, match="unknown algorithm 'trop'; did you mean 'trpo'"):
        find_algorithm("trop")
    with pytest.raises(ImelError, match="no_such_module"):
        find_algorithm("no_such_module:MyPolicy")
    assert find_task("Pendulum-v1").env_id == "Pendulum-v1"


@pytest.mark.parametrize(
    ("name", "option"), [("ridge", {"penalty": 3.0}), ("mki", {"kernel_scale": 2.0})]
)
def test_overrides_reach_settings_and_change_the_hash(name: str, option: dict[str, float]) -> None:
    task, algorithm = find_task("mountaincar"), find_algorithm(name)
    plain = algorithm.settings(task, {})
    assert plain == algorithm.settings(find_task("hopper"), {}), "one default for all tasks"
    changed = algorithm.settings(task, {"memory_size": 4096, **option, "std": 0.5})
    assert changed == plain | {"memory_size": 4096, **option, "std": 0.5}
    digests = {settings_hash(task, s) for s in (plain, changed)}
    digests.add(settings_hash(find_task("hopper"), plain))
    assert len(digests) == 3
    assert settings_hash(task, plain | {"std": 1}) == settings_hash(task, plain | {"std": 1.0})
    without = {name: value for name, value in plain.items() if name != "std"}
    assert settings_hash(task, plain | {"std": None}) != settings_hash(task, without)
    with pytest.raises(SettingsError, match="did you mean 'memory_size'"):
        algorithm.settings(task, {"memory_siz": 4096})


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("algorithm", ["trpo", "ppo"])
@pytest.mark.filterwarnings("ignore")
def test_published_settings_make_a_baseline_on_every_task(
    name: str, algorithm: str, folder: Path
) -> None:
    baseline, task = find_algorithm(algorithm), find_task(name)
    settings = baseline.settings(task, {})
    model = baseline.make(task, json.loads(json.dumps(settings)), 0)
    assert type(model).__name__ == algorithm.upper()
    assert model.gamma == settings.get("gamma", 0.99)  # type: ignore[attr-defined]
    env = model.get_env()
    assert isinstance(env, VecNormalize)
    assert (env.num_envs, env.gamma) == (settings["n_envs"], settings.get("gamma", 0.99))


def test_trpo_is_refused_only_when_asked_for_where_its_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(ImelError, match="'trpo' needs sb3_contrib"):
        grid(["Pendulum-v1"], ["mki", "trpo"], [0], None, {})
    assert len(grid(["Pendulum-v1"], ["mki", "ppo"], [0], None, {})) == 2


@pytest.mark.parametrize("name", [*policy_names(), "bench_environments:OwnPolicy"])
def test_every_policy_learns_in_the_bench(name: str) -> None:
    rows = train(Run(SCRIPTED, name, 0, 64, SMALL))
    assert rows[-1]["algorithm"] == rows[-1]["settings"]["policy"] == name
    assert rows[-1]["eval_return"] == 15.0


def test_reports_call_a_policy_what_its_class_says() -> None:
    labels = {name: find_policy(name).label for name in policy_names()}
    assert {name: algorithm_name(name) for name in labels} == labels


# --- one run ---


def test_a_run_records_its_curve_and_repeats_to_the_last_digit() -> None:
    run = Run(SCRIPTED, "mki", seed=3, steps=640, overrides=SMALL)
    rows = train(run)
    assert [row["step"] for row in rows] == list(range(64, 641, 64))
    assert {row["train_return"] for row in rows} == {15.0}
    assert sum(row["train_episodes"] for row in rows) == 640 // 5
    assert [len(row["eval_returns"]) for row in rows] == [EPISODES] * 9 + [FINAL_EPISODES]
    assert all(row["eval_returns"] == [15.0] * len(row["eval_returns"]) for row in rows)
    assert [row["final"] for row in rows] == [False] * 9 + [True]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert (rows[0]["seed"], rows[0]["overrides"], rows[0]["algorithm"]) == (3, SMALL, "mki")
    assert rows[0]["settings"]["n_envs"] == 4
    assert rows[0]["versions"]["torch"]
    assert rows[0]["processor"].endswith(f", {os.cpu_count()} cores")
    clocks = {"seconds": 0, "cpu_seconds": 0}
    assert [row | clocks for row in train(run)] == [row | clocks for row in rows]


def test_the_time_of_evaluations_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def evaluate(*arguments: Any, **options: Any) -> tuple[list[float], list[int]]:
        now[0] += 1000.0
        return [0.0], [1]

    monkeypatch.setattr(imel.bench.run, "evaluate_policy", evaluate)
    monkeypatch.setattr(imel.bench.run, "_clocks", lambda: np.full(2, now[0]))
    rows = train(
        Run(SCRIPTED, "nearest", 0, 640, SMALL),
        on_row=lambda row: now.__setitem__(0, now[0] + 1.0),
    )
    assert now[0] == 10 * 1000 + 10
    assert [row["seconds"] for row in rows] == [float(i) for i in range(10)]


@pytest.mark.filterwarnings("ignore")
def test_a_normalised_baseline_is_evaluated_on_plain_rewards_with_the_statistics_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []

    def spy(model: Any, env: Any, *arguments: Any, **options: Any) -> Any:
        assert env is not model.get_env()
        counts.append(round(env.obs_rms.count))
        result = evaluate_policy(model, env, *arguments, **options)
        counts.append(round(env.obs_rms.count))
        return result

    monkeypatch.setattr(imel.bench.run, "evaluate_policy", spy)
    rows = train(Run(SCRIPTED, "trpo", 0, 2048))
    assert [row["step"] for row in rows] == [2048]
    # The observations of every step, and the two of the reset
    assert counts == [2050, 2050]
    assert rows[-1]["eval_returns"] == [15.0] * FINAL_EPISODES
    assert rows[-1]["train_return"] == 15.0


def test_a_return_that_is_no_number_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imel.bench.run, "evaluate_policy", lambda *_, **__: ([np.nan], [1]))
    outcome = carry_out(Run(SCRIPTED, "nearest", 0, 64, SMALL), lambda row: None)
    assert outcome == Failure("a return of it is no finite number")


# --- grids ---


def test_a_grid_is_every_combination_and_refuses_what_cannot_run() -> None:
    runs = grid(["hopper", "Pendulum-v1"], ["MkiPolicy", "trpo"], [0, 1, 0], None, {"n_envs": 2})
    assert len(runs) == 2 * 2 * 2
    assert {(run.task, run.steps) for run in runs} == {
        ("hopper", 300_000),
        ("Pendulum-v1", 300_000),
    }
    assert {(run.algorithm, run.overrides.get("n_envs")) for run in runs} == {
        ("mki", 2),
        ("trpo", None),
    }
    with pytest.raises(ImelError, match="n_envs: only IMeL's own algorithms take settings"):
        grid(["hopper"], ["trpo", "ppo"], [0], None, {"n_envs": 2})
    with pytest.raises(SettingsError, match="did you mean 'n_envs'"):
        grid(["hopper"], ["trpo", "mki"], [0], None, {"n_env": 2})


def test_failed_and_killed_runs_are_recorded_and_the_others_go_on(folder: Path) -> None:
    store, listener = Store(folder / "store"), Listener()
    tasks = [f"{PREFIX}{name}-v0" for name in ("DiesAlways", "Raises", "Scripted")]
    runs = grid(tasks, ["nearest"], [0], 128, SMALL)
    failed = launch(runs, store, Processes(2), listener)
    reason = "one of 4 environments raised at step 0 or before: RuntimeError: the arm fell off"
    killed = "its process left no result: killed by SIGKILL"
    assert {failure.error for failure in failed} == {reason, killed}
    assert sorted(listener.outcomes) == ["DiesAlways-v0 0", "Raises-v0 0", "Scripted-v0 0"]
    finished = listener.outcomes["Scripted-v0 0"]
    assert isinstance(finished, dict)
    assert finished["eval_return"] == 15.0
    assert listener.steps == [64, 128]
    assert unfinished(runs, store) == runs[:2]
    results = gather(store.rows())
    changes = " ".join(f"{name}={value}" for name, value in SMALL.items())
    assert f"{tasks[1]} nearest {changes} seed 0: {reason}" in results.failures
    assert len(results.failures) == 2
    assert [task.task for task in results.tasks] == [tasks[2]]


def bench(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`imel bench` in a process group of its own, into `folder`/store."""
    code = "import sys; from imel.cli.main import main; sys.exit(main())"
    words = ["bench", "--steps", "256", "--store", str(folder / "store"), "--algorithms", "nearest"]
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *words, "--set", *settings, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def wait_until_one_run_is_done_and_one_hangs(folder: Path, process: subprocess.Popen[str]) -> None:
    while not (Store(folder / "store").finished() and (folder / "hanging").exists()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_grid_whose_launcher_was_killed_completes_without_repeating_runs(folder: Path) -> None:
    (folder / "hang").touch()
    arguments = ("--tasks", "Pendulum-v1", HANGS, "--seeds", "0", "--jobs", "1")
    process = bench(folder, *arguments)
    wait_until_one_run_is_done_and_one_hangs(folder, process)
    process.kill()
    # Ends only when the worker, which shares the pipes, is gone as well
    process.communicate()
    done = (folder / "store" / "nearest.jsonl").read_bytes()
    (folder / "hang").unlink()
    again = bench(folder, *arguments)
    output, complaint = again.communicate()
    assert again.returncode == 0, complaint
    assert "1 of 2 runs to do" in output
    assert f"[1/1] {HANGS} nearest seed 0: return 15.0 after" in output
    assert "Pendulum-v1, 256 steps" in output
    assert (folder / "store" / "nearest.jsonl").read_bytes().startswith(done)
    assert sum(row["final"] for row in Store(folder / "store").rows()) == 2


def test_an_interrupt_stops_launcher_and_workers_quietly(folder: Path) -> None:
    (folder / "hang").touch()
    process = bench(folder, "--tasks", HANGS, "Pendulum-v1", "--seeds", "0", "--jobs", "2")
    wait_until_one_run_is_done_and_one_hangs(folder, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to launcher and workers
    _, complaint = process.communicate()
    assert process.returncode == 130
    assert complaint == "imel: interrupted\n"
    rows = Store(folder / "store").rows()
    assert [row["task"] for row in rows if row["final"]] == ["Pendulum-v1"]
    assert not gather(rows).failures


# --- the command and its table ---


def table_text(rows: list[Row]) -> list[str]:
    console = Console(width=160)
    with console.capture() as captured:
        for task in gather(rows).tasks:
            console.print(table(task))
    return captured.get().splitlines()


def test_the_table_has_returns_of_seeds_their_median_and_time_against_trpo() -> None:
    rows = curve(2, returns=30.0, seconds=9.0, cpu_seconds=9.0) + curve(1, returns=50.0)
    rows += curve(0, returns=10.0, cpu_seconds=3.0)
    rows += curve(0, "trpo", returns=7.0, seconds=2.0, cpu_seconds=2.0)
    rows += curve(0, returns=99.0)  # the same run a second time does not count
    rows += curve(0, steps=200) + curve(0, task="ant")
    rows += curve(0, overrides={"std": "[/]"}, settings_hash="cd", train_episodes=0)
    lines = table_text(rows)
    titles = [line.strip() for line in lines if "steps" in line]
    assert titles == ["hopper, 100 steps", "hopper, 200 steps", "ant, 100 steps"]
    body = [" ".join(line.split()) for line in lines]
    assert "mki 10.0 50.0 30.0 30.0 10.0 50.0 29.0 4.0 1.50" in body  # of seed 0, which both have
    assert "trpo 7.0 7.0 7.0 7.0 6.0 2.0 1.00" in body
    assert "mki std=[/] 1.0 1.0 1.0 1.0 - 4.0 -" in body
    assert body.count("mki 1.0 1.0 1.0 1.0 0.0 4.0 -") == 2


def test_the_command_prints_a_store_and_names_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    store.add(curve(0))
    broken = dict(list(curve(1)[0].items())[:6])
    store.add([broken | {"final": False, "error": "it rained"}])
    assert main(["bench", "--table", "--store", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "hopper, 100 steps" in output
    assert "failed: hopper mki seed 1: it rained" in output
    store.add(curve(1))
    assert main(["bench", "--table", "--store", str(tmp_path)]) == 0
    assert "it rained" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--table"], "there is no store at"),
        (["papr"], "unknown suite 'papr'; did you mean 'paper'"),
        (["--tasks", "hoper"], "did you mean 'hopper'"),
        (["--algorithms", "mkj"], "did you mean 'mki'"),
        (["paper", "--algorithms", "trpo-plian"], "'trpo-plian'; did you mean 'trpo-plain'"),
        (["--set", "std"], "--set std: not of the form KEY=VALUE"),
        (["--set", "std=1", "--set", "gamma=1"], "--set is given twice"),
        (["--set", "stdd=1"], "did you mean 'std'"),
        (["--set", "feature=1"], "did you mean 'features'"),
        (["--set", "policy=mki"], "RidgePolicy has no 'policy'"),
        (["--set", "seed=1"], "RidgePolicy has no 'seed'"),
        (["--steps", "0"], "steps=0 must be at least 1"),
        (["--seeds", "-1"], "seeds=-1 must not be negative"),
        (["--seed", "0"], "did you mean '--seeds'"),
        (["--seeds"], "--seeds names none"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line_and_nothing_is_written(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(["bench", "--store", str(store), *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not store.exists()


def test_provenance_leaves_what_checkpoints_record_alone() -> None:
    before = dict(library_versions())
    assert set(provenance()["versions"]) > set(before)
    assert library_versions() == before
