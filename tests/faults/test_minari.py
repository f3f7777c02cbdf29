"""Minari datasets from strangers: what is wrong with one is said in a line, and no code runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from imel.datasets import memory_columns, read_dataset, write_minari
from imel.errors import ImelError
from imel.policies import Policy
from small import BATCH, small_model

NAME = "stranger/data-v0"
ENV = "Pendulum-v1"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Policy]:
    """A dataset of ours, not to be changed, and a policy that it fits."""
    root = tmp_path_factory.mktemp("minari")
    policy = small_model(env=ENV, n_envs=2).learn(BATCH).policy
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MINARI_DATASETS_PATH", str(root))
        write_minari(NAME, memory_columns(policy.memory), policy, ENV, {})
    return root, policy


@pytest.fixture
def data(honest: tuple[Path, Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy's data."""
    shutil.copytree(honest[0], tmp_path / "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari" / NAME / "data"


def refusal_of(policy: Policy) -> str:
    with pytest.raises(ImelError) as refusal:
        read_dataset(NAME, policy)
    text = str(refusal.value)
    assert "\n" not in text
    assert f"the Minari dataset {NAME}" in text
    assert len(text) < 1000
    return text


def edit(data: Path, **entries: Any) -> None:
    """Change entries of the metadata; those that are None are removed."""
    path = data / "metadata.json"
    metadata = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))


def test_an_honest_dataset_is_read(data: Path, honest: tuple[Path, Policy]) -> None:
    logged = read_dataset(NAME, honest[1])
    assert (logged.kind, len(logged)) == ("annotated", BATCH)


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_no_environment_is_made_of_what_a_dataset_names(
    missing: str, data: Path, honest: tuple[Path, Policy], tmp_path: Path
) -> None:
    # Where a space is missing Minari calls the entry point, which may be any function
    spec = json.loads(json.loads((data / "metadata.json").read_text())["env_spec"])
    spec |= {"entry_point": "subprocess:Popen", "kwargs": {"args": ["touch", f"{tmp_path}/ran"]}}
    edit(data, env_spec=json.dumps(spec), **{missing: None})
    assert missing in refusal_of(honest[1])
    assert not (tmp_path / "ran").exists()


BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-8.0] * 3, "high": [8.0] * 3}
METADATA: dict[str, dict[str, Any]] = {
    "a shape of 2**40": {"observation_space": json.dumps({**BOX, "shape": [2**40], "low": 0})},
    "a negative shape": {"observation_space": json.dumps({**BOX, "shape": [-1]})},
    "a shape that is text": {"observation_space": json.dumps({**BOX, "shape": "3"})},
    "a type of an odd kind": {"observation_space": json.dumps({**BOX, "dtype": "object"})},
    "a space of parts": {"observation_space": json.dumps({"type": "Dict", "subspaces": {}})},
    "another width": {
        "observation_space": json.dumps({**BOX, "shape": [2], "low": [0, 0], "high": [1, 1]})
    },
    "an unknown space": {"action_space": json.dumps({"type": "os.system"})},
    "a space that is no JSON": {"action_space": "{"},
    "a space nested without end": {"action_space": "[" * 100_000},
    "actions of another range": {
        "action_space": json.dumps({**BOX, "shape": [1], "low": [-9.0], "high": [9.0]})
    },
    "bounds that are NaN": {
        "action_space": json.dumps({**BOX, "shape": [1], "low": [float("nan")], "high": [2.0]})
    },
    "2**40 episodes": {"total_episodes": 2**40},
    "more episodes than there are": {"total_episodes": 1000},
    "-1 episodes": {"total_episodes": -1},
    "episodes as text": {"total_episodes": "2"},
    "no episodes": {"total_episodes": 0},
    "another format": {"data_format": "pickle"},
    "the other format": {"data_format": "arrow"},
    "a version that is none": {"minari_version": "x\ny"},
    "an id of several lines": {"dataset_id": "x\nimel: all is well", "action_space": "{}"},
    "no version": {"minari_version": None},
    "an environment that is none": {"env_spec": "[1]"},
}


@pytest.mark.parametrize("entries", METADATA.values(), ids=METADATA.keys())
def test_metadata_that_lie_are_refused(
    entries: dict[str, Any], data: Path, honest: tuple[Path, Policy]
) -> None:
    edit(data, **entries)
    refusal_of(honest[1])


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_metadata_that_are_no_table_are_refused(
    text: str, data: Path, honest: tuple[Path, Policy]
) -> None:
    (data / "metadata.json").write_text(text)
    refusal_of(honest[1])


def replace(name: str, values: Any) -> Callable[[Any], None]:
    """Put other values in the place of an episode's."""

    def spoil(file: Any) -> None:
        del file[f"episode_0/{name}"]
        file[f"episode_0/{name}"] = values(file) if callable(values) else values

    return spoil


def shown(name: str, values: Any) -> Callable[[Any], None]:
    """The same, where nothing but the environment's own numbers is known."""

    def spoil(file: Any) -> None:
        del file["episode_0/infos"]
        replace(name, values)(file)

    return spoil


def huge(file: Any) -> None:
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (2**40,), "f4", chunks=(1024,))


def outside(file: Any) -> None:
    del file["episode_0/rewards"]
    place = [("/etc/hostname", 0, 8)]
    file["episode_0"].create_dataset("rewards", (2,), "f4", external=place)


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "x", (2,))
    del file["episode_0/rewards"]
    file["episode_0"].create_virtual_dataset("rewards", layout)


def with_a_value(name: str, value: float) -> Callable[[Any], None]:
    def spoil(file: Any) -> None:
        column = file[f"episode_0/{name}"]
        column[0] = value

    return spoil


LENGTH = BATCH // 2
DATA: dict[str, Callable[[Any], None]] = {
    "rewards of 2**40 steps": huge,
    "data in another file": outside,
    "virtual data": virtual,
    "a link to another file": replace("rewards", h5py.ExternalLink("/etc/passwd", "/x")),
    "a link within the file": replace("rewards", h5py.SoftLink("/episode_0/actions")),
    "a link in a circle": replace("infos", h5py.SoftLink("/episode_0")),
    "text for rewards": replace("rewards", np.array([b"x"] * LENGTH)),
    "complex rewards": replace("rewards", np.ones(LENGTH, complex)),
    "rewards as a table": replace("rewards", np.ones((LENGTH, 2))),
    "rewards as a group": lambda file: (
        file.__delitem__("episode_0/rewards"),
        file.create_group("episode_0/rewards"),
    )[0],
    "no rewards": lambda file: file.__delitem__("episode_0/rewards"),
    "no episode": lambda file: file.__delitem__("episode_0"),
    "too few rewards": replace("rewards", np.ones(3)),
    "too many actions": shown("actions", np.zeros((LENGTH + 9, 1), np.float32)),
    "wider actions": shown("actions", np.zeros((LENGTH, 2), np.float32)),
    "actions as text": shown("actions", np.array([[b"x"]] * LENGTH)),
    "actions beyond their range": shown("actions", np.full((LENGTH, 1), 9.0, np.float32)),
    "wider observations": replace("observations", np.zeros((LENGTH + 1, 4), np.float32)),
    "NaN in rewards": with_a_value("rewards", float("nan")),
    "infinite rewards": with_a_value("rewards", float("inf")),
    "NaN in observations": with_a_value("observations", float("nan")),
    "NaN in improved means": with_a_value("infos/imel_improved_mean", float("nan")),
    "sigma of zero": with_a_value("infos/imel_std", 0.0),
    "negative sigma": with_a_value("infos/imel_std", -1.0),
    "terminations as text": replace("terminations", np.array([b"x"] * LENGTH)),
    "infos that are no table": replace("infos", np.ones(3)),
    "text in infos": replace("infos/imel_advantage", np.array([b"x"] * (LENGTH + 1))),
}


@pytest.mark.parametrize("spoil", DATA.values(), ids=DATA.keys())
def test_data_that_are_none_are_refused(
    spoil: Callable[[Any], None], data: Path, honest: tuple[Path, Policy]
) -> None:
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        spoil(file)
    refusal_of(honest[1])


def test_foreign_infos_make_demonstrations_of_a_dataset(
    data: Path, honest: tuple[Path, Policy]
) -> None:
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_0/infos/imel_advantage"]
        file["episode_0/infos/__class__"] = np.ones(LENGTH + 1)
    assert read_dataset(NAME, honest[1]).kind == "shown"


def test_a_link_in_the_folder_is_refused(data: Path, honest: tuple[Path, Policy]) -> None:
    moved = data.parent.parent / "elsewhere.hdf5"
    shutil.move(data / "main_data.hdf5", moved)
    (data / "main_data.hdf5").symlink_to(moved)
    assert "has a link" in refusal_of(honest[1])


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096])
def test_a_file_that_is_no_hdf5_is_refused(
    content: bytes, data: Path, honest: tuple[Path, Policy]
) -> None:
    (data / "main_data.hdf5").write_bytes(content)
    refusal_of(honest[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", [1.0, 0.9, 0.1])
def test_an_arrow_dataset_is_read_whole_or_not_at_all(
    share: float, honest: tuple[Path, Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    policy = honest[1]
    episode: dict[str, Any] = {
        "observations": np.zeros((5, 3), np.float32),
        "actions": np.zeros((4, 1), np.float32),
    }
    episode |= {"rewards": np.ones(4), "terminations": np.zeros(4, bool)}
    episode |= {"truncations": np.array([0, 0, 0, 1], bool)}
    minari.create_dataset_from_buffers(
        NAME,
        [EpisodeBuffer(**episode)],
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        data_format="arrow",
    )
    (file,) = (tmp_path / NAME).rglob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    if share == 1.0:
        assert len(read_dataset(NAME, policy)) == 4
    else:
        refusal_of(policy)


@pytest.mark.parametrize(
    "name", ["../../etc/x-v0", "/etc/x-v0", "x/../../y-v0", "a b-v0", "~/x-v0"]
)
def test_an_id_that_is_a_path_is_refused(name: str, honest: tuple[Path, Policy]) -> None:
    with pytest.raises(ImelError, match=r"neither a file nor the id|there is no file") as refusal:
        read_dataset(name, honest[1])
    assert "\n" not in str(refusal.value)
