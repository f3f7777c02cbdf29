"""Suites, untuned tasks and chance: what they stand for."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from imel.bench.algorithms import find_algorithm
from imel.bench.launch import grid, unfinished
from imel.bench.run import FINAL_EPISODES, Run, train
from imel.bench.store import Store
from imel.bench.tasks import SPACE_TASKS, TASKS, UNTUNED_TASKS, find_suite, find_task
from imel.errors import ImelError
from pages import ROOT

OF_IMEL = ("ridge", "mki", "np", "regressor")
SEEDS = (30, 31, 32, 33, 34)


@pytest.mark.parametrize(
    ("name", "tasks", "algorithms", "seeds"),
    [
        ("paper", TASKS, (*OF_IMEL, "trpo", "trpo-plain", "ppo", "random"), SEEDS),
        ("untuned", UNTUNED_TASKS, ("ridge", "trpo", "ppo", "random"), SEEDS),
        ("spaces", SPACE_TASKS, ("ridge", "ppo", "random"), (600, 601, 602, 603, 604)),
    ],
)
def test_a_suite_is_every_task_at_its_own_steps_in_a_store_of_its_own(
    name: str, tasks: dict[str, object], algorithms: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    suite = find_suite(name, quick=False)
    assert (suite.tasks, suite.algorithms, suite.seeds) == (tuple(tasks), algorithms, seeds)
    assert suite.store == Path("results", name)
    runs = grid(suite.tasks, suite.algorithms, suite.seeds, suite.steps, {})
    assert len(runs) == len(tasks) * len(algorithms) * 5
    assert all(run.steps == find_task(run.task).steps for run in runs if run.algorithm != "random")
    quick = find_suite(name, quick=True)
    assert (len(quick.tasks), quick.seeds, quick.steps) == (2, seeds[:2], 10_000)
    assert set(quick.tasks) < set(suite.tasks)
    assert set(quick.algorithms) <= set(suite.algorithms)
    assert quick.store == Path("results/quick")


def test_longer_runs_have_a_million_steps_and_leave_out_what_is_solved() -> None:
    suite = find_suite("long", quick=False)
    assert (suite.steps, suite.algorithms) == (1_000_000, ("ridge", "trpo", "random"))
    assert set(TASKS) - set(suite.tasks) == {"mountaincar", "inverted-pendulum"}
    assert suite.store == Path("results/long")


@pytest.mark.parametrize("name", ["paper", "long", "untuned", "spaces"])
def test_the_committed_stores_have_every_run_of_imel(name: str) -> None:
    suite = find_suite(name, quick=False)
    algorithms = [each for each in suite.algorithms if each in OF_IMEL]
    runs = grid(suite.tasks, algorithms, suite.seeds, suite.steps, {})
    assert unfinished(runs, Store(ROOT / suite.store)) == []


@pytest.mark.parametrize(
    ("task", "policy", "rate"),
    [
        ("CartPole-v1", "ActorCriticPolicy", 0.0005),
        ("sensors", "MultiInputActorCriticPolicy", 0.0003),
        ("catch", "ActorCriticCnnPolicy", 0.000125),
    ],
)
def test_ppo_has_the_policy_and_the_schedules_of_the_zoo(
    task: str, policy: str, rate: float
) -> None:
    ppo = find_algorithm("ppo")
    model = ppo.make(find_task(task), ppo.settings(find_task(task), {}), 0)
    assert type(model.policy).__name__ == policy
    assert model.lr_schedule(0.5) == pytest.approx(rate)  # half of the run is left


def test_untuned_tasks_are_continuous_and_in_no_other_suite() -> None:
    assert not set(UNTUNED_TASKS) & {*TASKS, *SPACE_TASKS}
    for name in UNTUNED_TASKS:
        with closing(find_task(name).make()) as env:
            assert isinstance(env.action_space, spaces.Box)


@pytest.mark.filterwarnings("ignore")
def test_plain_trpo_is_trpo_without_normalisation_and_takes_no_overrides() -> None:
    task, plain = find_task("halfcheetah"), find_algorithm("trpo-plain")
    settings = plain.settings(task, {})
    assert settings == find_algorithm("trpo").settings(task, {}) | {"normalise": False}
    assert not isinstance(plain.make(task, settings, 0).get_env(), VecNormalize)
    with pytest.raises(ImelError, match="only IMeL's own algorithms take settings"):
        grid(["hopper"], ["trpo-plain"], [0], None, {"n_envs": 2})


def test_chance_is_evaluated_and_not_trained() -> None:
    [run] = grid(["Pendulum-v1"], ["random"], [3], 5000, {})
    [row] = train(run)
    assert (row["steps"], row["step"], row["final"]) == (0, 0, True)
    assert (row["train_return"], row["train_episodes"]) == (None, 0)
    assert len(row["eval_returns"]) == FINAL_EPISODES
    assert -1400 < row["eval_return"] < -1000  # of acting at random; doing nothing has the same
    [again] = train(run)
    assert again["eval_returns"] == row["eval_returns"]
    [other] = train(Run("Pendulum-v1", "random", 4, 0))
    assert other["eval_returns"] != row["eval_returns"]


def test_actions_of_chance_fill_the_action_space_for_every_copy() -> None:
    model = find_algorithm("random").make(find_task("Pendulum-v1"), {}, 0)
    actions, _ = model.predict(np.zeros((4000, 3)), deterministic=True)
    assert actions.shape == (4000, 1)
    assert np.abs(actions).max() <= 2.0
    np.testing.assert_allclose(np.quantile(actions, [0.25, 0.5, 0.75]), [-1, 0, 1], atol=0.1)
    model = find_algorithm("random").make(find_task("sensors"), {}, 0)
    env = find_task("sensors").make_vector(3, seed=0)
    actions, _ = model.predict(env.reset())  # type: ignore[arg-type]
    assert actions.shape == (3, 2)
