"""What `imel export` writes is what the memory holds, in formats that other tools read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from google.protobuf import text_format
from tensorboard.plugins import projector

from imel import IMeL
from imel.cli.main import main
from imel.datasets import memory_columns, play_episodes, write_minari
from imel.runs.evaluation import evaluate
from logged import ENV, WidePointEnv, columns_in_time, register, trained_run, wide_model, write_run
from small import differing

MEMORY, EVALUATION = "imel/point/memory-v0", "imel/point/evaluation-v0"


@pytest.fixture(autouse=True, scope="module")
def _environment() -> Iterator[None]:
    register()
    yield
    del gym.registry[ENV]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[IMeL, Path]:
    return trained_run(tmp_path_factory.mktemp("export") / "run")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- parquet ---


def test_a_parquet_file_holds_every_memory_bit_for_bit(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    assert main(["export", str(run), "--episodes", "0", "--out", "out"]) == 0

    frame = pd.read_parquet("out/memory.parquet")
    memory = model.policy.memory
    order = np.argsort(memory.column("iterations").numpy(), kind="stable")
    assert len(frame) == len(memory)
    for name, column in (
        *((f"state_{i}", memory.column("states")[:, i]) for i in range(2)),
        *((f"next_state_{i}", memory.column("next_states")[:, i]) for i in range(2)),
        ("action_0", memory.column("actions")[:, 0]),
        ("mean_0", memory.column("means")[:, 0]),
        ("improved_mean_0", memory.column("improved_means")[:, 0]),
        ("std_0", memory.column("stds")[:, 0]),
        ("reward", memory.column("rewards")),
        ("advantage", memory.column("advantages")),
        ("episode", memory.column("episodes")),
        ("step", memory.column("steps")),
        ("iteration", memory.column("iterations")),
    ):
        found = frame[name].to_numpy()
        assert found.dtype == column.numpy().dtype
        np.testing.assert_array_equal(found, column.numpy()[order], err_msg=name)
    assert frame["terminated"].dtype == bool
    assert frame["terminated"].any()
    assert not Path("out/evaluation.parquet").exists()


def test_a_parquet_file_says_what_made_it(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    assert main(["export", str(run), "--episodes", "0", "--out", "out"]) == 0

    metadata = pyarrow.parquet.read_schema("out/memory.parquet").metadata
    document = json.loads(metadata[b"imel"])
    assert document["env"] == ENV
    assert document["source"] == "memory"
    assert document["settings"] == model.settings.as_json()
    assert document["timesteps"] == model.num_timesteps
    assert len(document["export"]["commit"]) in (40, len("unknown"))
    assert document["export"]["versions"]["imel"]


def test_the_projection_tells_memories_apart_as_the_features_do(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    assert main(["export", str(run), "--episodes", "1", "--out", "out"]) == 0

    frame = pd.read_parquet("out/memory.parquet")
    points = frame[["projection_x", "projection_y"]].to_numpy()
    states = torch.from_numpy(frame[["state_0", "state_1"]].to_numpy(copy=True))
    features = model.policy.embed(states).numpy()
    # Two principal components are a linear map of the features
    design = np.c_[features, np.ones(len(features))]
    _, residuals, _, _ = np.linalg.lstsq(design.astype(np.float64), points, rcond=None)
    assert (residuals / len(points) < 1e-6).all()
    assert (points.std(axis=0) > 0.1).all()
    evaluation = pd.read_parquet("out/evaluation.parquet")
    assert np.isfinite(evaluation[["projection_x", "projection_y"]].to_numpy()).all()


def test_nothing_is_overwritten(
    stored: tuple[IMeL, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = stored
    for kind, out in (("parquet", "out"), ("projector", "vectors"), ("minari", "imel/point")):
        argv = ["export", str(run), "--episodes", "0", "--format", kind, "--out", out]
        assert main(argv) == 0
        before = files(Path())
        capsys.readouterr()
        assert main(argv) == 2
        assert "exists" in capsys.readouterr().err
        assert files(Path()) == before


def test_what_cannot_be_exported_is_refused_in_one_line(
    stored: tuple[IMeL, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, run = stored
    blank = write_run(Path("blank"), wide_model())
    model.save("alone/model.safetensors")
    for argv, reason in (
        ([str(blank)], "remembers nothing"),
        (["nowhere"], "nowhere"),
        ([str(run), "--episodes", "-1"], "episodes=-1"),
        ([str(run), "--env", "Pendulum-v1"], "not made for Pendulum-v1"),
        ([str(run), "--format", "minari", "--out", "a b"], "a b"),
        (["alone/model"], "--env"),
    ):
        capsys.readouterr()
        assert main(["export", *argv]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
    assert not list(Path().glob("*/export*"))
    assert not list(run.glob("export*"))


# --- minari ---


def test_a_minari_dataset_holds_the_memory(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    argv = ["--format", "minari", "--episodes", "0", "--out", "imel/point"]
    assert main(["export", str(run), *argv]) == 0

    dataset = minari.load_dataset(MEMORY)
    assert dataset.total_steps == len(model.policy.memory)
    columns = columns_in_time(model.policy.memory)
    start = 0
    for episode in dataset.iterate_episodes():
        rows = slice(start, start + len(episode))
        start += len(episode)
        np.testing.assert_array_equal(episode.observations[:-1], columns["states"][rows])
        np.testing.assert_array_equal(episode.observations[1:], columns["next_states"][rows])
        units = columns["actions"][rows].numpy().clip(-1.0, 1.0)
        np.testing.assert_allclose(episode.actions, 4.0 * units + 2.0, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(episode.rewards, columns["rewards"][rows])
        np.testing.assert_array_equal(episode.terminations, columns["terminated"][rows].bool())
        assert (episode.truncations[:-1] == 0).all()
        assert episode.terminations[-1] != episode.truncations[-1]
        for name, column in (
            ("imel_mean", columns["means"]),
            ("imel_improved_mean", columns["improved_means"]),
            ("imel_std", columns["stds"]),
            ("imel_advantage", columns["advantages"]),
            ("imel_episode", columns["episodes"]),
            ("imel_step", columns["steps"]),
        ):
            assert len(episode.infos[name]) == len(episode.observations)
            np.testing.assert_array_equal(episode.infos[name][:-1], column[rows])
    assert start == len(model.policy.memory)


def test_the_environment_of_a_dataset_is_recovered(stored: tuple[IMeL, Path]) -> None:
    _, run = stored
    argv = ["--format", "minari", "--episodes", "2", "--out", "imel/point", "--seed", "5"]
    assert main(["export", str(run), *argv]) == 0

    dataset = minari.load_dataset(EVALUATION)
    env = dataset.recover_environment()
    assert env.spec is not None
    assert env.spec.id == ENV
    metadata = list(dataset.storage.get_episode_metadata([0, 1]))
    assert [int(each["seed"]) for each in metadata] == [5, 6]
    # What was played can be played again
    for seed, episode in zip((5, 6), dataset.iterate_episodes(), strict=True):
        observation, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(observation, episode.observations[0])
        for t, action in enumerate(episode.actions):
            observation, reward, terminated, truncated, _ = env.step(action)
            np.testing.assert_array_equal(observation, episode.observations[t + 1])
            assert np.float32(reward) == episode.rewards[t]
        assert (terminated, truncated) == (episode.terminations[-1], episode.truncations[-1])
        assert terminated or truncated


def test_a_part_of_an_episode_that_was_forgotten_leaves_two(stored: tuple[IMeL, Path]) -> None:
    model = IMeL.load(stored[1] / "model.safetensors")
    memory = model.policy.memory
    order, follows = memory.in_time()
    inner = follows[:-2] & follows[1:-1]
    middle = int(torch.nonzero(inner)[0]) + 1
    before = int((~follows).sum())
    memory.forget_rows(order[[middle]])

    write_minari(MEMORY, memory_columns(memory), model.policy, ENV, {})

    dataset = minari.load_dataset(MEMORY)
    assert dataset.total_episodes == before + 1
    assert dataset.total_steps == len(memory)


@pytest.mark.parametrize("env_id", ["Unknown-v0", "ImelByClass-v0", None])
def test_an_environment_that_cannot_be_recorded_is_left_open(
    env_id: str | None, stored: tuple[IMeL, Path]
) -> None:
    model, _ = stored
    gym.register("ImelByClass-v0", entry_point=lambda **_: WidePointEnv())
    try:
        write_minari(MEMORY, memory_columns(model.policy.memory), model.policy, env_id, {})
    finally:
        del gym.registry["ImelByClass-v0"]
    dataset = minari.load_dataset(MEMORY)
    assert dataset.env_spec is None
    assert dataset.action_space == model.action_space


def test_a_dataset_that_cannot_be_finished_leaves_nothing(
    stored: tuple[IMeL, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    model, _ = stored
    monkeypatch.setattr("minari.dataset._storages.hdf5_storage._add_episode_to_group", full)
    with pytest.raises(OSError, match="No space"):
        write_minari(MEMORY, memory_columns(model.policy.memory), model.policy, ENV, {})
    assert not Path("minari", MEMORY).exists()


# --- episodes played, and the projector ---


def test_played_episodes_are_those_of_the_mean_action(stored: tuple[IMeL, Path]) -> None:
    model, _ = stored
    columns = play_episodes(model, ENV, [10_000])

    returned = evaluate(model.policy, ENV, 1, 10_000, deterministic=True)
    assert columns["rewards"].sum() == pytest.approx(returned.returns[0], rel=1e-5)
    means, stds = model.policy.act(torch.from_numpy(columns["states"]))
    # Of one state at a time and of all together: sums in single precision, in another order
    rounding = 1e-6 * float(means.abs().max())
    np.testing.assert_allclose(columns["means"], means, rtol=1e-5, atol=rounding)
    np.testing.assert_allclose(columns["stds"], stds, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(columns["improved_means"], columns["means"])
    assert (columns["iterations"] == model.iteration).all()


def test_their_advantages_are_the_critics(stored: tuple[IMeL, Path]) -> None:
    model, _ = stored
    columns = play_episodes(model, ENV, [3])
    settings = model.settings
    with torch.no_grad():
        normalise = model.policy.normaliser
        values = model.critic(normalise(torch.from_numpy(columns["states"]))).numpy()
        beyond = model.critic(normalise(torch.from_numpy(columns["next_states"]))).numpy()
    rewards = columns["rewards"] / float(model.learner.return_scale.variance.sqrt())
    deltas = rewards + settings.gamma * beyond * (1.0 - columns["terminated"]) - values
    expected, trace = [], 0.0
    for delta in deltas[::-1]:
        trace = delta + settings.gamma * settings.gae_lambda * trace
        expected.append(trace)
    np.testing.assert_allclose(columns["advantages"], expected[::-1], rtol=1e-4, atol=1e-5)


def test_tensorboards_projector_finds_the_features(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    argv = ["--format", "projector", "--episodes", "1", "--out", "vectors"]
    assert main(["export", str(run), *argv]) == 0

    config = projector.ProjectorConfig()
    text_format.Parse(Path("vectors/projector_config.pbtxt").read_text(), config)
    memory, evaluation = config.embeddings
    vectors = np.loadtxt(Path("vectors", memory.tensor_path), delimiter="\t", dtype=np.float32)
    columns = memory_columns(model.policy.memory)
    expected = model.policy.embed(torch.from_numpy(columns["states"]))
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-5)
    table = pd.read_csv(Path("vectors", memory.metadata_path), sep="\t")
    assert len(table) == len(vectors)
    np.testing.assert_allclose(table["advantage"], columns["advantages"], rtol=1e-4, atol=1e-5)
    assert {"improved_mean_0", "std_0", "episode", "step", "iteration"} <= set(table.columns)
    assert Path("vectors", evaluation.tensor_path).is_file()


def test_a_missing_package_is_named_with_its_extra(
    stored: tuple[IMeL, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = stored
    for kind, module in (("minari", "minari"), ("parquet", "pyarrow")):
        with monkeypatch.context() as patch:
            for name in (module, f"{module}.parquet", f"{module}.dataset.minari_dataset"):
                patch.setitem(sys.modules, name, None)
            argv = ["export", str(run), "--format", kind, "--episodes", "0", "--out", "x/y"]
            assert main(argv) == 2
        assert f"{module} is not installed: pip install 'imel[datasets]'" in capsys.readouterr().err


def test_an_episode_without_end_is_left(
    stored: tuple[IMeL, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.environments.playing.LONGEST", 3)
    columns = play_episodes(stored[0], ENV, [0, 1])
    assert columns["steps"].tolist() == [0, 1, 2, 0, 1, 2]
    assert not columns["terminated"].any()


def test_policies_without_features_are_exported_by_their_states(tmp_path: Path) -> None:
    model = wide_model(memory_size=128)
    other = IMeL("NearestPolicy", model.get_env(), seed=0, rollout_size=64, memory_size=128)
    run = write_run(tmp_path / "nearest", other.learn(64))
    for kind in ("parquet", "projector"):
        assert main(["export", str(run), "--format", kind, "--episodes", "0"]) == 0
    vectors = np.loadtxt(run / "export-projector/00000/memory/tensors.tsv", delimiter="\t")
    assert vectors.shape == (64, 2)
    document = json.loads(
        pyarrow.parquet.read_schema(run / "export-parquet/memory.parquet").metadata[b"imel"]
    )
    assert document["projection"][0].startswith("state component")


def test_a_memory_exported_and_read_again_is_the_same(stored: tuple[IMeL, Path]) -> None:
    model, run = stored
    assert main(["export", str(run), "--episodes", "0", "--out", "out"]) == 0
    argv = ["--format", "minari", "--episodes", "0", "--out", "imel/point"]
    assert main(["export", str(run), *argv]) == 0
    expected = columns_in_time(model.policy.memory)

    for dataset in ("out/memory.parquet", Path("out/memory.parquet"), MEMORY):
        fresh = wide_model(seed=1).warm_start(dataset)
        assert differing(columns_in_time(fresh.policy.memory), expected) == []
    loaded = wide_model(seed=1).warm_start(minari.load_dataset(MEMORY))
    assert differing(columns_in_time(loaded.policy.memory), expected) == []
