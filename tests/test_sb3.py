"""IMeL behaves as users of Stable-Baselines3 expect of an algorithm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from imel import IMeL
from imel.errors import ImelError, SettingsError
from small import (
    BATCH,
    POLICIES,
    STATES,
    LogBook,
    answers,
    differing,
    points,
    small_model,
    tensors_of,
)
from toy import PointEnv, ScriptedEnv

ALWAYS_LOGGED = {
    "improve/policy_kl",
    "memory/size",
    "rollout/clipped_actions",
    "rollout/ep_len_mean",
    "rollout/ep_rew_mean",
    "rollout/std",
    "time/fps",
    "time/iterations",
    "time/time_elapsed",
    "time/total_timesteps",
    "train/explained_variance",
    "train/n_updates",
    "train/value_loss",
}
LOGGED_BY_RIDGE = {
    "improve/gain",
    "improve/peak_kl",
    "improve/step_scale",
    "memory/effective_sample_size",
    "memory/lessons",
}
LOGGED_BY_THE_PAPERS = {
    "improve/kl_budget",
    "improve/step_size",
    "improve/target_kl",
    "memory/age",
    "memory/episodes",
    "train/old_mean_error",
}
every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))


@every_policy
def test_learning_leaves_a_model_that_evaluate_policy_takes(policy: str) -> None:
    model = small_model(policy).learn(3 * BATCH)

    returns, lengths = evaluate_policy(
        model, points(1, seed=1), n_eval_episodes=3, return_episode_rewards=True
    )
    again, _ = evaluate_policy(
        model, points(1, seed=1), n_eval_episodes=3, return_episode_rewards=True
    )

    assert lengths == [16, 16, 16]
    assert np.isfinite(returns).all()
    assert returns == again


@every_policy
def test_same_seed_gives_the_same_model_and_another_seed_another(policy: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        model = small_model(policy, seed=seed)
        book = LogBook.of(model)
        model.learn(3 * BATCH)
        runs.append((tensors_of(model), [page["rollout/ep_rew_mean"] for page in book.pages]))

    assert differing(runs[0][0], runs[1][0]) == []
    assert runs[0][1] == runs[1][1]
    assert "policy.memory.states" in differing(runs[0][0], runs[2][0])
    assert runs[0][1] != runs[2][1]


@every_policy
def test_a_loaded_model_acts_as_the_saved_one(policy: str, tmp_path: Path) -> None:
    model = small_model(policy).learn(2 * BATCH)
    model.predict(STATES)  # the loaded model must go on drawing from here
    model.save(tmp_path / "model")

    loaded = IMeL.load(tmp_path / "model")

    np.testing.assert_array_equal(answers(model), answers(loaded))
    for _ in range(3):
        np.testing.assert_array_equal(model.predict(STATES)[0], loaded.predict(STATES)[0])
    assert not np.array_equal(model.predict(STATES)[0], answers(model))


def test_steps_are_counted_in_whole_batches() -> None:
    model = small_model().learn(BATCH + 1)
    assert (model.num_timesteps, model.iteration) == (2 * BATCH, 2)

    model.learn(BATCH, reset_num_timesteps=False)
    assert (model.num_timesteps, model.iteration) == (3 * BATCH, 3)

    model.learn(BATCH)
    assert model.num_timesteps == BATCH


def test_learning_continues_after_load(tmp_path: Path) -> None:
    model = small_model().learn(2 * BATCH)
    model.save(tmp_path / "model")

    loaded = IMeL.load(tmp_path / "model", env=points())
    assert loaded.num_timesteps == 2 * BATCH
    episodes = int(loaded.policy.memory.column("episodes").max())
    loaded.learn(BATCH, reset_num_timesteps=False)

    assert (loaded.num_timesteps, loaded.iteration) == (3 * BATCH, 3)
    newest = loaded.policy.memory.column("iterations") == 2
    assert int(newest.sum()) == BATCH
    assert int(loaded.policy.memory.column("episodes")[newest].min()) > episodes
    assert not np.array_equal(answers(model), answers(loaded))


def test_two_continuations_of_one_file_are_the_same(tmp_path: Path) -> None:
    small_model().learn(BATCH).save(tmp_path / "model")

    left, right = (
        IMeL.load(tmp_path / "model", env=env).learn(BATCH, reset_num_timesteps=False)
        for env in (DummyVecEnv([PointEnv] * 4), DummyVecEnv([PointEnv] * 4))
    )

    assert differing(tensors_of(left), tensors_of(right)) == []


def test_a_model_can_be_loaded_onto_another_number_of_environments(tmp_path: Path) -> None:
    small_model().learn(BATCH).save(tmp_path / "model")

    loaded = IMeL.load(tmp_path / "model", env=points(2)).learn(BATCH, reset_num_timesteps=False)

    assert (loaded.n_envs, loaded.n_steps) == (2, BATCH // 2)
    assert loaded.num_timesteps == 2 * BATCH


def test_parameters_taken_and_set_bring_a_model_back() -> None:
    model = small_model().learn(2 * BATCH)
    parameters, before = copy.deepcopy(model.get_parameters()), answers(model)
    moments = copy.deepcopy(model.optimizers.critic_optimizer.state_dict()["state"])

    model.learn(BATCH, reset_num_timesteps=False)
    assert not np.array_equal(before, answers(model))
    model.set_parameters(parameters)

    np.testing.assert_array_equal(before, answers(model))
    restored = model.optimizers.critic_optimizer.state_dict()["state"]
    assert moments
    assert all(torch.equal(moments[i]["exp_avg"], restored[i]["exp_avg"]) for i in moments)


@every_policy
def test_only_the_documented_keys_are_logged(policy: str) -> None:
    model = small_model(policy)
    book = LogBook.of(model)
    model.learn(2 * BATCH)

    expected = set(ALWAYS_LOGGED)
    expected |= LOGGED_BY_RIDGE if policy == "RidgePolicy" else LOGGED_BY_THE_PAPERS
    if policy in ("MkiPolicy", "AnpPolicy", "NearestPolicy"):
        expected.add("memory/effective_neighbours")
    if policy not in ("RidgePolicy", "NearestPolicy"):
        expected |= {"train/learning_rate", "train/loss", "train/loo_error"}
    assert [set(page) for page in book.pages] == [expected, expected]
    assert book.pages[-1]["time/total_timesteps"] == 2 * BATCH
    assert book.pages[-1]["rollout/ep_len_mean"] == 16
    assert book.pages[-1]["memory/size"] == 2 * BATCH
    episodes = "memory/lessons" if policy == "RidgePolicy" else "memory/episodes"
    assert book.pages[-1][episodes] == 8


def test_tensorboard_receives_the_log(tmp_path: Path) -> None:
    small_model(tensorboard_log=str(tmp_path)).learn(BATCH, tb_log_name="toy")

    (events,) = (tmp_path / "toy_1").glob("events.out.tfevents.*")
    assert b"rollout/ep_rew_mean" in events.read_bytes()


def test_mlp_policy_is_refused_with_the_names_of_ours() -> None:
    with pytest.raises(SettingsError, match="MkiPolicy") as refusal:
        IMeL("MlpPolicy", "Pendulum-v1")
    assert "\n" not in str(refusal.value)


def test_environments_in_processes_give_the_same_model_as_in_this_one() -> None:
    makers: list[Callable[[], gym.Env[Any, Any]]] = [lambda: Monitor(PointEnv())] * 2
    processes = SubprocVecEnv(makers, start_method="fork")
    try:
        elsewhere = tensors_of(small_model(env=processes).learn(2 * BATCH))
    finally:
        processes.close()

    here = tensors_of(small_model(env=DummyVecEnv(makers)).learn(2 * BATCH))

    assert differing(here, elsewhere) == []


def test_a_single_plain_environment_is_wrapped_and_monitored() -> None:
    model = small_model(env=PointEnv())
    book = LogBook.of(model)
    model.learn(BATCH)

    assert (model.n_envs, model.n_steps) == (1, BATCH)
    assert torch.unique(model.policy.memory.column("episodes")).numel() == 4
    assert book.pages[0]["rollout/ep_len_mean"] == 16


def test_vec_normalize_outside_decides_what_is_remembered() -> None:
    inner = DummyVecEnv([lambda: ScriptedEnv(episode_length=32)] * 2)
    env = VecNormalize(inner, clip_obs=1.5, clip_reward=0.25)

    model = small_model(env=env).learn(BATCH)

    assert model.get_vec_normalize_env() is env
    assert float(model.policy.memory.column("states").abs().max()) == 1.5
    assert float(model.policy.memory.column("rewards").max()) == 0.25


def test_vec_monitor_outside_reports_episodes() -> None:
    model = small_model(env=VecMonitor(DummyVecEnv([lambda: ScriptedEnv(episode_length=4)] * 2)))
    book = LogBook.of(model)
    model.learn(BATCH)

    assert book.pages[0]["rollout/ep_rew_mean"] == 1 + 2 + 3 + 4


def test_set_env_moves_learning_to_an_environment_with_the_same_spaces() -> None:
    first, second = ScriptedEnv(), ScriptedEnv()
    model = small_model(env=first).learn(BATCH)

    model.set_env(second)
    model.learn(BATCH, reset_num_timesteps=False)

    assert (len(first.received), len(second.received)) == (BATCH, BATCH)


def test_set_env_refuses_other_spaces_and_keeps_the_old_environment() -> None:
    model = small_model()
    before = model.env

    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(DummyVecEnv([ScriptedEnv] * 4))

    assert model.env is before


def test_learning_without_an_environment_is_refused_in_one_line(tmp_path: Path) -> None:
    small_model().save(tmp_path / "model")

    with pytest.raises(ImelError, match="environment") as refusal:
        IMeL.load(tmp_path / "model").learn(BATCH)
    assert "\n" not in str(refusal.value)


@every_policy
def test_a_copied_policy_acts_the_same_and_lives_its_own_life(policy: str) -> None:
    model = small_model(policy).learn(BATCH)
    before = answers(model)
    twin = copy.deepcopy(model.policy)
    np.testing.assert_array_equal(before, answers(twin))

    model.learn(BATCH, reset_num_timesteps=False)

    assert not np.array_equal(before, answers(model))
    np.testing.assert_array_equal(before, answers(twin))


def test_moving_a_policy_to_a_device_keeps_its_answers() -> None:
    model = small_model().learn(BATCH)
    before = answers(model)

    model.policy.to("cpu")

    assert model.policy.device == torch.device("cpu")
    np.testing.assert_array_equal(before, answers(model))
