"""A policy in one file outside the package goes through every command beside imel's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imel import IMeL
from imel.checkpoints import Checkpoint
from imel.cli.main import main
from imel.errors import CheckpointError
from imel.registry import find_policy, name_of
from small import differing

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_policy.py"
NAME = "own_policy:FourierPolicy"
POLICY = ["--policy", NAME]
SMALL = ["--rollout-size", "256", "--n-envs", "2", "--features", "16", "--bandwidth", "1.5"]
TRAIN = ["train", "Pendulum-v1", *POLICY, *SMALL, "--total-timesteps", "3072", "--evaluations", "0"]
TRAIN += ["--eval-episodes", "1", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the file in it, and a finished run of its policy."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLE, folder)
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        assert main([*TRAIN, "--run-dir", "run"]) == 0
        yield folder
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("own_policy", None)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "imel", *words]


def outcome(run: Path) -> dict[str, Any]:
    return dict(Checkpoint.read(run / "model.safetensors").tensors)


def test_a_killed_run_is_resumed_bit_for_bit(folder: Path) -> None:
    process = subprocess.Popen(command(*TRAIN, "--run-dir", "killed"), cwd=folder)
    while not list((folder / "killed" / "checkpoints").glob("*.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert main(["resume", "killed", *POLICY]) == 0

    assert differing(outcome(folder / "run"), outcome(folder / "killed")) == []


def test_looking_at_a_run_and_exporting_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["eval", "--episodes", "2"], ["why", "--json"], ["lessons"], ["plot"]):
        assert main([words[0], "run", *POLICY, *words[1:]]) == 0, words
    assert '"lessons"' in capsys.readouterr().out
    for kind in ("onnx", "parquet"):
        assert main(["export", "run", *POLICY, "--format", kind, "--episodes", "0"]) == 0
    assert (folder / "run" / "export-onnx" / "policy.onnx").is_file()


def test_a_new_process_that_is_not_told_the_policy_imports_nothing(folder: Path) -> None:
    refused = subprocess.run(command("eval", "run"), cwd=folder, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"--policy {NAME}" in refused.stderr
    told = subprocess.run(command("eval", "run", "--episodes", "1", *POLICY), cwd=folder)
    assert told.returncode == 0


def test_the_explorer_opens_it(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["explore", "run", *POLICY, "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command(*words), cwd=folder)
    try:
        for _ in range(600):
            assert process.poll() is None
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
                    assert b"imel" in page.read()
                    return
            except urllib.error.URLError:
                time.sleep(0.1)
        pytest.fail("the page did not open")
    finally:
        process.terminate()
        process.wait()


def test_it_is_benched_beside_ridge_and_tuned(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--set", "rollout_size=256", "n_envs=2", "features=16"]
    bench = ["bench", "--tasks", "Pendulum-v1", "--algorithms", NAME, "ridge", "--seeds", "0"]
    assert main([*bench, "--steps", "512", "--store", "store", *small]) == 0
    assert "FourierPolicy" in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "store").glob("*.jsonl")) == [
        "own_policy.FourierPolicy.jsonl",
        "ridge.jsonl",
    ]
    tune = ["tune", "Pendulum-v1", *POLICY, "--trials", "2", "--steps", "512", "--seeds", "0"]
    assert main([*tune, "--confirm-seeds", "0", "--study", "study"]) == 0
    assert "bandwidth" in (folder / "study" / "best.json").read_text()


def test_files_hold_its_name_and_loading_asks_for_the_class(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_class = find_policy(NAME)
    assert name_of(policy_class) == NAME
    model = folder / "run" / "model.safetensors"
    assert Checkpoint.read(model).document["policy"] == NAME
    assert IMeL.load(model).policy_class is policy_class  # its module has been imported
    monkeypatch.delitem(sys.modules, "own_policy")
    with pytest.raises(CheckpointError, match="policy_class="):
        IMeL.load(model)
    assert IMeL.load(model, policy_class=policy_class).policy_class is policy_class
