"""A checkpoint holds everything, exactly, and a failed write costs nothing."""

from __future__ import annotations

import gc
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from imel import IMeL, MkiPolicy, NpPolicy, RidgePolicy
from imel.checkpoints import checkpoint
from imel.errors import CheckpointError, ImelError, SettingsError
from imel.policies import Policy
from imel.registry import name_of
from small import (
    BATCH,
    POLICIES,
    STATES,
    answers,
    differing,
    points,
    read_checkpoint,
    small_model,
    tensors_of,
)
from toy import ScriptedEnv

every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))


def fail(*_: Any, **__: Any) -> NoReturn:
    raise OSError("no space left on device")


@every_policy
def test_a_loaded_model_has_the_same_tensors_and_learns_alike(policy: str, tmp_path: Path) -> None:
    model = small_model(policy).learn(3 * BATCH)
    model.predict(STATES)  # moves the policy's generator
    model.save(tmp_path / "model")
    loaded = IMeL.load(tmp_path / "model")

    assert differing(tensors_of(model), tensors_of(loaded)) == []
    assert torch.equal(model.learner.generator.get_state(), loaded.learner.generator.get_state())
    assert torch.equal(model.policy.generator.get_state(), loaded.policy.generator.get_state())
    learned = policy not in ("NearestPolicy", "RidgePolicy")
    optimizers = model.learner.optimizers
    assert optimizers.keys() == loaded.learner.optimizers.keys()
    assert ("interpolator_optimizer" in optimizers) == learned
    for name, optimizer in optimizers.items():
        before = optimizer.state_dict()["state"]
        after = loaded.learner.optimizers[name].state_dict()["state"]
        assert before
        assert before.keys() == after.keys()
        for number, moments in before.items():
            assert set(moments) == {"step", "exp_avg", "exp_avg_sq"}
            assert differing(moments, after[number]) == []

    for one in (model, loaded):  # and learn on alike
        one.set_env(points())
        assert one.env is not None
        one.env.seed(9)
        one.learn(2 * BATCH, reset_num_timesteps=False)
    assert differing(tensors_of(model), tensors_of(loaded)) == []
    assert torch.equal(model.learner.generator.get_state(), loaded.learner.generator.get_state())


@pytest.mark.parametrize(
    ("policy", "options", "schedule"),
    [
        ("RidgePolicy", {"features": 3, "penalty": 0.5}, {"trust_region": 0.1}),
        ("MkiPolicy", {"features": 3, "hidden": (5,)}, {"kl_budget": "2:1"}),
    ],
)
def test_a_loaded_model_holds_the_same_settings_spaces_and_counters(
    policy: str, options: dict[str, Any], schedule: dict[str, Any], tmp_path: Path
) -> None:
    env = ScriptedEnv(bounds=(-3.0, 1.0))
    model = small_model(
        policy, env, policy_kwargs=options, **schedule, critic_hidden=(7,), stats_window_size=7
    )
    model.learn(2 * BATCH).learn(BATCH, reset_num_timesteps=False)
    model.save(tmp_path / "model")

    _, manifest = read_checkpoint(tmp_path / "model")
    assert manifest["schema"] == checkpoint.SCHEMA
    assert manifest["versions"]["torch"] == importlib.metadata.version("torch")
    assert manifest["policy"] == name_of(POLICIES[policy])
    loaded = IMeL.load(tmp_path / "model")

    assert loaded.settings == model.settings
    assert loaded.policy_class is POLICIES[policy]
    assert loaded.policy.settings == model.settings
    assert loaded.observation_space == model.observation_space
    assert loaded.action_space == model.action_space
    for name in (
        *("seed", "n_envs", "n_steps", "num_timesteps", "iteration", "_n_updates"),
        *("_total_timesteps", "_current_progress_remaining", "_stats_window_size"),
    ):
        assert getattr(loaded, name) == getattr(model, name), name
    assert loaded.learner.clock.next_episode == model.learner.clock.next_episode
    assert loaded.ep_info_buffer is not None
    assert model.ep_info_buffer is not None
    assert len(loaded.ep_info_buffer) == 7
    assert list(loaded.ep_info_buffer) == list(model.ep_info_buffer)
    assert loaded.ep_info_buffer.maxlen == model.ep_info_buffer.maxlen


def test_a_checkpoint_of_more_lessons_than_a_new_policy_has_rows_for(tmp_path: Path) -> None:
    model = small_model().learn(17 * BATCH)  # four episodes a rollout
    assert isinstance(model.policy, RidgePolicy)
    assert (
        model.policy.lessons.episodes.numel()
        > small_model().policy.state_dict()["lessons.episodes"].numel()
    )
    model.save(tmp_path / "model")
    model.policy.save(str(tmp_path / "policy"))

    from_file, from_parameters = small_model(), small_model()
    from_file.set_parameters(str(tmp_path / "model"))
    from_parameters.set_parameters(model.get_parameters())

    for loaded in (IMeL.load(tmp_path / "model"), from_file, from_parameters):
        assert differing(tensors_of(model), tensors_of(loaded)) == []
    policy = RidgePolicy.load(str(tmp_path / "policy"))
    assert differing(model.policy.state_dict(), policy.state_dict()) == []


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("model", "model.safetensors"),
        ("model.zip", "model.safetensors"),
        ("model.safetensors", "model.safetensors"),
        ("model.v1.2", "model.v1.2.safetensors"),
        ("new/folder/model", "new/folder/model.safetensors"),
    ],
)
def test_names_get_our_suffix(given: str, written: str, tmp_path: Path) -> None:
    model = small_model().learn(BATCH)
    foreign = tmp_path / "model.zip"
    foreign.write_bytes(b"another library's archive")
    model.save(str(tmp_path / given))

    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {foreign, tmp_path / written}
    for name in (given, written):
        np.testing.assert_array_equal(answers(IMeL.load(str(tmp_path / name))), answers(model))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_previous_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    model.save(tmp_path / "model")
    before = (tmp_path / "model.safetensors").read_bytes()
    model.learn(BATCH)

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space left"):
            model.save(tmp_path / "model")

    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before
    model.save(tmp_path / "model")
    assert (tmp_path / "model.safetensors").read_bytes() != before


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_as_readable_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def watched(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: Any) -> None:
            order.append(name)
            function(*arguments)

        return called

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    small_model().save(tmp_path / "model")
    assert order == ["fsync", "replace", "fsync"]
    (tmp_path / "plain").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_a_function_as_schedule_is_refused_at_save_and_nothing_is_written(tmp_path: Path) -> None:
    model = small_model("MkiPolicy", kl_budget=lambda progress: 1.0 + progress).learn(BATCH)

    with pytest.raises(SettingsError, match="kl_budget is a function") as refusal:
        model.save(tmp_path / "model")

    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@every_policy
def test_a_policy_is_saved_and_loaded_alone(policy: str, tmp_path: Path) -> None:
    model = small_model(policy).learn(2 * BATCH)
    model.policy.save(str(tmp_path / "policy.zip"))
    assert (tmp_path / "policy.safetensors").is_file()

    for cls in (POLICIES[policy], Policy):
        loaded = cls.load(str(tmp_path / "policy.zip"))
        assert type(loaded) is POLICIES[policy]
        assert differing(model.policy.state_dict(), loaded.state_dict()) == []
        np.testing.assert_array_equal(answers(model), answers(loaded))


def test_a_policy_is_loaded_from_a_whole_model(tmp_path: Path) -> None:
    model = small_model("NpPolicy", std_mode="model", min_std=0.3).learn(BATCH)
    model.save(tmp_path / "model")

    loaded = Policy.load(str(tmp_path / "model"))

    assert differing(model.policy.state_dict(), loaded.state_dict()) == []
    with pytest.raises(CheckpointError, match="NpPolicy, not a MkiPolicy"):
        MkiPolicy.load(str(tmp_path / "model"))
    assert isinstance(NpPolicy.load(str(tmp_path / "model")), NpPolicy)


def test_settings_given_at_load_replace_the_saved_ones(tmp_path: Path) -> None:
    small_model(gamma=0.9).save(tmp_path / "model")

    assert IMeL.load(tmp_path / "model").settings.gamma == 0.9
    loaded = IMeL.load(tmp_path / "model", gamma=0.8)
    assert (loaded.settings.gamma, loaded.gamma) == (0.8, 0.8)
    with pytest.raises(CheckpointError, match="does not fit"):
        IMeL.load(tmp_path / "model", memory_size=4 * BATCH)


def test_a_policy_of_ones_own_is_named_at_load(tmp_path: Path) -> None:
    class OwnPolicy(MkiPolicy):
        """Not one of the six."""

    model = small_model(OwnPolicy).learn(BATCH)
    model.save(tmp_path / "model")
    with pytest.raises(ImelError, match="OwnPolicy"):
        IMeL.load(tmp_path / "model")

    loaded = IMeL.load(tmp_path / "model", policy_class=OwnPolicy)

    assert type(loaded.policy) is OwnPolicy
    np.testing.assert_array_equal(answers(loaded), answers(model))


def test_files_of_many_sizes_leave_nothing_behind_in_memory(tmp_path: Path) -> None:
    def kept() -> int:
        return sum(issubclass(type(each), type) for each in gc.get_objects())

    document = {"kind": "model", "policy": "P", "settings": {}}
    checkpoint.write(tmp_path / "file", {"x": torch.zeros(1)}, document)
    before = kept()
    for size in range(20, 40):  # as the actions of a running episode, of which there are ever more
        checkpoint.write(tmp_path / "file", {"x": torch.zeros(size)}, document)
    assert kept() == before
