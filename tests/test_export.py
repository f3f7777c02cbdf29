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
Capsys = pytest.CaptureFixture[str]
Stored = tuple[IMeL, Path]


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
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return trained_run(tmp_path_factory.mktemp("export") / "run")


def export(run: Path, kind: str, out: str, *flags: str, episodes: int = 0) -> int:
    argv = ["--format", kind, "--out", out, "--episodes", str(episodes)]
    return main(["export", str(run), *argv, *flags])


# --- parquet ---


def test_a_parquet_file_holds_every_memory_bit_for_bit(stored: Stored) -> None:
    model, run = stored
    assert export(run, "parquet", "out") == 0

    frame = pd.read_parquet("out/memory.parquet")
    memory = model.policy.memory
    order = np.argsort(memory.column("iterations").numpy(), kind="stable")
    vectors = ("state", "next_state", "action", "mean", "improved_mean", "std")
    numbers = ("reward", "advantage", "episode", "step", "iteration")
    columns = {name: memory.column(f"{name}s") for name in numbers}
    for name in vectors:
        for i, column in enumerate(memory.column(f"{name}s").T):
            columns[f"{name}_{i}"] = column
    for name, values in columns.items():
        found = frame[name].to_numpy()
        assert found.dtype == values.numpy().dtype
        np.testing.assert_array_equal(found, values.numpy()[order], err_msg=name)
    assert frame["terminated"].dtype == bool
    assert frame["terminated"].any()
    assert not Path("out/evaluation.parquet").exists()


def test_a_parquet_file_says_what_made_it_and_maps_states_by_their_features(
    stored: Stored,
) -> None:
    model, run = stored
    assert export(run, "parquet", "out", episodes=1) == 0

    document = json.loads(pyarrow.parquet.read_schema("out/memory.parquet").metadata[b"imel"])
    assert (document["env"], document["source"]) == (ENV, "memory")
    assert (document["policy"], document["timesteps"]) == ("mki", model.num_timesteps)
    assert document["settings"] == model.settings.as_json()
    assert len(document["export"]["commit"]) in (40, len("unknown"))
    assert document["export"]["versions"]["imel"]
    assert document["projection"][0].startswith("component 1 (")
    for source in ("memory", "evaluation"):
        frame = pd.read_parquet(f"out/{source}.parquet")
        points = frame[["projection_x", "projection_y"]].to_numpy()
        states = torch.from_numpy(frame[["state_0", "state_1"]].to_numpy(copy=True))
        features = model.policy.embed(states).numpy()
        # Two principal components are a linear map of the features
        design = np.c_[features, np.ones(len(features))].astype(np.float64)
        fitted = design @ np.linalg.lstsq(design, points, rcond=None)[0]
        np.testing.assert_allclose(fitted, points, atol=1e-3)
        assert (points.std(axis=0) > 0.1).all() or source == "evaluation"


# --- minari ---


def test_a_minari_dataset_holds_the_memory(stored: Stored) -> None:
    model, run = stored
    assert export(run, "minari", "imel/point") == 0

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
        for name in ("mean", "improved_mean", "std", "advantage", "episode", "step"):
            assert len(episode.infos[f"imel_{name}"]) == len(episode.observations)
            found = episode.infos[f"imel_{name}"][:-1]
            np.testing.assert_array_equal(found, columns[f"{name}s"][rows])
    assert start == len(model.policy.memory)


def test_the_environment_of_a_dataset_is_recovered(stored: Stored) -> None:
    assert export(stored[1], "minari", "imel/point", "--seed", "5", episodes=2) == 0

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


def test_a_part_of_an_episode_that_was_forgotten_leaves_two(stored: Stored) -> None:
    model = IMeL.load(stored[1] / "model.safetensors")
    memory = model.policy.memory
    order, follows = memory.in_time()
    inner = follows[:-2] & follows[1:-1]
    before = int((~follows).sum())
    memory.forget_rows(order[[int(torch.nonzero(inner)[0]) + 1]])

    write_minari(MEMORY, memory_columns(memory), model.policy, ENV, {})

    dataset = minari.load_dataset(MEMORY)
    assert dataset.total_episodes == before + 1
    assert dataset.total_steps == len(memory)


@pytest.mark.parametrize("env_id", ["Unknown-v0", "ImelByClass-v0", None])
def test_an_environment_that_cannot_be_recorded_is_left_open(
    env_id: str | None, stored: Stored
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
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    model, _ = stored
    monkeypatch.setattr("minari.dataset._storages.hdf5_storage._add_episode_to_group", full)
    with pytest.raises(OSError, match="No space"):
        write_minari(MEMORY, memory_columns(model.policy.memory), model.policy, ENV, {})
    assert not Path("minari", MEMORY).exists()


def test_a_memory_exported_and_read_again_is_the_same(stored: Stored) -> None:
    model, run = stored
    assert export(run, "parquet", "out") == export(run, "minari", "imel/point") == 0
    expected = columns_in_time(model.policy.memory)
    sources = ("out/memory.parquet", Path("out/memory.parquet"), MEMORY)
    for dataset in (*sources, minari.load_dataset(MEMORY)):
        fresh = wide_model(seed=1).warm_start(dataset)
        assert differing(columns_in_time(fresh.policy.memory), expected) == []


# --- episodes played, and the projector ---


def test_played_episodes_are_those_of_the_mean_action_judged_by_the_critic(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    normalise, settings = model.policy.normaliser, model.settings
    with torch.no_grad():
        values, beyond = (
            model.critic(normalise(torch.from_numpy(columns[name]))).numpy()
            for name in ("states", "next_states")
        )
    rewards = columns["rewards"] / float(model.learner.return_scale.variance.sqrt())
    deltas = rewards + settings.gamma * beyond * (1.0 - columns["terminated"]) - values
    expected, trace = [], 0.0
    for delta in deltas[::-1]:
        trace = delta + settings.gamma * settings.gae_lambda * trace
        expected.append(trace)
    np.testing.assert_allclose(columns["advantages"], expected[::-1], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr("imel.environments.playing.LONGEST", 3)
    columns = play_episodes(model, ENV, [0, 1])
    assert columns["steps"].tolist() == [0, 1, 2, 0, 1, 2]
    assert not columns["terminated"].any()


def test_tensorboards_projector_finds_the_features(stored: Stored) -> None:
    model, run = stored
    assert export(run, "projector", "vectors", episodes=1) == 0

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


# --- what is refused ---


def test_nothing_is_overwritten(stored: Stored, capsys: Capsys) -> None:
    for kind, out in (("parquet", "out"), ("projector", "vectors"), ("minari", "imel/point")):
        assert export(stored[1], kind, out) == 0
        before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        capsys.readouterr()
        assert export(stored[1], kind, out) == 2
        assert "exists" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in before} == before


def test_what_cannot_be_exported_is_refused_in_one_line(
    stored: Stored, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
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
    assert not [*Path().glob("*/export*"), *run.glob("export*")]
    for kind, module in (("minari", "minari"), ("parquet", "pyarrow")):
        for name in (module, f"{module}.parquet", f"{module}.dataset.minari_dataset"):
            monkeypatch.setitem(sys.modules, name, None)
        assert export(run, kind, "x/y") == 2
        assert f"{module} is not installed: pip install 'imel[datasets]'" in capsys.readouterr().err
