"""Exported policies act as the policy does: ONNX and plain arrays, continuous and discrete."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor

from imel import IMeL, ImelError
from imel.bench.space_tasks import Levers
from imel.cli.main import main
from imel.deploy import OPSET, write_numpy, write_onnx
from imel.policies import RidgePolicy
from imel.policies.ridge.features import Features
from logged import ENV, WidePointEnv, register, trained_run, wide_model
from pages import blocks
from small import small_model


class LeverVectors(Levers):
    """Several choices by a vector of lamps."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0.0, 2.0, (2,), np.float32)


@pytest.fixture(autouse=True, scope="module")
def _environment() -> Iterator[None]:
    register()
    yield
    del gym.registry[ENV]


def trained(env: Any) -> IMeL:
    """A model on bounds from -2 to 6, or on one choice or several."""
    if env == ENV:
        return wide_model(policy="RidgePolicy").learn(256)
    made = env if isinstance(env, str) else env()
    model = IMeL("RidgePolicy", made, n_envs=1, rollout_size=128, memory_size=256, seed=3)
    return model.learn(384)


def states(model: IMeL, count: int = 300) -> NDArray[np.float32]:
    """Observations near those it has seen, and far ones."""
    seen = model.policy.memory.column("states").numpy()
    near = seen[np.random.default_rng(0).integers(len(seen), size=count)]
    return np.concatenate([near, 3.0 * near + 1.0, 100.0 * near]).astype(np.float32)


def assert_acts_alike(policy: Any, path: Path, observations: NDArray[np.float32]) -> None:
    """The file's actions are the policy's."""
    expected = policy.predict(observations, deterministic=True)[0]
    session = onnxruntime.InferenceSession(path)
    [actions] = session.run(["action"], {"observation": observations})
    assert (actions.dtype, actions.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(actions, expected, rtol=0.0, atol=1e-5)
    assert len(np.unique(expected, axis=0)) > 1


@pytest.mark.parametrize("env", [ENV, "CartPole-v1", LeverVectors])
def test_a_file_answers_as_the_policy(env: Any, tmp_path: Path) -> None:
    model = trained(env)
    write_onnx(model.policy, tmp_path / "policy.onnx")
    assert_acts_alike(model.policy, tmp_path / "policy.onnx", states(model))

    write_numpy(model.policy, tmp_path / "policy.npz")
    policy = reader()(tmp_path / "policy.npz")
    for observation in states(model, 30):
        expected = model.predict(observation, deterministic=True)[0]
        np.testing.assert_allclose(policy.act(observation), expected, rtol=0.0, atol=1e-5)


def reader() -> Any:
    """The class of the page that reads a file of arrays, and needs nothing of imel."""
    page = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text()
    [source] = [block.body for block in blocks(page, "python") if "class " in block.body]
    assert "imel" not in source
    assert len(source.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(source, names)
    return names["ArrayPolicy"]


def test_a_reduced_policy_is_exported_without_the_lessons_taken_back(tmp_path: Path) -> None:
    model = trained(ENV)
    reduced = model.policy_without(lessons=model.explain(np.zeros(2)).lessons.episodes[:3])
    write_onnx(reduced, tmp_path / "policy.onnx")
    assert_acts_alike(reduced, tmp_path / "policy.onnx", states(model))
    before, after = (
        each.predict(states(model), deterministic=True)[0] for each in (model, reduced)
    )
    assert np.abs(before - after).max() > 1e-3


# --- policies and features of one's own ---


class Squares(Features):
    """A constant, the state and its squares."""

    width = 5

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([torch.ones(len(states), 1), states, states.square()], dim=1)


class WritableSquares(Squares):
    """The same, and how they are written to a graph."""

    def write_graph(self, graph: Any, state: str, coefficients: Tensor) -> str:
        features = graph.add("Concat", state, graph.add("Mul", state, state), axis=1)
        mean: str = graph.affine(features, coefficients[1:], coefficients[0])
        return mean


class SquaresPolicy(RidgePolicy):
    def make_features(self) -> Features:
        return Squares()


class WritablePolicy(RidgePolicy):
    def make_features(self) -> Features:
        return WritableSquares()


class OtherPolicy(RidgePolicy):
    """Acts by the first dimension of the state."""

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.normaliser(states)[:, :1]
        return mean, self.std.expand_as(mean)


class WritableOtherPolicy(OtherPolicy):
    def write_graph(self, graph: Any, state: str) -> str:
        mean: str = graph.affine(state, torch.eye(self.state_dim, 1))
        return mean


@pytest.mark.parametrize("policy", [WritablePolicy, WritableOtherPolicy])
def test_a_policy_or_features_of_ones_own_write_themselves(policy: Any, tmp_path: Path) -> None:
    model = small_model(policy, make_vec_env(WidePointEnv, n_envs=4, seed=0)).learn(256)
    write_onnx(model.policy, tmp_path / "policy.onnx")
    assert_acts_alike(model.policy, tmp_path / "policy.onnx", states(model))


@pytest.mark.parametrize("policy", [SquaresPolicy, OtherPolicy, "MkiPolicy"])
def test_what_may_compute_something_else_is_refused(policy: Any, tmp_path: Path) -> None:
    made = small_model(policy, make_vec_env(WidePointEnv, n_envs=4, seed=0)).policy
    with pytest.raises(ImelError, match=r"^\w+ has no write_graph and cannot be exported$"):
        write_onnx(made, tmp_path / "other.onnx")
    with pytest.raises(ImelError, match=r"^\w+ is not the few arrays of a RidgePolicy$"):
        write_numpy(made, tmp_path / "other.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_features_extractor_is_refused(tmp_path: Path) -> None:
    model = IMeL("RidgePolicy", Levers(), n_envs=1, rollout_size=64, memory_size=128)
    for write in (write_onnx, write_numpy):
        with pytest.raises(ImelError, match="only policies that observe vectors are exported"):
            write(model.policy, tmp_path / "policy")


# --- the command ---


def test_the_command_writes_what_it_says_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, run = trained_run(tmp_path / "run", policy="RidgePolicy")
    for kind, name in (("onnx", "policy.onnx"), ("numpy", "policy.npz")):
        assert main(["export", str(run), "--format", kind]) == 0
        path = run / f"export-{kind}" / name
        assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"
        assert main(["export", str(run), "--format", kind]) == 2
        assert "exists already and is not overwritten" in capsys.readouterr().err
    loaded = onnx.load(run / "export-onnx" / "policy.onnx")
    assert [entry.version for entry in loaded.opset_import] == [OPSET]
    document = json.loads(loaded.metadata_props[0].value)
    assert (document["env"], document["timesteps"]) == (ENV, model.num_timesteps)
    with np.load(run / "export-numpy" / "policy.npz", allow_pickle=False) as arrays:
        assert json.loads(str(arrays["imel"])) == document

    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(run), "--format", "onnx", "--out", str(tmp_path / "new")]) == 2
    assert "onnx is not installed: pip install 'imel[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
