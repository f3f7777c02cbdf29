"""Input that cannot work is refused early, in one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.ppo import MlpPolicy

from imel import IMeL
from imel.errors import ImelError, NonFiniteError, SettingsError, SpaceError
from imel.policies.ridge.ridge_policy import RidgePolicy
from small import BATCH, answers, differing, small_model, tensors_of
from toy import FloatArray, ScriptedEnv

VECTOR = spaces.Box(-1.0, 1.0, (3,))
HALF_OPEN = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.ones(2, np.float32))


class Blank(gym.Env[Any, Any]):
    """An environment that is nothing but its spaces."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions


@pytest.mark.parametrize(
    ("observations", "actions", "wrong"),
    [
        (VECTOR, spaces.Dict(arm=VECTOR), "actions .* not Dict.*TransformAction"),
        (VECTOR, spaces.Box(-1.0, 1.0, (2, 2)), "actions .* not Box.*TransformAction"),
        (VECTOR, spaces.Box(-np.inf, np.inf, (2,)), "bounds must be finite.*TransformAction"),
        (VECTOR, HALF_OPEN, "action bounds must be finite.*TransformAction"),
        (spaces.Text(3), VECTOR, "observations .* not Text.*FlattenObservation"),
        (spaces.Sequence(VECTOR), VECTOR, "observations .* not Sequence.*TransformObservation"),
        (spaces.Graph(VECTOR, None), VECTOR, "observations .* not Graph.*TransformObservation"),
        (spaces.Tuple([VECTOR]), VECTOR, "observations .* not Tuple.*FlattenObservation"),
        (spaces.Dict(eye=spaces.Dict(left=VECTOR)), VECTOR, "'eye'.* not Dict.*FlattenObservation"),
        (
            spaces.Dict(eye=spaces.Box(0, 255, (20, 20, 3), np.uint8)),
            VECTOR,
            "'eye'.* below 36 x 36.*ResizeObservation",
        ),
    ],
)
def test_spaces_that_cannot_be_learned_on(
    observations: spaces.Space[Any], actions: spaces.Space[Any], wrong: str
) -> None:
    with pytest.raises(SpaceError, match=wrong) as refusal:
        IMeL("RidgePolicy", Blank(observations, actions))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("observations", "actions", "wrap"),
    [
        (VECTOR, HALF_OPEN, lambda env: wrappers.TransformAction(env, lambda a: a, VECTOR)),
        (spaces.Tuple([VECTOR, spaces.Discrete(2)]), VECTOR, wrappers.FlattenObservation),
        (spaces.Text(3), VECTOR, wrappers.FlattenObservation),
        (spaces.Dict(eye=spaces.Dict(left=VECTOR)), VECTOR, wrappers.FlattenObservation),
        (
            *(spaces.Sequence(VECTOR), VECTOR),
            lambda env: wrappers.TransformObservation(env, lambda rows: rows[-1], VECTOR),
        ),
    ],
)
def test_wrapper_that_a_refusal_names_helps(
    observations: spaces.Space[Any], actions: spaces.Space[Any], wrap: Any
) -> None:
    IMeL("RidgePolicy", wrap(Blank(observations, actions)))


@pytest.mark.parametrize("name", ["Pendulim-v1", "Nothing-v0", "no_such_module:Nothing-v0"])
def test_an_unknown_environment_is_named(name: str) -> None:
    with pytest.raises(ImelError, match=f"cannot make environment '{name}'") as refusal:
        IMeL("RidgePolicy", name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"trust_regoin": 0.1}, "trust_region"),
        ({"policy": "MkiPolicy", "kl_buget": 1.0}, "kl_budget"),
        ({"policy": "NpPolicy", "learning_rates": 1e-3}, "learning_rate"),
        ({"memory": 64}, "memory_size"),
        ({"policy": "MkiPolcy"}, "MkiPolicy"),
        ({"policy_kwargs": {"feature": 3}}, "features"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    arguments: dict[str, Any], meant: str
) -> None:
    with pytest.raises(SettingsError, match=f"did you mean '{meant}'"):
        small_model(**arguments)


WRONG: dict[str, tuple[Any, ...]] = {
    "rollout_size": ("64", 64.0, True, 1),
    "batch_size": (0,),
    "memory_size": (None,),
    "trust_region": (0, "0.1:-0.1"),
    "std_rate": (-0.5,),
    "n_envs": (0,),
    "gamma": (True, "0.9", 1.01, -0.1, float("nan")),
    "gae_lambda": (2,),
    "prior_std": (float("inf"),),
    "critic_learning_rate": (-1e-3,),
    "learning_rate": (-1e-3, 0, True, None),
    "kl_budget": (float("nan"), "1:inf", "1:-1"),
    "std": ("wide:narrow", "1:2:3"),
    "std_mode": ("constnt", "model"),
    "clip_means": (1, "yes"),
    "critic_hidden": (64, (), (0,), (3.5,), "64"),
    "features": ("8", 0),
    "hidden": (64, ()),
    "kernel_scale": ("wide",),
    "penalty": ("much",),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_setting_of_the_wrong_kind_is_named(name: str, value: Any) -> None:
    ridge = name in {field.name for field in fields(RidgePolicy.Settings)} - {"std"}
    with pytest.raises(SettingsError, match=name) as refusal:
        small_model("RidgePolicy" if ridge else "MkiPolicy", **{name: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"policy": "NearestPolicy", "std_mode": "model"}, "std_mode"),
        ({"policy": "NpPolicy", "deterministic": "median"}, "deterministic"),
        ({"policy": "NearestPolicy", "policy_kwargs": {"neighbours": 0}}, "neighbours"),
        ({"policy": MlpPolicy}, "ActorCriticPolicy"),
        ({"zzz": 1}, r"valid names: advantage_clip, .*trust_region"),
        ({"memory_size": BATCH - 1}, "memory_size=63 is smaller than one rollout"),
    ],
)
def test_a_model_that_cannot_be_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        small_model(**arguments)


def test_a_new_model_needs_an_environment() -> None:
    with pytest.raises(ImelError, match="environment is needed"):
        IMeL("RidgePolicy", None)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 2, 2)])
def test_observations_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = small_model()
    with pytest.raises(ValueError, match="shape"):
        model.predict(np.zeros(shape, np.float32))
    with pytest.raises(ImelError, match="observations of shape"):
        model.explain(np.zeros(shape, np.float32))


@pytest.mark.parametrize("steps", [0, -5])
def test_no_steps_change_nothing(steps: int) -> None:
    model = small_model().learn(BATCH)
    before = tensors_of(model)

    model.learn(steps, reset_num_timesteps=False)

    assert model.num_timesteps == BATCH
    assert differing(before, tensors_of(model)) == []


def assert_whole(model: IMeL, folder: Path) -> None:
    """The model is finite, predicts, and can be saved and loaded."""
    assert all(t.isfinite().all() for t in tensors_of(model).values() if t.is_floating_point())
    assert np.isfinite(answers(model)).all()
    model.save(folder / "model")
    np.testing.assert_array_equal(answers(IMeL.load(folder / "model")), answers(model))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("place", "life_step", "where"),
    [
        ("reward", 42, "reward .* at step 2 of episode"),
        ("observation", 42, "observation .* at step 2 of episode"),
        ("observation", 44, "observation .* at step 4 of episode"),  # the episode's last
    ],
)
def test_what_is_not_finite_ends_learning_at_the_last_whole_iteration(
    place: Literal["reward", "observation"],
    value: float,
    life_step: int,
    where: str,
    tmp_path: Path,
) -> None:
    bad = ScriptedEnv(5, bad_step=life_step, bad_value=value, bad_place=place)
    model = small_model(env=DummyVecEnv([ScriptedEnv, lambda: bad]))
    model.learn(BATCH)  # 32 steps in each environment
    before, generator = tensors_of(model), model.policy.generator.get_state()

    with pytest.raises(NonFiniteError, match=f"environment 1 .*{where}") as refusal:
        model.learn(BATCH, reset_num_timesteps=False)

    assert "\n" not in str(refusal.value)
    assert differing(before, tensors_of(model)) == []
    assert torch.equal(generator, model.policy.generator.get_state())
    assert_whole(model, tmp_path)


def test_learning_goes_on_after_such_an_error_with_true_transitions() -> None:
    model = small_model(env=ScriptedEnv(episode_length=7, bad_step=BATCH + 20))
    with pytest.raises(NonFiniteError):
        model.learn(2 * BATCH)

    model.learn(BATCH, reset_num_timesteps=False)

    memory = model.policy.memory
    states, successors = memory.column("states"), memory.column("next_states")
    assert torch.equal(successors - states, torch.tensor([[0.0, 1.0]]).expand(len(memory), 2))
    assert torch.equal(memory.column("steps"), states[:, 1].long())


class BadStart(ScriptedEnv):
    """Its first observation of all is not finite."""

    def reset(self, **arguments: Any) -> tuple[FloatArray, dict[str, Any]]:
        observation, info = super().reset(**arguments)
        return (observation if self._episode else observation * np.nan), info


def too_large() -> gym.Env[Any, Any]:
    """Its observations are finite, but not in single precision."""
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    return TransformObservation(
        ScriptedEnv(), lambda o: (o + 1.0).astype(np.float64) * 1e300, space
    )


@pytest.mark.parametrize("make", [BadStart, too_large])
def test_no_observation_that_is_not_finite_is_remembered(
    make: Callable[[], gym.Env[Any, Any]], tmp_path: Path
) -> None:
    model = small_model(env=DummyVecEnv([make, make]))

    with pytest.raises(NonFiniteError, match="observation"):
        model.learn(BATCH)

    assert_whole(model, tmp_path)
