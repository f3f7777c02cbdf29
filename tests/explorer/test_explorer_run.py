"""Which models of a run are shown, a user's own policy, pictures of states, and packed arrays."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.explorer import unpack
from explorer.conftest import Page, opened
from explorer.drawn import DrawnEnv
from imel.environments.playing import make_environment
from imel.errors import ImelError
from imel.explorer.server import pack
from imel.pictures.rendering import (
    UnclearStateError,
    picture,
    pixels_of,
    pose,
    prepare_drawing,
)
from imel.policies import Policy
from imel.runs.stored import find_run


def test_a_run_lists_its_checkpoints_in_order_with_the_final_model_last(page: Page) -> None:
    document = page.get("run")
    iterations = [model["iteration"] for model in document["models"]]
    assert iterations == [3, 6, 9, 12]
    assert [model["timesteps"] for model in document["models"]] == [192 * k for k in iterations]
    assert document["env"] == "explorer.drawn:Drawn-v0"
    assert document["newest"] == page.get("model", model=page.newest)


def test_the_learning_curve_comes_with_the_run(page: Page, run: Path) -> None:
    curve = page.get("run")["curve"]
    rows = (run / "monitor.csv").read_text().splitlines()[2:]
    assert len(curve["returns"]) == len(rows)
    assert curve["returns"][0] == pytest.approx(float(rows[0].split(",")[0]))
    assert len(curve["mean"]) == len(curve["places"])
    assert curve["evaluation"]["steps"] == 2304


def test_a_damaged_checkpoint_is_named_and_the_others_still_open(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    first = sorted((copy / "checkpoints").iterdir())[0]
    first.write_bytes(first.read_bytes()[:1000])
    for page in opened(copy):
        models = page.get("run")["models"]
        assert first.name in models[0]["problem"]
        assert models[1]["problem"] is None
        assert first.name in page.refusal("model", model="m0")
        assert page.get("model", model="m1")["rows"] == 384


def test_a_run_that_was_killed_is_shown_from_its_checkpoints(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    assert [model.iteration for model in find_run(copy).models] == [3, 6, 9]


def test_a_model_file_alone_has_no_curve_and_needs_an_environment_to_play(
    run: Path, tmp_path: Path
) -> None:
    alone = Path(shutil.copy(run / "model.safetensors", tmp_path / "alone.safetensors"))
    for page in opened(alone):
        assert page.get("run")["curve"] is None
        assert "--env" in page.refusal("episode", episode="m0-mean-0")
    for page in opened(alone, "explorer.drawn:Drawn-v0"):
        page.played("m0")


def test_a_model_for_another_environment_is_refused(run: Path) -> None:
    for page in opened(run, "Pendulum-v1"):
        assert "not made for Pendulum-v1" in page.refusal("episode", episode="m0-mean-0")
        assert "not made for Pendulum-v1" in page.refusal("evaluation", model="m0", episodes=1)


class MeanOfAll(Policy):
    """A user's own policy: it does everywhere what its memories were to do on average."""

    def make_update(self, learner: Any) -> Any:
        raise NotImplementedError

    def _act(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.memory.column("improved_means").mean(dim=0)
        return mean.expand(len(states), -1), self.std.expand(len(states), -1)


def test_a_policy_of_a_users_own_is_explored_by_its_memories(tmp_path: Path) -> None:
    env, generator = DrawnEnv(), np.random.default_rng(0)
    policy = MeanOfAll(env.observation_space, env.action_space, memory_size=32)
    rows = {
        name: torch.zeros(32, *policy.memory.get_buffer(name).shape[1:])
        for name in policy.memory.column_names
        if name != "iterations"
    }
    for name in ("states", "improved_means", "rewards"):
        rows[name] = torch.from_numpy(generator.normal(size=rows[name].shape)).float()
    rows["episodes"] = torch.arange(32) // 8
    rows["steps"] = torch.arange(32) % 8
    policy.memory.add(rows, 0)
    policy.save(str(tmp_path / "own.safetensors"))
    for page in opened(tmp_path / "own.safetensors", "explorer.drawn:Drawn-v0"):
        described, where = page.get("model", model="m0"), {"model": "m0", "frame": "m0"}
        assert (described["policy"], described["weighted"]) == ("MeanOfAll", False)
        for projection in ("states", "dimensions-0-1"):
            page.arrays("map", **where, projection=projection)
        assert "no learned features" in page.refusal("map", **where, projection="features")
        page.arrays("colour", **where, by="return")
        episode = page.played("m0")
        before, arrays = page.step(episode, 3, "m0")
        assert not before["memories"]
        assert not arrays
        np.testing.assert_allclose(before["mean"], rows["improved_means"].mean(dim=0), rtol=1e-5)
        page.arrays("episode", episode="m0-remembered-2")
        after, _ = page.step(episode, 3, page.forget(range(16))["model"])
        expected = rows["improved_means"][16:].mean(dim=0)
        np.testing.assert_allclose(after["mean"], expected, rtol=1e-5)
        assert len(page.evaluated("m0", 2)) == 2


# --- pictures of remembered states ---


@pytest.mark.parametrize(
    "env_id",
    [
        "Pendulum-v1",
        "MountainCarContinuous-v0",
        "InvertedPendulum-v5",
        "HalfCheetah-v5",
        "Hopper-v5",
        "Walker2d-v5",
        "Ant-v5",
    ],
)
def test_an_environment_is_put_into_a_remembered_state(env_id: str) -> None:
    lived, posed = gymnasium.make(env_id), make_environment(env_id, rendered=False)
    lived.reset(seed=3)
    lived.action_space.seed(3)
    posed.reset(seed=4)
    for _ in range(4):
        observation, *_ = lived.step(lived.action_space.sample())
    pose(posed, np.asarray(observation, dtype=np.float32))
    inner, other = lived.unwrapped, posed.unwrapped
    if hasattr(inner, "data"):
        skipped = getattr(inner, "observation_structure", {}).get("skipped_qpos", 0)
        expected, found = inner.data.qpos[skipped:], other.data.qpos[skipped:]  # type: ignore[attr-defined]
    else:
        expected, found = np.array(inner.state), np.array(other.state)  # type: ignore[attr-defined]
        expected, found = np.cos(expected), np.cos(found)  # an angle is the same after a turn
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "env_id", ["InvertedDoublePendulum-v5", "Reacher-v5", "explorer.drawn:Drawn-v0"]
)
def test_where_the_observation_is_not_the_state_there_is_no_picture(env_id: str) -> None:
    env = make_environment(env_id, rendered=False)
    observation, _ = env.reset(seed=0)
    with pytest.raises(ImelError, match="cannot be put into a remembered state"):
        pose(env, observation)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_classic_control_is_drawn_without_a_display(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    prepare_drawing()
    lived, posed = (make_environment(env_id, rendered=True) for _ in range(2))
    lived.action_space.seed(3)
    first, _ = lived.reset(seed=3)
    posed.reset(seed=4)
    for _ in range(30):
        observation, *_ = lived.step(lived.action_space.sample())
    pictures = []
    for state in (first, observation):
        pose(posed, np.asarray(state, dtype=np.float32))
        pictures.append(pixels_of(posed))
    assert (pictures[0] != pictures[1]).any()
    if env_id == "MountainCarContinuous-v0":  # a pendulum's picture also has the last torque
        assert (pictures[1] != pixels_of(lived)).mean() < 0.01
    assert Image.open(io.BytesIO(picture(posed))).size[0] >= 400


def test_an_observation_the_environment_could_not_have_made_is_not_drawn() -> None:
    env = make_environment("Pendulum-v1", rendered=False)
    env.reset(seed=0)
    with pytest.raises(UnclearStateError):
        pose(env, np.array([0.2, 0.1, 0.0], dtype=np.float32))  # cos² + sin² is not one


def test_why_there_is_no_picture_of_a_memory_is_said(page: Page) -> None:
    assert "DrawnEnv cannot be put" in page.refusal("picture", model=page.newest, row=0)
    assert "of row 9999" in page.refusal("picture", model=page.newest, row=9999)


# --- the packed format ---


def test_packed_arrays_come_back_and_are_aligned() -> None:
    for text in ("", "a", "äöü", "abcd", "abcdefgh"):
        arrays: dict[str, NDArray[Any]] = {
            "x": np.arange(6, dtype=np.float32).reshape(2, 3),
            "none": np.zeros((0, 4)),
            "rows": np.array([2**24 + 1, -(2**40)]),
            "y": np.array([7.5]),
        }
        content = pack({"text": text}, arrays)
        assert (4 + int.from_bytes(content[:4], "little")) % 8 == 0
        document, found = unpack(content)
        assert document == {"text": text}
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].shape == array.shape
            np.testing.assert_array_equal(found[name], array)
