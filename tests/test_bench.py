"""The bench: tasks, algorithms, one run, the store, grids over processes, and the table."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

import imel.bench.run
from imel.bench.algorithms import ALGORITHMS, find_algorithm, settings_hash
from imel.bench.launch import grid, launch, unfinished
from imel.bench.pool import Failure, Processes
from imel.bench.run import EPISODES, FINAL_EPISODES, Run, train
from imel.bench.store import IDENTITY, Row, Store
from imel.bench.tasks import TASKS, WithoutBodyMasses, find_task
from imel.checkpoints.checkpoint import library_versions
from imel.cli.bench import tables
from imel.cli.main import main
from imel.errors import ImelError, SettingsError
from imel.report.names import task_title
from imel.report.results import Results, gather
from imel.runs.stored import provenance

SMALL = {"rollout_size": 64, "n_envs": 4, "memory_size": 128}

ENVIRONMENTS = """
import os, pathlib, signal, time
import gymnasium
from toy import ScriptedEnv

class Raises(ScriptedEnv):
    def step(self, action):
        raise RuntimeError("the arm\\nfell off")

class Killed(ScriptedEnv):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGKILL)

class Hangs(ScriptedEnv):
    def step(self, action):
        here = pathlib.Path(__file__).parent
        if (here / "hang").exists():
            (here / "hanging").touch()
            time.sleep(3600)
        return super().step(action)

for env in (ScriptedEnv, Raises, Killed, Hangs):
    name = f"Bench{env.__name__.removesuffix('Env')}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Prefix of environments that workers can make too; an episode of Scripted always pays 15."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "bench_environments.py").write_text(ENVIRONMENTS)
    monkeypatch.syspath_prepend(str(folder))
    return "bench_environments:Bench"


class Listener:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.outcomes: dict[str, Mapping[str, Any] | Failure] = {}

    def advanced(self, run: Run, step: int) -> None:
        self.steps.append(step)

    def ended(self, run: Run, outcome: Mapping[str, Any] | Failure) -> None:
        self.outcomes[f"{run.task} {run.seed}"] = outcome


# --- tasks and algorithms ---


@pytest.mark.parametrize(
    ("name", "state_dim", "action_dim"),
    [
        ("mountaincar", 2, 1),
        ("inverted-pendulum", 4, 1),
        ("double-pendulum", 11, 1),
        ("hopper", 11, 3),
        ("walker2d", 17, 6),
        ("halfcheetah", 17, 6),
        ("ant", 27, 8),
        ("humanoid", 257, 17),
    ],
)
def test_each_task_has_the_dimensions_of_the_paper(
    name: str,
    state_dim: int,
    action_dim: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo logs into the current folder
    env = find_task(name).make()
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == observation.shape == (state_dim,)
    assert env.action_space.shape == (action_dim,)
    assert env.observation_space.contains(observation)
    assert task_title(name).endswith(f" ({state_dim}, {action_dim})")
    assert len(TASKS) == 8


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
    assert find_task("Pendulum-v1").env_id == "Pendulum-v1"


@pytest.mark.parametrize(
    ("name", "option"), [("ridge", {"penalty": 3.0}), ("mki", {"kernel_scale": 2.0})]
)
def test_overrides_reach_settings_and_options_and_change_the_hash(
    name: str, option: dict[str, float]
) -> None:
    task, algorithm = find_task("mountaincar"), find_algorithm(name)
    plain = algorithm.settings(task, {})
    assert plain == algorithm.settings(find_task("hopper"), {}), "one default for all tasks"
    changed = algorithm.settings(task, {"memory_size": 4096, **option, "std": 0.5})
    assert (changed["memory_size"], changed["std"]) == (4096, 0.5)
    assert changed["policy_kwargs"] == plain["policy_kwargs"] | option
    digests = {settings_hash(task, s) for s in (plain, changed)}
    digests.add(settings_hash(find_task("hopper"), plain))
    assert len(digests) == 3
    assert settings_hash(task, plain | {"std": 1}) == settings_hash(task, plain | {"std": 1.0})
    without = {name: value for name, value in plain.items() if name != "std"}
    assert settings_hash(task, plain | {"std": None}) != settings_hash(task, without)
    with pytest.raises(SettingsError, match="did you mean 'memory_size'"):
        algorithm.settings(task, {"memory_siz": 4096})
    with pytest.raises(SettingsError, match="'preset' is no setting any more"):
        algorithm.settings(task, {"preset": None})


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("algorithm", ["trpo", "ppo"])
@pytest.mark.filterwarnings("ignore")
def test_published_settings_make_a_baseline_on_every_task(
    name: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    baseline, task = find_algorithm(algorithm), find_task(name)
    settings = baseline.settings(task, {})
    model = baseline.make(task, json.loads(json.dumps(settings)), seed=0)
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


# --- one run ---


def test_a_run_records_its_curve_and_repeats_to_the_last_digit(scripted: str) -> None:
    run = Run(f"{scripted}Scripted-v0", "mki", seed=3, steps=640, overrides=SMALL)
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


def test_the_time_of_evaluations_does_not_count(
    scripted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def evaluate(*arguments: Any, **options: Any) -> tuple[list[float], list[int]]:
        now[0] += 1000.0
        return [0.0], [1]

    monkeypatch.setattr(imel.bench.run, "evaluate_policy", evaluate)
    monkeypatch.setattr(imel.bench.run, "_clocks", lambda: np.full(2, now[0]))
    rows = train(
        Run(f"{scripted}Scripted-v0", "nearest", 0, 640, SMALL),
        on_row=lambda row: now.__setitem__(0, now[0] + 1.0),
    )
    assert now[0] == 10 * 1000 + 10
    assert [row["seconds"] for row in rows] == [float(i) for i in range(10)]


@pytest.mark.filterwarnings("ignore")
def test_a_normalised_baseline_is_evaluated_on_plain_rewards_with_the_statistics_of_training(
    scripted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def spy(model: Any, env: Any, *arguments: Any, **options: Any) -> Any:
        assert env is not model.get_env()
        counts.append(round(env.obs_rms.count))
        result = evaluate_policy(model, env, *arguments, **options)
        counts.append(round(env.obs_rms.count))
        return result

    monkeypatch.setattr(imel.bench.run, "evaluate_policy", spy)
    rows = train(Run(f"{scripted}Scripted-v0", "trpo", 0, 2048))
    assert [row["step"] for row in rows] == [2048]
    # The observations of every step, and the two of the reset
    assert counts == [2050, 2050]
    assert rows[-1]["eval_returns"] == [15.0] * FINAL_EPISODES
    assert rows[-1]["train_return"] == 15.0


# --- the store ---


def curve(seed: int = 0, algorithm: str = "mki", returns: float = 1.0, **other: Any) -> list[Row]:
    """A finished run of two rows."""
    run = {"task": "hopper", "algorithm": algorithm, "settings_hash": "ab", "seed": seed}
    run |= {"steps": 100, "overrides": {}}
    first = {"step": 50, "train_return": -9.0, "train_episodes": 7, "seconds": 1.0}
    last = {"step": 100, "train_return": returns - 1, "train_episodes": 2, "seconds": 4.0}
    return [
        run | first | {"eval_return": None, "final": False} | other,
        run | last | {"eval_return": returns, "final": True} | other,
    ]


def returns_by_seed(results: Results) -> list[dict[int, float]]:
    """For each algorithm on each task."""
    return [
        {run.seed: run.evaluated for run in group.runs}
        for task in results.tasks
        for group in task.groups.values()
    ]


def named(*identity: Any) -> Row:
    return dict(zip(IDENTITY, identity, strict=True))


def test_rows_come_back_as_they_were_stored(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert store.rows() == []
    assert store.final_row(named("hopper", "mki", "ab", 1, 100)) is None
    runs = [curve(seed=1), curve(seed=0), curve(seed=0, task="module:Env/it-v0")]
    for rows in runs:
        store.add(rows)
    assert store.rows() == [row for run in (runs[1], runs[0], runs[2]) for row in run]
    assert store.final_row(named("hopper", "mki", "ab", 1, 100)) == runs[0][-1]
    assert store.final_row(named("module:Env/it-v0", "mki", "ab", 0, 100))
    for other in [("ant", "mki", "ab", 1, 100), ("hopper", "np", "ab", 1, 100)]:
        assert store.final_row(named(*other)) is None
    for other in [("hopper", "mki", "a", 1, 100), ("hopper", "mki", "ab", 1, 10)]:
        assert store.final_row(named(*other)) is None


def test_what_is_the_same_in_all_rows_of_a_run_is_written_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, last = curve()
    middle = {**first, "step": 70, "seconds": 2.0}
    path = store.add([first, middle, last])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == first
    changing = {"step", "seconds", "eval_return", "final"}
    assert all(changing <= set(line) for line in lines[1:])
    assert not any({"task", "settings_hash", "seed"} & set(line) for line in lines[1:])
    assert store.rows() == [first, middle, last]


def test_rows_that_repeat_everything_are_read_too(tmp_path: Path) -> None:
    rows = curve(seed=3)
    (tmp_path / "older.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Store(tmp_path).rows() == rows


def test_a_torn_last_line_is_ignored_and_its_run_is_not_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.add(curve(seed=0))
    store.add(curve(seed=1))
    path.write_bytes(path.read_bytes()[:-20])
    assert [row["seed"] for row in store.rows()] == [0, 1, 1]
    assert store.final_row(named("hopper", "mki", "ab", 0, 100)) is None
    assert returns_by_seed(gather(store.rows())) == [{1: 1.0}]
    store.add(curve(seed=0, returns=2.0))
    assert returns_by_seed(gather(store.rows())) == [{0: 2.0, 1: 1.0}]
    path.write_text('{"ta\n' + path.read_text())
    with pytest.raises(ImelError, match=f"{path.name} is damaged: line 1"):
        store.rows()


def add_many(folder: Path, count: int, start: Event) -> None:
    start.wait()
    for _ in range(count):
        Store(folder).add(curve() * 20)


def test_two_writers_at_once_lose_nothing_and_readers_see_whole_runs(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that is held
    start = context.Event()
    writers = [context.Process(target=add_many, args=(tmp_path, 100, start)) for _ in range(2)]
    for writer in writers:
        writer.start()
    start.set()
    while any(writer.is_alive() for writer in writers):
        assert len(Store(tmp_path).rows()) % 40 == 0
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(Store(tmp_path).rows()) == 2 * 100 * 40
    assert not list(tmp_path.glob(".*"))


# --- grids ---


def test_a_grid_is_every_combination_and_refuses_what_cannot_run() -> None:
    runs = grid(["hopper", "Pendulum-v1"], ["mki", "trpo"], [0, 1, 0], None, {"n_envs": 2})
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


def test_failed_and_killed_runs_are_recorded_and_the_others_go_on(
    scripted: str, tmp_path: Path
) -> None:
    store, listener = Store(tmp_path / "store"), Listener()
    tasks = [f"{scripted}{name}-v0" for name in ("Killed", "Raises", "Scripted")]
    runs = grid(tasks, ["nearest"], [0], 128, SMALL)
    failed = launch(runs, store, Processes(2), listener)
    reason = "one of 4 environments raised at step 0 or before: RuntimeError: the arm fell off"
    killed = "its process was killed by signal 9 (SIGKILL)"
    assert {failure.error for failure in failed} == {reason, killed}
    finished = listener.outcomes.pop(f"{tasks[2]} 0")
    assert isinstance(finished, dict)
    assert finished["eval_return"] == 15.0
    assert listener.steps == [64, 128]
    assert sorted(listener.outcomes) == [f"{tasks[0]} 0", f"{tasks[1]} 0"]
    assert unfinished(runs, store) == runs[:2]
    results = gather(store.rows())
    changes = " ".join(f"{name}={value}" for name, value in SMALL.items())
    assert f"{tasks[1]} nearest {changes} seed 0: {reason}" in results.failures
    assert len(results.failures) == 2
    assert [task.task for task in results.tasks] == [tasks[2]]


def bench(store: Path, modules: Path, *arguments: str) -> subprocess.Popen[str]:
    """`imel bench` in a process group of its own; BenchHangs-v0 hangs while `modules`/hang is."""
    code = "import sys; from imel.cli.main import main; sys.exit(main())"
    words = ["bench", "--algorithms", "nearest", "--steps", "256", "--store", str(store)]
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    path = os.pathsep.join(
        [str(modules), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *words, "--set", *settings, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def wait_until_one_run_is_done_and_one_hangs(
    store: Path, modules: Path, process: subprocess.Popen[str]
) -> None:
    while not (list(store.glob("*.jsonl")) and (modules / "hanging").exists()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_grid_whose_launcher_was_killed_completes_without_repeating_runs(
    scripted: str, tmp_path: Path
) -> None:
    store, modules = tmp_path / "store", tmp_path / "modules"
    (modules / "hang").touch()
    arguments = ("--tasks", "Pendulum-v1", f"{scripted}Hangs-v0", "--seeds", "0", "--jobs", "1")
    process = bench(store, modules, *arguments)
    wait_until_one_run_is_done_and_one_hangs(store, modules, process)
    process.kill()
    # Ends only when the worker, which shares the pipes, is gone as well
    process.communicate()
    [done] = store.glob("*.jsonl")
    content = done.read_bytes()
    (modules / "hang").unlink()
    again = bench(store, modules, *arguments)
    output, complaint = again.communicate()
    assert again.returncode == 0, complaint
    assert "1 of 2 runs to do" in output
    assert f"[1/1] {scripted}Hangs-v0 nearest seed 0: return 15.0 after" in output
    assert "Pendulum-v1, 256 steps" in output
    assert done.read_bytes() == content
    assert len(list(store.glob("*.jsonl"))) == 2
    assert sum(row["final"] for row in Store(store).rows()) == 2


def test_an_interrupt_stops_launcher_and_workers_quietly(scripted: str, tmp_path: Path) -> None:
    store, modules = tmp_path / "store", tmp_path / "modules"
    (modules / "hang").touch()
    tasks = (f"{scripted}Hangs-v0", "Pendulum-v1")
    process = bench(store, modules, "--tasks", *tasks, "--seeds", "0", "--jobs", "2")
    wait_until_one_run_is_done_and_one_hangs(store, modules, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to launcher and workers
    _, complaint = process.communicate()
    assert process.returncode == 130
    assert complaint == "imel: interrupted\n"
    assert [row["task"] for row in Store(store).rows() if row["final"]] == ["Pendulum-v1"]
    assert not gather(Store(store).rows()).failures


# --- the command and its table ---


def table_text(rows: list[Row]) -> list[str]:
    console = Console(width=160)
    with console.capture() as captured:
        for table in tables(gather(rows)):
            console.print(table)
    return captured.get().splitlines()


def test_the_table_has_returns_of_seeds_their_median_and_time_against_trpo() -> None:
    rows = curve(2, returns=30.0, seconds=9.0, cpu_seconds=9.0) + curve(1, returns=50.0)
    rows += curve(0, returns=10.0, cpu_seconds=3.0)
    rows += curve(0, "trpo", returns=7.0, seconds=2.0, cpu_seconds=2.0)
    rows += curve(0, returns=99.0)  # the same run a second time does not count
    rows += curve(0, steps=200) + curve(0, task="ant")
    rows += curve(0, overrides={"std": "0.5:0.1"}, settings_hash="cd", train_episodes=0)
    lines = table_text(rows)
    titles = [line.strip() for line in lines if "steps" in line]
    assert titles == ["hopper, 100 steps", "hopper, 200 steps", "ant, 100 steps"]
    body = [" ".join(line.split()) for line in lines]
    assert "mki 10.0 50.0 30.0 30.0 10.0 50.0 29.0 4.0 1.50" in body  # of seed 0, which both have
    assert "trpo 7.0 7.0 7.0 7.0 6.0 2.0 1.00" in body
    assert "mki std=0.5:0.1 1.0 1.0 1.0 1.0 - 4.0 -" in body
    assert body.count("mki 1.0 1.0 1.0 1.0 0.0 4.0 -") == 2


def test_the_stochastic_return_is_that_of_the_episodes_of_the_last_tenth() -> None:
    early, last = curve()
    late = early | {"step": 95, "train_return": 4.0, "train_episodes": 3}
    last |= {"train_return": 8.0, "train_episodes": 1}
    [task] = gather([early | {"step": 90}, late, last]).tasks
    assert task.groups["mki"].explored.tolist() == [5.0]


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
        (["--tasks", "hoper"], "did you mean 'hopper'"),
        (["--algorithms", "mkj"], "did you mean 'mki'"),
        (["--set", "std"], "--set std: not of the form KEY=VALUE"),
        (["--set", "std=1", "--set", "gamma=1"], "--set is given twice"),
        (["--set", "stdd=1"], "did you mean 'std'"),
        (["--set", "feature=1"], "did you mean 'features'"),
        (["--set", "scheduled=1"], "RidgePolicy has no 'scheduled'"),
        (["--set", "policy=mki"], "RidgePolicy has no 'policy'"),
        (["--set", "policy_kwargs=1"], "RidgePolicy has no 'policy_kwargs'"),
        (["--set", "seed=1"], "RidgePolicy has no 'seed'"),
        (["--steps", "0"], "steps=0 must be at least 1"),
        (["--seeds", "-1"], "seeds=-1 must not be negative"),
        (["--seed", "0"], "did you mean '--seeds'"),
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


def test_every_algorithm_of_imel_learns_in_the_bench(scripted: str) -> None:
    for name in ("mki", "np", "anp", "regressor", "nearest", "ridge"):
        rows = train(Run(f"{scripted}Scripted-v0", name, 0, 64, SMALL))
        assert rows[-1]["settings"]["policy"].lower() == f"{name}policy"
        assert rows[-1]["eval_return"] == 15.0
    baselines = {"trpo", "trpo-plain", "ppo", "udrl", "random"}
    assert set(ALGORITHMS) == {"mki", "np", "anp", "regressor", "nearest", "ridge"} | baselines


def test_provenance_leaves_what_checkpoints_record_alone() -> None:
    before = dict(library_versions())
    assert set(provenance()["versions"]) > set(before)
    assert library_versions() == before
