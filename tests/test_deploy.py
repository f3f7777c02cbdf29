"""Exported policies act as the policy does: ONNX and plain arrays, continuous and discrete."""

from __future__ import annotations

import copy
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

from imel import IMeL, ImelError
from imel.bench.space_tasks import Levers
from imel.cli.main import main
from imel.deploy import write_numpy, write_onnx
from imel.deploy.onnx_file import OPSET
from imel.policies import MkiPolicy
from logged import ENV, register, trained_run, wide_model
from pages import blocks
from small import POLICIES


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


def states(model: IMeL, count: int = 300) -> NDArray[np.float32]:
    """Observations near those it has seen, and far ones."""
    seen = model.policy.memory.column("states").numpy()
    near = seen[np.random.default_rng(0).integers(len(seen), size=count)]
    return np.concatenate([near, 3.0 * near + 1.0, 100.0 * near]).astype(np.float32)


def answer(path: Path, observations: NDArray[np.float32]) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(path)
    [actions] = session.run(["action"], {"observation": observations})
    return np.asarray(actions)


def assert_acts_alike(model: IMeL, path: Path) -> None:
    """The file's actions are the policy's, or as near to exact ones where rounding is amplified."""
    observations = states(model)
    expected = model.predict(observations, deterministic=True)[0]
    actions = answer(path, observations)
    assert actions.shape == expected.shape
    assert np.ptp(expected) > 0.1
    assert ((expected >= -2.0) & (expected <= 6.0)).all()
    if not isinstance(model.policy, MkiPolicy):
        np.testing.assert_allclose(actions, expected, rtol=0.0, atol=1e-5)
        return
    exact_policy = copy.deepcopy(model.policy).double()
    means, _ = exact_policy.act(torch.from_numpy(observations).double())
    exact = exact_policy.to_environment(means.numpy())
    own_rounding = np.abs(expected - exact).max()
    assert 1e-5 < own_rounding < 1e-3, "a sharp kernel amplifies what single precision rounds"
    assert np.abs(actions - exact).max() <= 2.0 * own_rounding


@pytest.mark.parametrize("policy", POLICIES)
def test_an_onnx_file_answers_as_the_policy_on_asymmetric_bounds(
    policy: str, tmp_path: Path
) -> None:
    model = wide_model(policy=policy).learn(256)
    write_onnx(model.policy, tmp_path / "policy.onnx")
    assert_acts_alike(model, tmp_path / "policy.onnx")


@pytest.mark.parametrize(
    ("policy", "options"),
    [("NpPolicy", {"deterministic": "mean"}), ("MkiPolicy", {"normalised": False})],
)
def test_options_of_a_policy_are_in_the_file(
    policy: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = wide_model(policy=policy, policy_kwargs=options).learn(256)
    write_onnx(model.policy, tmp_path / "policy.onnx")
    assert_acts_alike(model, tmp_path / "policy.onnx")


def discrete_model(policy: str, env: Any) -> IMeL:
    made = env if isinstance(env, str) else env()
    return IMeL(policy, made, n_envs=1, rollout_size=128, memory_size=256, seed=3).learn(384)


@pytest.mark.parametrize("policy", ["RidgePolicy", "MkiPolicy"])
@pytest.mark.parametrize("env", ["CartPole-v1", LeverVectors])
def test_discrete_choices_are_the_policys(policy: str, env: Any, tmp_path: Path) -> None:
    model = discrete_model(policy, env)
    write_onnx(model.policy, tmp_path / "policy.onnx")
    observations = states(model)
    expected = model.predict(observations, deterministic=True)[0]
    actions = answer(tmp_path / "policy.onnx", observations)
    assert actions.dtype == np.int64
    assert actions.shape == expected.shape
    assert (actions == expected).all()
    assert len(np.unique(expected, axis=0)) > 1


def test_a_reduced_policy_is_exported_without_the_lessons_taken_back(tmp_path: Path) -> None:
    model = wide_model(policy="RidgePolicy").learn(256)
    reduced = model.policy_without(lessons=model.explain(np.zeros(2)).lessons.episodes[:3])
    write_onnx(reduced, tmp_path / "policy.onnx")
    observations = states(model)
    expected = reduced.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(
        answer(tmp_path / "policy.onnx", observations), expected, rtol=0.0, atol=1e-5
    )
    assert np.abs(expected - model.predict(observations, deterministic=True)[0]).max() > 1e-3


# --- plain arrays ---


def reader() -> Any:
    """The class of the page that reads a file of arrays, and needs nothing of imel."""
    page = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text()
    [source] = [block.body for block in blocks(page, "python") if "class " in block.body]
    assert "imel" not in source
    assert len(source.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(source, names)
    return names["ArrayPolicy"]


@pytest.mark.parametrize("env", [ENV, "CartPole-v1", LeverVectors])
def test_the_reader_of_the_page_answers_as_the_policy(env: Any, tmp_path: Path) -> None:
    if env == ENV:
        model = wide_model(policy="RidgePolicy").learn(256)
    else:
        model = discrete_model("RidgePolicy", env)
    write_numpy(model.policy, tmp_path / "policy.npz")
    policy = reader()(tmp_path / "policy.npz")
    for observation in states(model, 30):
        expected = model.predict(observation, deterministic=True)[0]
        np.testing.assert_allclose(policy.act(observation), expected, rtol=0.0, atol=1e-5)


# --- the command ---


def test_the_command_writes_what_it_says_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


@pytest.mark.parametrize(
    ("policy", "kind", "complaint"),
    [
        ("MkiPolicy", "numpy", "only RidgePolicy is a few arrays; export MkiPolicy as onnx"),
        ("RidgePolicy", "onnx", "onnx is not installed: pip install 'imel[onnx]'"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    policy: str,
    kind: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, run = trained_run(tmp_path / "run", policy=policy)
    if kind == "onnx":
        monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(run), "--format", kind]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (run / f"export-{kind}").exists()


def test_a_features_extractor_is_refused(tmp_path: Path) -> None:
    model = IMeL("RidgePolicy", Levers(), n_envs=1, rollout_size=64, memory_size=128)
    for write in (write_onnx, write_numpy):
        with pytest.raises(ImelError, match="only policies that observe vectors are exported"):
            write(model.policy, tmp_path / "policy")
