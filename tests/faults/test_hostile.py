"""Row 15: files made to do harm are refused, in bounded memory and time."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import driver
import pytest
from files import header_of, with_header
from harness import CONTEXT

from forged import put_together, taken_apart
from imel import IMeL
from imel.checkpoints.run_checkpoints import latest_checkpoint
from imel.cli.main import main
from imel.errors import ImelError
from small import BATCH, read_checkpoint, small_model

ROOM = 2**29
"""Half a gigabyte, which is far less than what the files below claim to hold."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file, not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "model.safetensors"
    small_model("MkiPolicy", env="Pendulum-v1", n_envs=4).learn(BATCH).save(path)
    return path


def huge_header(content: bytes) -> bytes:
    return struct.pack("<Q", 2**62) + content[8:]


def long_header(content: bytes) -> bytes:
    header, body = header_of(content)
    return struct.pack("<Q", 90_000_000) + json.dumps(header).encode() + b" " * 90_000_000 + body


def overlapping(content: bytes) -> bytes:
    header, body = header_of(content)
    offsets = header["critic/network.0.weight"]["data_offsets"]
    header["critic/network.2.weight"]["data_offsets"] = offsets
    return with_header(header, body)


def a_terabyte(content: bytes) -> bytes:
    header, body = header_of(content)
    entry = header["critic/network.0.weight"]
    entry["shape"], entry["data_offsets"] = [2**38], [0, 2**40]
    return with_header(header, body)


def wrong_shape(content: bytes) -> bytes:
    header, body = header_of(content)
    header["critic/network.0.weight"]["shape"].reverse()
    return with_header(header, body)


def many_names(content: bytes) -> bytes:
    header, body = header_of(content)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return with_header({**{str(i): empty for i in range(20_000)}, **header}, body)


def outcomes_of(paths: list[Path], output: Path) -> list[str]:
    """What loading each of them gives, in a process with little memory and little time."""
    process = CONTEXT.Process(target=driver.load_within, args=(ROOM, paths, output))
    process.start()
    process.join(120)
    process.kill()
    return output.read_text().splitlines()


def test_fault_15_hostile_files_are_refused_in_bounded_memory_and_time(
    whole: Path, tmp_path: Path
) -> None:
    content = whole.read_bytes()
    makers = (huge_header, long_header, overlapping, a_terabyte, wrong_shape, many_names)
    paths = []
    for make in makers:
        paths.append(tmp_path / f"{make.__name__}.safetensors")
        paths[-1].write_bytes(make(content))
    *outcomes, honest = outcomes_of([*paths, whole], tmp_path / "outcomes.txt")
    assert honest == "loaded", "there must be room for an honest file"
    for path, outcome in zip(paths, outcomes, strict=True):
        assert outcome.startswith(f"refused: {path} "), outcome


def test_fault_15_a_manifest_that_asks_for_a_huge_memory_takes_none(
    whole: Path, tmp_path: Path
) -> None:
    manifest, tensors = taken_apart(whole)
    path = tmp_path / "model.safetensors"
    put_together(path, changed(manifest, "settings.memory_size", 10**8), tensors)
    (outcome,) = outcomes_of([path], tmp_path / "outcomes.txt")
    assert outcome.startswith(f"refused: {path} ")


def test_fault_15_another_environments_model_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(whole), "--env", "MountainCarContinuous-v0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "MountainCarContinuous-v0" in line
    for load in (IMeL.load, IMeL.resume):
        with pytest.raises(ImelError, match="not the spaces this model was made for"):
            load(whole, "MountainCarContinuous-v0")

    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text('{"env": "MountainCarContinuous-v0"}')
    shutil.copy(whole, run / "checkpoints" / "iteration-00000002.safetensors")
    assert latest_checkpoint(run / "checkpoints") is not None
    assert main(["resume", str(run), "--allow-differences"]) == 2
    assert not (run / "model.safetensors").exists()


def changed(manifest: dict[str, Any], where: str, value: Any) -> str:
    """The manifest with one entry replaced, as text."""
    table = manifest
    *path, last = where.split(".")
    for name in path:
        table = table[name]
    table[last] = value
    return json.dumps(manifest)


ABSURD = [
    ("settings.memory_size", 10**13),
    ("settings.memory_size", "many"),
    ("settings.unknown", 1),
    ("settings.features", -1),
    ("policy", "os.system"),
    ("n_envs", 10**13),
    ("progress.iteration", "1"),
    ("settings.hidden", [10**7, 10**7]),
    ("n_envs", -1),
    ("seed", -1),
    ("seed", 2**80),
    ("stats_window_size", -1),
    ("progress.episodes", [3]),
    ("progress.successes", ["x"]),
]


@pytest.mark.parametrize(("where", "value"), ABSURD)
def test_fault_15_a_manifest_with_fitting_checksums_and_absurd_values_is_refused(
    where: str, value: Any, whole: Path, tmp_path: Path
) -> None:
    manifest, tensors = taken_apart(whole)
    path = tmp_path / "model.safetensors"
    put_together(path, changed(manifest, where, value), tensors)
    with pytest.raises(ImelError) as refusal:
        IMeL.load(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": ' + "9" * 5000 + "}"], ids=["deep", "long number"]
)
def test_fault_15_json_made_to_break_its_reader_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    put_together(path, text, {})
    with pytest.raises(ImelError, match="model"):
        read_checkpoint(path)


def test_fault_15_a_checkpoint_that_names_no_library_versions_is_refused(
    whole: Path, tmp_path: Path
) -> None:
    manifest, tensors = taken_apart(whole)
    del manifest["versions"]
    path = tmp_path / "iteration-00000002.safetensors"
    put_together(path, json.dumps(manifest), tensors)
    with pytest.raises(ImelError, match="versions"):
        IMeL.load(path)
