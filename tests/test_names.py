"""Dimensions have names: those built in are as many as an environment has dimensions."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest

from imel.errors import ImelError
from imel.policies.names import DimensionNames, Dimensions, names_for, names_of
from toy import PointEnv

TASKS = [
    spec.id
    for spec in gymnasium.registry.values()
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco.")
    and spec.id.endswith(("-v4", "-v5"))
    and spec.id != "Pusher-v4"  # which the present MuJoCo does not run
]
DISCRETE = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"]
DISCRETE += ["FrozenLake", "FrozenLake8x8", "CliffWalking", "Taxi"]


def made(env_id: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 4 is deprecated
        return gymnasium.make(env_id)


def names_in(env: Any) -> DimensionNames:
    return names_of(env, Dimensions(env.observation_space.shape[0], env.action_space.shape[0]))


@pytest.mark.parametrize("env_id", [*TASKS, "Pendulum-v1", "MountainCarContinuous-v0"])
def test_every_mujoco_and_classic_task_has_names_for_all_its_dimensions(env_id: str) -> None:
    pytest.importorskip("mujoco")
    env = made(env_id)
    names = names_in(env)
    for each, space in ((names.state, env.observation_space), (names.action, env.action_space)):
        assert (len(set(each)),) == space.shape, "no name twice"
        assert not any(name.startswith(("state ", "action ")) for name in each)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"])
def test_names_are_in_the_order_of_mujocos_joints(env_id: str) -> None:
    pytest.importorskip("mujoco")
    env = made(env_id)
    model, names = env.unwrapped.model, names_in(env)
    joints = [model.joint(i).name for i in range(1 if model.nq > model.nv else 3, model.njnt)]
    moved = [model.joint(model.actuator_trnid[i, 0]).name for i in range(model.nu)]
    angles = [name.removesuffix(" angle") for name in names.state if name.endswith(" angle")]
    called = dict(zip(joints, [name for name in angles if name != "torso"], strict=True))
    assert [f"{called[joint]} torque" for joint in moved] == list(names.action)
    known = {"bshin": "back shin", "ffoot": "front foot", "left_elbow": "left elbow"}
    assert all(called[joint] == name for joint, name in known.items() if joint in called)


@pytest.mark.parametrize("env_id", DISCRETE)
def test_every_discrete_task_has_names_for_all_its_options(env_id: str) -> None:
    options = int(made(env_id).action_space.n)
    names = names_for(env_id, Dimensions(1, options, [range(options)])).action
    assert len(set(names)) == options
    assert not any(name.startswith("action ") for name in names)


def test_what_has_no_name_has_its_number_in_the_environment() -> None:
    assert names_for(None, Dimensions(1, 2, [range(5, 7)])).action == ("action 5", "action 6")
    several = names_for(None, Dimensions(1, 5, [range(2), range(1, 4)])).action
    assert several == ("choice 0: 0", "choice 0: 1", "choice 1: 1", "choice 1: 2", "choice 1: 3")
    names = names_for("Humanoid-v5", Dimensions(45, 17))
    assert (names.state[1], names.action[0]) == ("state 1", "abdomen y torque")


def test_an_environment_names_its_own_dimensions() -> None:
    env = PointEnv()
    env.state_names = ("east", "north")  # type: ignore[attr-defined]
    assert names_in(env) == DimensionNames(("east", "north"), ("action 0",))
    env.state_names = ("east",)  # type: ignore[attr-defined]
    with pytest.raises(ImelError, match="the state has 2 dimensions, not 1 names"):
        names_in(env)
