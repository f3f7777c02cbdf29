"""Every space of Stable-Baselines3: learned on, explained exactly, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage

from imel import IMeL
from imel.bench.space_tasks import Catch, Levers, Sensors
from imel.checkpoints.run_checkpoints import RunCheckpoints
from imel.errors import ImelError, SettingsError
from imel.policies import RidgePolicy
from imel.policies.names import names_for
from imel.runs.evaluation import evaluate
from small import differing, tensors_of

SMALL: dict[str, Any] = {"n_envs": 4, "rollout_size": 128, "memory_size": 256, "seed": 3}
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)


def trained_on(env: Any, **settings: Any) -> tuple[IMeL, Any]:
    """A trained model, and observations of its environments."""
    model = IMeL("RidgePolicy", env, **{**SMALL, **settings}).learn(384)
    assert model.env is not None
    return model, model.env.reset()


def one(observations: Any) -> Any:
    """The first of several observations."""
    if isinstance(observations, dict):
        return {key: value[0] for key, value in observations.items()}
    return observations[0]


@pytest.mark.parametrize("env", ["CartPole-v1", "Levers-v0", "Sensors-v0", "Catch-v0"])
def test_lessons_sum_to_the_logits(env: str) -> None:
    model, observations = trained_on(env)
    why, policy = model.explain(one(observations)), model.policy
    states = torch.from_numpy(policy.observe(observations))
    np.testing.assert_allclose(why.mean, policy.act(states)[0][0].numpy(), atol=1e-5)
    np.testing.assert_allclose(why.lessons.contributions.sum(axis=0), why.mean, atol=1e-4)
    # Of every choice logits sum to zero: a common part would mean nothing
    for part in np.split(why.mean, np.cumsum(policy.distribution.sizes)[:-1]):
        assert part.sum() == pytest.approx(0.0, abs=1e-4)


def stacked() -> VecTransposeImage:
    return VecTransposeImage(VecFrameStack(DummyVecEnv([Catch, Catch]), 2))


@pytest.mark.parametrize("env", ["CartPole-v1", "Sensors-v0", stacked])
def test_resumed_run_ends_bit_for_bit_alike(env: Any, tmp_path: Path) -> None:
    made = env if isinstance(env, str) else env()
    whole = IMeL("RidgePolicy", made, **{**SMALL, "rollout_size": 64})
    whole.learn(384, callback=RunCheckpoints(tmp_path / "whole", every=2, keep=5))
    first = sorted((tmp_path / "whole").glob("*.safetensors"))[0]
    resumed = IMeL.resume(first, env if isinstance(env, str) else env())
    assert 0 < resumed.num_timesteps < 384
    again = RunCheckpoints(tmp_path / "again", every=2, keep=5)
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False, callback=again)
    assert not differing(tensors_of(whole), tensors_of(resumed))


def test_stacked_frames_are_learned_on_by_a_frozen_extractor_and_saved(tmp_path: Path) -> None:
    model, observations = trained_on(stacked(), rollout_size=64)
    assert model.observation_space.shape == (2, 84, 84)
    assert model.policy.memory.states.shape == (256, 512)
    assert np.isfinite(model.policy.memory.column("states").numpy()).all()
    why = model.explain(one(observations))
    np.testing.assert_allclose(why.lessons.contributions.sum(axis=0), why.mean, atol=1e-4)
    model.save(tmp_path / "model")
    again = IMeL.load(tmp_path / "model", env=stacked())
    for deterministic in (True, False):
        acted, alike = (
            each.predict(observations, None, None, deterministic)[0] for each in (model, again)
        )
        np.testing.assert_array_equal(acted, alike)
    states = model.policy.observe(observations)
    np.testing.assert_array_equal(states, again.policy.observe(observations))
    assert not any(parameter.requires_grad for parameter in again.policy.parameters())
    with pytest.raises(ImelError, match="cannot observe"):
        model.explain(np.zeros((3, 3)))


def test_explanation_of_cart_pole_names_what_is_done() -> None:
    model, observations = trained_on("CartPole-v1")
    why = model.explain(one(observations))
    text, chosen = str(why), int(np.argmax(why.mean))
    assert all(words in text for words in ("push left", "push right", "adds to the logits"))
    assert text.startswith(why.names.action[chosen])
    np.testing.assert_allclose(why.projection, why.lessons.contributions[:, chosen])


def test_environment_gets_actions_of_its_space() -> None:
    class Checked(Levers):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action), action
            return super().step(action)

    model = IMeL("RidgePolicy", DummyVecEnv([Checked]), rollout_size=32, seed=0).learn(64)
    action, _ = model.predict(np.array([1, 2]), deterministic=True)
    assert model.action_space.contains(action)


def test_demonstrated_choices_are_imitated() -> None:
    lamps = np.stack(np.meshgrid([0, 1], [0, 1, 2]), axis=-1).reshape(-1, 2)
    shown = np.tile(lamps, (8, 1))
    episode = {"observations": np.concatenate([shown, shown[:1]]), "actions": shown}
    model = IMeL("RidgePolicy", Levers(), rollout_size=32, seed=0).warm_start([episode] * 2)
    np.testing.assert_array_equal(model.predict(lamps, deterministic=True)[0], lamps)


def test_small_image_is_flattened_and_scaled() -> None:
    policy = RidgePolicy(spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Discrete(2))
    image = np.full((1, 1, 8, 8), 255, np.uint8)
    np.testing.assert_array_equal(policy.observe(image), np.ones((1, 64), np.float32))


@pytest.mark.parametrize("workers", [False, True])
def test_dict_observations_come_from_processes_too(workers: bool) -> None:
    env = "imel.bench.space_tasks:Sensors-v0"  # which a process of its own has to import
    made = IMeL("RidgePolicy", env, workers=workers, **{**SMALL, "n_envs": 2})
    assert made.env is not None
    states = made.policy.observe(made.env.reset())
    assert states.shape == (2, made.policy.state_dim)
    made.env.close()


@pytest.mark.parametrize("env", ["Levers-v0", "Sensors-v0"], ids=["MultiDiscrete", "Dict"])
def test_discrete_tasks_are_learned(env: str) -> None:
    model = IMeL("RidgePolicy", env, rollout_size=256, memory_size=1024, seed=5).learn(3072)
    assert float(np.mean(evaluate(model.policy, env, 30).returns)) > 9.0


@pytest.mark.slow
def test_pixels_are_learned() -> None:
    env = DummyVecEnv([lambda: Monitor(Catch(cells=6, size=36))] * 8)
    model = IMeL("RidgePolicy", env, rollout_size=512, memory_size=4096, seed=5)
    before = float(np.mean(evaluate_policy(model.policy, env, 60, deterministic=False)[0]))
    model.learn(12_288)
    after = float(np.mean(evaluate_policy(model.policy, env, 60)[0]))
    print(f"return {before:.2f} before, {after:.2f} after")
    assert before < 0.0
    assert after > 0.5


def test_discrete_actions_have_an_entropy_that_is_logged_and_no_sigma() -> None:
    with pytest.raises(SettingsError, match=r"Discrete\(2\) has no sigma and does not use 'std'"):
        IMeL("RidgePolicy", "CartPole-v1", std=1.0)
    model = IMeL("RidgePolicy", gym.make("CartPole-v1"), rollout_size=64, seed=0)
    model.learn(64, log_interval=0)
    logged = model.logger.name_to_value
    assert 0.9 < logged["rollout/entropy"] <= 1.0
    assert "rollout/std" not in logged
    assert torch.equal(model.policy.std, torch.ones(2))


def test_numbers_of_a_state_are_named_by_the_observation_space() -> None:
    policy = RidgePolicy(Sensors().observation_space, Sensors.action_space)
    (state,) = policy.observe({"height": [[0.5]], "lamp": [1], "noise": [[1, 0]]}).tolist()
    named = dict(zip(names_for(None, policy.dimensions).state, state, strict=True))
    expected = {"height": 0.5, "lamp = 0": 0.0, "lamp = 1": 1.0, "noise 0": 1.0, "noise 1": 0.0}
    assert named == expected


@pytest.mark.parametrize(
    ("space", "first", "last"),
    [
        (spaces.Discrete(3, start=-1), "state = -1", "state = 1"),
        (spaces.MultiDiscrete([2, 3]), "state 0 = 0", "state 1 = 2"),
        (IMAGE, "state feature 0", "state feature 511"),
        (spaces.Box(-1, 1, (2, 3)), "state 0", "state 5"),
        (spaces.Box(-1, 1, (3,)), "state 0", "state 2"),
        (spaces.Dict(eye=IMAGE), "eye feature 0", "eye feature 255"),
    ],
)
def test_every_number_of_a_state_has_a_name(
    space: spaces.Space[Any], first: str, last: str
) -> None:
    policy = RidgePolicy(space, spaces.Discrete(2))
    names = names_for(None, policy.dimensions).state
    assert len(names) == policy.state_dim
    assert (names[0], names[-1]) == (first, last)
