"""Ray: rollouts equal to those of one process, workers and machines that die, runs as tasks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from clusters import ask_for_a_token, two_machines
from imel import IMeL
from imel.bench.launch import grid, launch
from imel.bench.pool import Failure, Finished
from imel.bench.progress import SearchProgress
from imel.bench.run import Run
from imel.bench.store import Store
from imel.cli.main import main
from imel.distributed import RaySampler, SerialSampler
from imel.distributed.connection import connect
from imel.distributed.episodes import Past, make_seeded, play_again
from imel.errors import ImelError, SettingsError
from imel.tune.study import Problem, completed, opened
from small import LogBook, differing, tensors_of

ask_for_a_token()
pytest.importorskip("ray")

BATCH = 3 * 42
"""Five of them are an episode of 200 steps and the beginning of another."""
SMALL: dict[str, Any] = {
    "n_envs": 3,
    "rollout_size": BATCH,
    "memory_size": 2 * BATCH,
    "critic_epochs": 1,
}
STEPS = 6 * BATCH

ENVIRONMENTS = """
import time
import gymnasium
import numpy as np
from toy import PointEnv, ScriptedEnv

class Raises(PointEnv):
    def step(self, action):
        if self._point[0] > 0.985:  # which depends on seeds alone
            raise RuntimeError("the arm fell off")
        return super().step(action)

class Drifts(PointEnv):
    # Draws from a generator that no seed reaches
    def _draw(self):
        self._point = np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
        return self._point

class Slow(ScriptedEnv):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)

for env in (Raises, Drifts, Slow):
    name = f"Ray{env.__name__}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prefix of environments that the workers of a cluster started after this can make too."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "ray_environments_of_tests.py").write_text(ENVIRONMENTS)
    paths = [str(folder), str(Path(__file__).parent)]
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, before])
    sys.path[:0] = paths[:1]
    yield "ray_environments_of_tests:Ray"
    os.environ["PYTHONPATH"] = before
    sys.path.remove(paths[0])


@pytest.fixture(scope="module")
def cluster(environments: str) -> Iterator[Any]:
    with two_machines(cores=4) as (running, _):  # simulated: they are not all used at once
        yield running


class Reused(RaySampler):
    """Two workers for all tests: to start one takes longer than most of them."""

    made: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(2)

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        if env_id not in self.made:
            self.made[env_id] = super().make_environments(env_id, n_envs)
        made: VecEnv = self.made[env_id]
        assert made.num_envs == n_envs
        return made


class At(BaseCallback):
    """Does something while an iteration is being gathered, once."""

    def __init__(self, iteration: int, act: Callable[[IMeL], None]) -> None:
        super().__init__()
        self._iteration, self._act = iteration, act

    def _on_rollout_start(self) -> None:
        assert isinstance(self.model, IMeL)
        if self.model.iteration == self._iteration:
            self._act(self.model)

    def _on_step(self) -> bool:
        return True


def learned(sampler: Any, policy: str, env: str, callback: Any = None) -> tuple[IMeL, LogBook]:
    told = {**SMALL, "gradient_steps": 2} if policy == "NpPolicy" else SMALL
    model = IMeL(policy, env, seed=3, sampler=sampler, **told)
    book = LogBook.of(model)
    model.learn(STEPS, callback=callback)
    return model, book


def require_equal(left: tuple[IMeL, LogBook], right: tuple[IMeL, LogBook]) -> None:
    """Weights, memory, generator, curve and everything logged but the time."""
    assert differing(tensors_of(left[0]), tensors_of(right[0])) == []
    assert torch.equal(left[0].generator.get_state(), right[0].generator.get_state())
    assert left[0].ep_info_buffer is not None
    assert right[0].ep_info_buffer is not None
    curves = [
        [(episode["r"], episode["l"]) for episode in model.ep_info_buffer or ()]
        for model, _ in (left, right)
    ]
    assert curves[0] == curves[1] != []
    pages = [
        [{key: value for key, value in page.items() if "time" not in key} for page in book.pages]
        for _, book in (left, right)
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) == STEPS // BATCH


# --- episodes that can be played again ---


def test_an_environment_is_brought_where_another_one_was() -> None:
    generator = np.random.default_rng(0)
    env, past = make_seeded("Pendulum-v1", 0), Past(7)
    observation, _ = env.reset(seed=7)
    for _ in range(250):
        action = generator.uniform(-2, 2, 1).astype(np.float32)
        observation, _, terminated, truncated, _ = env.step(action)
        past.took(action, terminated or truncated)
        if terminated or truncated:
            observation, _ = env.reset()
    assert (past.episode, len(past.actions)) == (1, 50)
    other = make_seeded("Pendulum-v1", 0)
    np.testing.assert_array_equal(play_again(other, past), observation)
    assert other.rewards == env.rewards  # the episode's return will be the same as well
    action = np.zeros(1, np.float32)
    np.testing.assert_array_equal(other.step(action)[0], env.step(action)[0])
    assert not np.array_equal(make_seeded("Pendulum-v1", 0).reset(seed=8)[0], env.reset(seed=7)[0])


def test_episodes_of_one_stream_differ_and_a_seed_begins_it_again() -> None:
    env = make_seeded("Pendulum-v1", 0)
    first, second, again = env.reset(seed=1)[0], env.reset()[0], env.reset(seed=1)[0]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


# --- rollouts ---


@pytest.mark.parametrize("policy", ["RidgePolicy", "NpPolicy"])
def test_workers_give_what_one_process_gives_although_one_of_them_dies(
    cluster: Any, policy: str
) -> None:
    import ray

    killed = []

    def kill(model: IMeL) -> None:
        killed.append(model.env._workers[1])  # type: ignore[union-attr]
        ray.kill(killed[0])

    serial = learned(SerialSampler(), policy, "Pendulum-v1")
    callback = At(5, kill) if policy == "RidgePolicy" else None
    require_equal(serial, learned(Reused(), policy, "Pendulum-v1", callback))
    assert len(killed) == (policy == "RidgePolicy")


def test_a_rollout_ended_by_a_callback_leaves_environments_where_it_ended(cluster: Any) -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps != 150

    models = []
    for sampler in (SerialSampler(), Reused()):
        model = IMeL("RidgePolicy", "Pendulum-v1", seed=3, sampler=sampler, **SMALL)
        model.learn(STEPS, callback=Stop())
        assert model.num_timesteps == 150
        model.learn(2 * BATCH, reset_num_timesteps=False)
        models.append(tensors_of(model))
    assert differing(*models) == []


def test_the_environments_are_a_vector_environment(cluster: Any) -> None:
    env = Reused().make_environments("Pendulum-v1", 3)
    same = SerialSampler().make_environments("Pendulum-v1", 3)
    for vector in (env, same):
        vector.seed(5)
    np.testing.assert_array_equal(env.reset(), same.reset())
    actions = np.array([[0.5], [-1.0], [2.0]], np.float32)
    for ours, theirs in zip(env.step(actions)[:3], same.step(actions)[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.get_attr("max_torque") == [2.0] * 3
    assert env.get_attr("max_torque", indices=[1]) == [2.0]
    with pytest.raises(ImelError, match="cannot be set"):
        env.set_attr("max_torque", 1.0)


@pytest.mark.slow
def test_an_environment_that_cannot_be_played_again_is_named(
    cluster: Any, environments: str
) -> None:
    import ray

    env = RaySampler(2).make_environments(f"{environments}Drifts-v0", 2)
    env.reset()
    ray.kill(env._workers[0])  # type: ignore[attr-defined]
    with pytest.raises(ImelError, match=r"environment 0 was lost .* not deterministic"):
        env.step(np.zeros((2, 1), np.float32))
    env.close()


def test_what_a_sampler_cannot_do_is_refused(cluster: Any) -> None:
    with pytest.raises(SettingsError, match="n_workers=0"):
        RaySampler(0)
    with pytest.raises(ImelError, match="9 workers need as many cores; Ray has 8"):
        IMeL("RidgePolicy", "Pendulum-v1", sampler=RaySampler(9))
    with pytest.raises(SettingsError, match="give an environment's id"):
        IMeL("RidgePolicy", make_seeded("Pendulum-v1", 0), sampler=SerialSampler())
    with pytest.raises(ImelError, match="cannot make environment 'Pendulun-v1'"):
        IMeL("RidgePolicy", "Pendulun-v1", sampler=RaySampler(1))


@pytest.mark.slow
def test_why_workers_cannot_start_is_said(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import gymnasium, toy\ngymnasium.register('OnlyHere-v0', toy.PointEnv)"
    (tmp_path / "only_here.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))  # after the cluster was started
    with pytest.raises(ImelError, match=r"worker 0 of 1 died .*No module named 'only_here'"):
        RaySampler(1).make_environments("only_here:OnlyHere-v0", 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:environment")
def test_faults_of_environments_are_the_same_faults_elsewhere(
    cluster: Any, environments: str
) -> None:
    models = []
    for sampler in (SerialSampler(), RaySampler(2)):
        env = f"{environments}Raises-v0"
        model = IMeL("RidgePolicy", env, seed=3, sampler=sampler, max_faults=99, **SMALL)
        model.learn(STEPS)
        models.append(model)
        assert model.env is not None
        model.env.close()
    assert models[0].faults == models[1].faults > 0
    assert models[0].num_timesteps == models[1].num_timesteps
    assert differing(tensors_of(models[0]), tensors_of(models[1])) == []


# --- runs as tasks ---


class Listener:
    def __init__(self, on_step: Callable[[int], None] = lambda seed: None) -> None:
        self.seen: list[tuple[int, int]] = []
        self.outcomes: list[Any] = []
        self._on_step = on_step

    def advanced(self, run: Run, step: int) -> None:
        self.seen.append((run.seed, step))
        self._on_step(run.seed)

    def ended(self, run: Run, outcome: Any) -> None:
        self.outcomes.append(outcome)


BENCH = {"rollout_size": 64, "n_envs": 4, "memory_size": 128}


def test_runs_of_a_grid_go_through_tasks_into_the_same_store(cluster: Any, tmp_path: Path) -> None:
    from imel.bench.ray_pool import RayPool

    store, listener = Store(tmp_path), Listener()
    runs = grid(["Pendulum-v1"], ["nearest"], [0, 1], 256, BENCH)
    broken = Run("Pendulum-v1", "nearest", 0, 256, BENCH | {"memory_size": 32})
    failures = launch([*runs, broken], store, RayPool("auto"), listener)
    assert [failure.error for failure in failures] == [
        "memory_size=32 is smaller than one rollout: 64 transitions of 4 environments"
    ]
    assert len(listener.outcomes) == 3
    assert sorted(listener.seen) == [
        (seed, step) for seed in (0, 1) for step in (64, 128, 192, 256)
    ]
    for run in runs:
        row = store.final_row(run.identity())
        assert row is not None
        assert (row["step"], len(row["eval_returns"])) == (256, 20)


def test_an_address_without_a_cluster_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    arguments = ["--tasks", "Pendulum-v1", "--store", str(tmp_path / "store")]
    assert main(["bench", *arguments, "--ray", "127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "cannot connect to Ray at '127.0.0.1:9'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImelError, match=r"pip install 'imel\[ray\]'"):
        connect()


# --- a machine that dies ---


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["RidgePolicy", "NpPolicy"])
def test_a_machine_killed_in_the_middle_changes_no_bit(environments: str, policy: str) -> None:
    import ray

    with two_machines() as (cluster, other):

        def kill(model: IMeL) -> None:
            threading.Timer(0.05, cluster.remove_node, (other, False)).start()

        serial = learned(SerialSampler(), policy, "Pendulum-v1")
        parallel = learned(RaySampler(2), policy, "Pendulum-v1", At(5, kill))
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        assert sum(node["Alive"] for node in nodes) == 1
        require_equal(serial, parallel)


class Killer:
    """Kills a machine of two when a run on each has come some way."""

    def __init__(self, cluster: Any, machine: Any) -> None:
        self._cluster, self._machine = cluster, machine
        self._under_way: set[int] = set()
        self.killed = False

    def advanced(self, number: int) -> None:
        self._under_way.add(number)
        if len(self._under_way) == 2 and not self.killed:
            self.killed = True
            self._cluster.remove_node(self._machine, False)


@pytest.mark.slow
def test_the_runs_of_a_machine_that_dies_are_done_on_another(
    environments: str, tmp_path: Path
) -> None:
    from imel.bench.ray_pool import RayPool

    with two_machines() as (cluster, other):
        killer = Killer(cluster, other)
        store, listener = Store(tmp_path), Listener(killer.advanced)
        runs = grid([f"{environments}Slow-v0"], ["nearest"], [0, 1, 2], 1024, BENCH)
        assert launch(runs, store, RayPool("auto"), listener) == []
        assert killer.killed
        assert all(store.final_row(run.identity()) for run in runs)
        assert sum(row["final"] for row in store.rows()) == 3
        assert not any(isinstance(outcome, Failure) for outcome in listener.outcomes)
        first = [seed for seed, step in listener.seen if step == BENCH["rollout_size"]]
        assert len(first) == len(runs) + 1  # the run that was lost began again


@pytest.mark.slow
def test_a_search_goes_on_when_a_machine_dies(
    environments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_machines() as (cluster, other):
        killer = Killer(cluster, other)
        monkeypatch.setattr(
            SearchProgress, "advanced", lambda _, number, share: killer.advanced(number)
        )
        words = ["--policy", "regressor", "--steps", "1024", "--trials", "4", "--seeds", "0"]
        words += ["--confirm-seeds", "0", "--ray", "auto", "--study", str(tmp_path)]
        task, fixed = f"{environments}Slow-v0", {"rollout_size": 64, "gradient_steps": 5}
        settings = [f"{name}={value}" for name, value in fixed.items()]
        assert main(["tune", task, *words, "--set", *settings]) == 0
        assert killer.killed
    with opened(tmp_path, Problem(task, "regressor", 1024, (0,), fixed), seed=0) as (study, _):
        assert len(completed(study)) == 4


@pytest.mark.slow
def test_a_task_that_is_stopped_gives_its_core_to_the_next(environments: str) -> None:
    from imel.bench.ray_pool import RayPool

    with two_machines():
        pool = RayPool("auto", jobs=1)
        long = Run(f"{environments}Slow-v0", "nearest", 0, 100 * 64, BENCH)
        for key in ("one", "two", "three"):  # one more than there are cores
            assert pool.has_room()
            pool.start(key, long)
            assert not pool.has_room()
            while not pool.messages(1.0):  # under way, so that stopping has something to stop
                pass
            pool.stop(key)
        pool.start("last", Run("Pendulum-v1", "nearest", 0, 64, BENCH))
        heard: list[Any] = []
        while not heard or not isinstance(heard[-1][1], Finished):
            heard += pool.messages(1.0)
        assert {key for key, _ in heard} == {"last"}
        pool.close()
