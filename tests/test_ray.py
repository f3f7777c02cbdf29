"""Ray: rollouts equal to those of one process, workers and machines that die, runs as tasks."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from clusters import prepare, two_machines
from imel import IMeL
from imel.bench.launch import grid, launch
from imel.bench.pool import Failure, Finished
from imel.bench.run import Run
from imel.bench.store import Store
from imel.cli.main import main
from imel.distributed import RaySampler
from imel.distributed.connection import connect
from imel.environments.making import make, make_environments
from imel.errors import ImelError, SettingsError
from small import LogBook, differing, tensors_of

prepare()
pytest.importorskip("ray")

BATCH = 3 * 42
"""Five of them are an episode of 200 steps and the beginning of another."""
SMALL: dict[str, Any] = {"n_envs": 3, "rollout_size": BATCH, "memory_size": 2 * BATCH}
SMALL |= {"critic_epochs": 1}
STEPS = 6 * BATCH


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_machines(cores=4) as (running, _):  # simulated: they are not all used at once
        yield running


@pytest.fixture(scope="module")
def two_workers(cluster: Any) -> RaySampler:
    """The same two for all tests: to start one takes longer than most of them."""
    sampler = RaySampler(2)
    sampler.make_environments = functools.cache(sampler.make_environments)  # type: ignore[method-assign]
    return sampler


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


def learned(sampler: Any, policy: str, callback: Any = None) -> tuple[IMeL, LogBook]:
    settings = {**SMALL, "gradient_steps": 2} if policy == "NpPolicy" else SMALL
    model = IMeL(policy, "Pendulum-v1", seed=3, sampler=sampler, **settings)
    book = LogBook.of(model)
    return model.learn(STEPS, callback=callback), book


def require_equal(*learned: tuple[IMeL, LogBook]) -> None:
    """Weights, memory, generators, curve and everything logged but the time."""
    one, other = (model for model, _ in learned)
    assert differing(one.learner.tensors(), other.learner.tensors()) == []
    curves = [[(e["r"], e["l"]) for e in model.ep_info_buffer or ()] for model, _ in learned]
    assert curves[0] == curves[1] != []
    pages = [
        [{key: value for key, value in page.items() if "time" not in key} for page in book.pages]
        for _, book in learned
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) == STEPS // BATCH


# --- rollouts ---


@pytest.mark.parametrize("policy", ["RidgePolicy", "NpPolicy"])
def test_workers_give_what_one_process_gives_although_one_of_them_dies(
    two_workers: RaySampler, policy: str
) -> None:
    import ray

    killed = []

    def kill(model: IMeL) -> None:
        killed.append(model.env._workers[1])  # type: ignore[union-attr]
        ray.kill(killed[0])

    callback = At(5, kill) if policy == "RidgePolicy" else None
    require_equal(learned(None, policy), learned(two_workers, policy, callback))
    assert len(killed) == (policy == "RidgePolicy")


def test_a_rollout_ended_by_a_callback_leaves_environments_where_it_ended(
    two_workers: RaySampler,
) -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps != 150

    models = []
    for sampler in (None, two_workers):
        model = IMeL("RidgePolicy", "Pendulum-v1", seed=3, sampler=sampler, **SMALL)
        assert model.learn(STEPS, callback=Stop()).num_timesteps == 150
        models.append(tensors_of(model.learn(2 * BATCH, reset_num_timesteps=False)))
    assert differing(*models) == []


def test_the_environments_are_a_vector_environment(two_workers: RaySampler) -> None:
    env, same = (
        make("Pendulum-v1", 3) for make in (two_workers.make_environments, make_environments)
    )
    for vector in (env, same):
        vector.seed(5)
    np.testing.assert_array_equal(env.reset(), same.reset())
    actions = np.array([[0.5], [-1.0], [2.0]], np.float32)
    for ours, theirs in zip(env.step(actions)[:3], same.step(actions)[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.get_attr("max_torque") == [2.0] * 3
    assert env.get_attr("max_torque", indices=[1]) == [2.0]
    for refused in (lambda: env.set_attr("max_torque", 1.0), lambda: env.env_method("render")):
        with pytest.raises(ImelError, match="cannot be"):
            refused()


@pytest.mark.slow
def test_an_environment_that_cannot_be_played_again_is_named(cluster: Any) -> None:
    import ray

    env = RaySampler(2).make_environments("clusters:RayDrifts-v0", 2)
    env.reset()
    ray.kill(env._workers[0])  # type: ignore[attr-defined]
    with pytest.raises(ImelError, match=r"environment 0 was lost .* not deterministic"):
        list(map(env.step, [np.zeros((2, 1), np.float32)] * 1000))  # until the worker is gone
    env.close()


def test_what_a_sampler_cannot_do_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImelError, match=r"pip install 'imel\[ray\]'"):
        connect()
    monkeypatch.undo()
    with pytest.raises(SettingsError, match="n_workers=0"):
        RaySampler(0)
    with pytest.raises(ImelError, match="9 workers need as many cores; Ray has 8"):
        IMeL("RidgePolicy", "Pendulum-v1", sampler=RaySampler(9))
    with pytest.raises(SettingsError, match="give an environment's id"):
        IMeL("RidgePolicy", make("Pendulum-v1"), sampler=RaySampler(1))
    with pytest.raises(ImelError, match="cannot make environment 'Pendulun-v1'"):
        IMeL("RidgePolicy", "Pendulun-v1", sampler=RaySampler(1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:environment")
def test_faults_of_environments_are_the_same_faults_elsewhere(cluster: Any) -> None:
    one, other = (
        IMeL(
            "RidgePolicy", "clusters:RayRaises-v0", seed=3, sampler=sampler, max_faults=99, **SMALL
        )
        for sampler in (None, RaySampler(2))
    )
    for model in (one, other):
        model.learn(STEPS)
    assert one.learner.faults == other.learner.faults > 0
    assert one.num_timesteps == other.num_timesteps
    assert differing(one.learner.tensors(), other.learner.tensors()) == []
    assert other.env is not None
    other.env.close()


# --- runs as tasks ---


class Listener:
    def __init__(self, on_step: Callable[[int], None] = lambda seed: None) -> None:
        self.seen, self.outcomes = list[tuple[int, int]](), list[Any]()
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


# --- a machine that dies ---


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["RidgePolicy", "NpPolicy"])
def test_a_machine_killed_in_the_middle_changes_no_bit(policy: str) -> None:
    import ray

    with two_machines() as (cluster, other):
        killer = threading.Thread(target=cluster.remove_node, args=(other, False))
        callbacks = [At(3, lambda _: killer.start()), At(5, lambda _: killer.join())]
        require_equal(learned(None, policy), learned(RaySampler(2), policy, callbacks))
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        assert sum(node["Alive"] for node in nodes) == 1


@pytest.mark.slow
def test_the_runs_of_a_machine_that_dies_are_done_on_another(tmp_path: Path) -> None:
    from imel.bench.ray_pool import RayPool

    with two_machines() as (cluster, other):
        under_way = set[int]()

        def kill(seed: int) -> None:  # when a run on each of the two has come some way
            if len(under_way) < 2 and len(under_way | {seed}) == 2:
                cluster.remove_node(other, False)
            under_way.add(seed)

        store, listener = Store(tmp_path), Listener(kill)
        runs = grid(["clusters:RaySlow-v0"], ["nearest"], [0, 1, 2], 1024, BENCH)
        assert launch(runs, store, RayPool("auto"), listener) == []
        assert all(store.final_row(run.identity()) for run in runs)
        assert sum(row["final"] for row in store.rows()) == 3
        assert not any(isinstance(outcome, Failure) for outcome in listener.outcomes)
        first = [seed for seed, step in listener.seen if step == BENCH["rollout_size"]]
        assert len(first) == len(runs) + 1  # the run that was lost began again


@pytest.mark.slow
def test_a_task_that_is_stopped_gives_its_core_to_the_next() -> None:
    from imel.bench.ray_pool import RayPool

    with two_machines():
        pool = RayPool("auto", jobs=1)
        long = Run("clusters:RaySlow-v0", "nearest", 0, 100 * 64, BENCH)
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
