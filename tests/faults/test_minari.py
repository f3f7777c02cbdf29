"""Minari datasets from strangers: what is wrong with one is said in a line, and no code runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

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
def policy(honest: tuple[Path, Policy]) -> Policy:
    return honest[1]


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


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_no_environment_is_made_of_what_a_dataset_names(
    missing: str, data: Path, policy: Policy, tmp_path: Path
) -> None:
    # Where a space is missing Minari calls the entry point, which may be any function
    spec = json.loads(json.loads((data / "metadata.json").read_text())["env_spec"])
    spec |= {"entry_point": "subprocess:Popen", "kwargs": {"args": ["touch", f"{tmp_path}/ran"]}}
    edit(data, env_spec=json.dumps(spec), **{missing: None})
    assert missing in refusal_of(policy)
    assert not (tmp_path / "ran").exists()


def box(**entries: Any) -> str:
    """A space in Minari's words."""
    usual = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}
    return json.dumps({**usual, **entries})


METADATA: dict[str, dict[str, Any]] = {
    "a shape of 2**40": {"observation_space": box(shape=[2**40], low=0, high=1)},
    "a negative shape beside a large one": {
        "observation_space": box(shape=[-(2**40)]),
        "action_space": box(shape=[2**40], low=0, high=1),
    },
    "a type of 2**30 letters": {"observation_space": box(shape=[3], dtype=f"S{2**30}")},
    "a space of parts": {"observation_space": json.dumps({"type": "Dict", "subspaces": {}})},
    "an unknown space": {"action_space": json.dumps({"type": "os.system"})},
    "a space nested without end": {"action_space": "[" * 100_000},
    "actions of another range": {"action_space": box(low=[-9.0], high=[9.0])},
    "bounds that are NaN": {"action_space": box(low=[float("nan")])},
    "2**40 episodes": {"total_episodes": 2**40},
    "NaN episodes": {"total_episodes": float("nan")},
    "more episodes than there are": {"total_episodes": 1000},
    "another format": {"data_format": "pickle"},
    "the other format": {"data_format": "arrow"},
    "a version that is none": {"minari_version": "x\ny"},
    "an id of several lines": {"dataset_id": "x\nimel: all is well", "action_space": "{}"},
    "an environment that is none": {"env_spec": "[1]"},
}


FILES = [
    *(("metadata.json", text) for text in (b"", b"[]", b"3", b"{", b"[" * 100_000, b"\xff")),
    ("metadata.json", b'{"a": ' + b"9" * 5000 + b"}"),
    *(("main_data.hdf5", text) for text in (b"", b"\x80\x04K\x01.")),
    ("main_data.hdf5", b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096),
]

LENGTH = BATCH // 2


def put(name: str, values: Any, annotated: bool = True) -> Callable[[Any], None]:
    """Put other values in the place of an episode's; without annotations it is a demonstration."""

    def spoil(file: Any) -> None:
        del file[f"episode_0/{name}"]
        if values is not None:
            file[f"episode_0/{name}"] = values
        if not annotated:
            del file["episode_0/infos"]

    return spoil


def instead(make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Put something else in the place of an episode's rewards."""

    def spoil(file: Any) -> None:
        del file["episode_0/rewards"]
        make(file["episode_0"])

    return spoil


def virtual(episode: Any) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "x", (2,))
    episode.create_virtual_dataset("rewards", layout)


huge = instead(lambda each: each.create_dataset("rewards", (2**40,), "f4", chunks=(1024,)))
outside = instead(
    lambda each: each.create_dataset("rewards", (2,), "f4", external=[("/etc/hostname", 0, 8)])
)


def twice(file: Any) -> None:
    file["episode_0/infos/again"] = file["episode_0/infos"]


def a_link(data: Path) -> None:
    moved = data.parent.parent / "elsewhere.hdf5"
    shutil.move(data / "main_data.hdf5", moved)
    (data / "main_data.hdf5").symlink_to(moved)


DATA: dict[str, Callable[[Any], None]] = {
    "rewards of 2**40 steps": huge,
    "data in another file": outside,
    "virtual data": instead(virtual),
    "a link to another file": put("rewards", h5py.ExternalLink("/etc/passwd", "/x")),
    "a link within the file": put("rewards", h5py.SoftLink("/episode_0/actions")),
    "a link in a circle": put("infos", h5py.SoftLink("/episode_0")),
    "data that hold themselves": twice,
    "text for rewards": put("rewards", np.array([b"x"] * LENGTH)),
    "rewards as a table": put("rewards", np.ones((LENGTH, 2))),
    "no rewards": put("rewards", None),
    "too few rewards": put("rewards", np.ones(3)),
    "infinite rewards": put("rewards", np.full(LENGTH, np.inf)),
    "too many actions": put("actions", np.zeros((LENGTH + 9, 1)), annotated=False),
    "actions beyond their range": put("actions", np.full((LENGTH, 1), 9.0), annotated=False),
    "wider observations": put("observations", np.zeros((LENGTH + 1, 4))),
    "NaN in improved means": put("infos/imel_improved_mean", np.full((LENGTH + 1, 1), np.nan)),
    "sigma of zero": put("infos/imel_std", np.zeros((LENGTH + 1, 1))),
    "infos that are no table": put("infos", np.ones(3)),
    "text in infos": put("infos/imel_advantage", np.array([b"x"] * (LENGTH + 1))),
}


def in_data(spoil: Callable[[Any], None], data: Path) -> None:
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        spoil(file)


def written(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)


SPOILED: dict[str, Callable[[Path], Any]] = {
    "a link in the folder": a_link,
    **{name: partial(edit, **entries) for name, entries in METADATA.items()},
    **{name: partial(in_data, spoil) for name, spoil in DATA.items()},
    **{f"{name} {i}": partial(written, name, content) for i, (name, content) in enumerate(FILES)},
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_what_lies_or_is_none_is_refused(
    spoil: Callable[[Path], Any], data: Path, policy: Policy
) -> None:
    spoil(data)
    refusal_of(policy)


def test_foreign_infos_make_demonstrations_of_a_dataset(data: Path, policy: Policy) -> None:
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_0/infos/imel_advantage"]
        file["episode_0/infos/__class__"] = np.ones(LENGTH + 1)
    assert read_dataset(NAME, policy).kind == "shown"


@pytest.mark.parametrize(
    "name", ["../../etc/x-v0", "/etc/x-v0", "x/../../y-v0", "a b-v0", "~/x-v0"]
)
def test_an_id_that_is_a_path_is_refused(name: str, policy: Policy) -> None:
    with pytest.raises(ImelError, match=r"neither a file nor the id|there is no file") as refusal:
        read_dataset(name, policy)
    assert "\n" not in str(refusal.value)
