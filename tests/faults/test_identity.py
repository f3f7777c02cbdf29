"""Rows 21 to 24: a valid file in the wrong place, an edited plan, another machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from forged import forge, taken_apart
from imel.checkpoints.run_checkpoints import checkpoints_in
from imel.cli.main import main
from imel.errors import ImelError
from imel.runs.stored import find_run

SMALL = "--total-timesteps 384 --n-envs 2 --rollout-size 64 --memory-size 128 --critic-epochs 1"
FLAGS = [*SMALL.split(), "--checkpoint-every", "2", "--eval-episodes", "0"]


def train(folder: Path, *flags: str) -> Path:
    assert main(["train", "Pendulum-v1", *FLAGS, *flags, "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, one of another seed, and one of another policy; not to be changed."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imel.cli.train.draw_run", lambda *_: [])
        mki = ("--policy", "mki", "--gradient-steps", "1")
        return {
            "own": train(place / "own"),
            "twin": train(place / "twin"),
            "seed": train(place / "seed", "--seed", "1"),
            "policy": train(place / "policy", *mki),
        }


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that stopped after its last checkpoint."""
    folder = Path(shutil.copytree(runs["own"], tmp_path / "run"))
    (folder / "model.safetensors").unlink()
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: error: ")
    return line


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gamma": 0.5}, "gamma: 0.995 then, 0.5 now"),
        ({"threads": 2}, "threads: 1 then, 2 now"),
        ({"seed": 3}, "seed: 0 then, 3 now"),
        ({"env": "MountainCarContinuous-v0"}, "env: 'Pendulum-v1' then"),
        ({"features": 16}, "features: 256 then, 16 now"),
        ({"total_timesteps": 512}, "total_timesteps: 384 then, 512 now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("finished", [False, True], ids=["stopped", "finished"])
def test_fault_21_an_edited_config_is_refused_with_what_differs(
    finished: bool,
    changes: dict[str, Any],
    said: str,
    run: Path,
    runs: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if finished:
        shutil.copy(runs["own"] / "model.safetensors", run)
    edit(run, **changes)
    before = (run / "config.json").read_bytes()
    line = refusal(capsys, "resume", run)
    assert said in line
    assert "--allow-differences" in line
    assert (run / "config.json").read_bytes() == before


def test_fault_21_an_edited_config_goes_on_if_allowed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imel.cli.train.draw_run", lambda *_: [])
    edit(run, gamma=0.5)
    assert main(["resume", str(run), "--allow-differences"]) == 0
    assert "goes on at step 256 of 384" in capsys.readouterr().out
    manifest, _ = taken_apart(run / "model.safetensors")
    assert manifest["settings"]["gamma"] == 0.5


@pytest.mark.parametrize("other", ["twin", "seed", "policy"])
def test_fault_22_a_checkpoint_of_another_run_is_refused(
    other: str, run: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoints_in(run / "checkpoints")[-1]
    shutil.copy(runs[other] / "checkpoints" / newest.name, newest)
    assert f"{newest} belongs to another run" in refusal(capsys, "resume", run)
    assert "belongs to another run" in refusal(capsys, "resume", run, "--allow-differences")
    problems = [model.problem for model in find_run(run).models]
    assert problems == [None, f"{newest.name} belongs to another run"]


def test_fault_22_a_checkpoint_of_another_iteration_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = checkpoints_in(run / "checkpoints")
    shutil.copy(older, newest)
    assert "is of iteration 2, not what its name says" in refusal(capsys, "resume", run)


def test_fault_22_a_run_that_nothing_names_is_gone_on_with_only_if_allowed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imel.cli.train.draw_run", lambda *_: [])
    (run / "provenance.json").unlink()
    assert "provenance.json does not name the run" in refusal(capsys, "resume", run)
    assert main(["resume", str(run), "--allow-differences"]) == 0
    manifest, _ = taken_apart(run / "model.safetensors")
    assert json.loads((run / "provenance.json").read_text())["run"] == manifest["run"]["id"]


@pytest.mark.parametrize("argv", [("eval",), ("resume",), ("why",), ("export",), ("plot",)])
@pytest.mark.parametrize("known", [True, False], ids=["by its id", "by its policy"])
def test_fault_23_another_runs_model_in_a_runs_folder_is_refused(
    known: bool,
    argv: tuple[str, ...],
    run: Path,
    runs: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(runs["policy"] / "model.safetensors", run)
    if not known:
        (run / "provenance.json").unlink()
        shutil.rmtree(run / "checkpoints")
    line = refusal(capsys, *argv, run)
    assert ("belongs to another run" if known else "holds mki, not the ridge") in line


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("versions", "numpy", "1.0"),
        ("versions", "mujoco", "absent"),
        ("versions", "numba", "0.60"),
        ("circumstances", "threads", 7),
        ("circumstances", "device", "cuda"),
        ("circumstances", "cpu", "AVX2 of another"),
    ],
)
def test_fault_24_whatever_else_changes_bits_is_listed_and_refused(
    table: str, name: str, value: Any, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoints_in(run / "checkpoints")[-1]
    manifest, tensors = taken_apart(newest)
    manifest[table][name] = value
    forge(newest, manifest, tensors)
    assert f"{name}: {value!r} then, " in refusal(capsys, "resume", run)


def test_fault_24_evaluation_says_that_versions_differ(
    run: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, tensors = taken_apart(runs["own"] / "model.safetensors")
    manifest["versions"]["numpy"] = "1.0"
    forge(run / "model.safetensors", manifest, tensors)
    with pytest.warns(UserWarning, match=r"was made otherwise: numpy: '1\.0' then"):
        assert main(["eval", str(run), "--episodes", "1"]) == 0


def test_fault_22_every_file_of_a_run_carries_its_id(runs: dict[str, Path]) -> None:
    ids = set()
    for run in runs.values():
        own = json.loads((run / "provenance.json").read_text())["run"]
        for path in (run / "model.safetensors", *checkpoints_in(run / "checkpoints")):
            manifest, _ = taken_apart(path)
            assert manifest["run"]["id"] == own
        ids.add(own)
    assert len(ids) == len(runs)


def test_fault_23_a_foreign_model_is_not_published(run: Path, runs: dict[str, Path]) -> None:
    from imel.hub import push_to_hub

    shutil.copy(runs["seed"] / "model.safetensors", run)
    with pytest.raises(ImelError, match="belongs to another run"):
        push_to_hub(run, str(run.parent / "pushed"))
