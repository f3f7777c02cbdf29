"""Row 14: a pickle is refused wherever a file is read, and the code in it does not run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from imel import IMeL
from imel.cli.main import main
from imel.errors import ImelError
from imel.policies import Policy
from small import read_checkpoint, small_model

SUFFIXES = (".safetensors", ".zip", ".pkl", ".pt", ".pth", ".npz", ".json", "")


class Canary:
    """Unpickling this makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.folder,)


def plain_pickle(path: Path, canary: Canary) -> None:
    path.write_bytes(pickle.dumps(canary))


def torch_file(path: Path, canary: Canary) -> None:
    torch.save({"policy": canary}, path)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "read_checkpoint": read_checkpoint,
    "IMeL.load": IMeL.load,
    "IMeL.resume": lambda path: IMeL.resume(path, "Pendulum-v1"),
    "set_parameters": lambda path: small_model().set_parameters(str(path)),
    "policy": lambda path: Policy.load(str(path)),
}


@pytest.mark.parametrize("make", [plain_pickle, torch_file])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_fault_14_a_pickle_under_any_suffix_is_refused_by_every_load_function(
    suffix: str, make: Callable[[Path, Canary], None], tmp_path: Path
) -> None:
    path, folder = tmp_path / f"model{suffix}", tmp_path / "canary"
    make(path, Canary(folder))
    for load in LOADERS.values():
        with pytest.raises(ImelError, match="model"):
            load(path)
    assert not folder.exists()


@pytest.mark.parametrize("make", [plain_pickle, torch_file])
def test_fault_14_a_pickle_in_a_run_is_refused_by_every_command(
    make: Callable[[Path, Canary], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "canary"
    (run / "checkpoints").mkdir(parents=True)
    newest = run / "checkpoints" / "iteration-00000002.safetensors"
    for path in (run / "model.safetensors", newest):
        make(path, Canary(folder))
    refusals = [
        (["eval", str(run), "--env", "Pendulum-v1"], "model.safetensors"),
        (["plot", str(run)], "model.safetensors"),
        (["eval", str(newest), "--env", "Pendulum-v1"], newest.name),
    ]
    make_config(run)
    refusals += [
        (["resume", str(run)], newest.name),
        (["resume", str(run), "--fall-back"], "00002"),
    ]
    for argv, named in refusals:
        assert main(argv) == 2, argv
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("imel: error: ")
        assert named in line

    make(run / "config.json", Canary(folder))
    for argv, _ in refusals:
        assert main(argv) == 2, argv
    assert main(["train", "--config", str(run / "config.json")]) == 2
    assert not folder.exists()


def make_config(run: Path) -> None:
    (run / "config.json").write_text('{"env": "Pendulum-v1"}')
