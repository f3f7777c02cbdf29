"""A hub that lies, and runs of strangers that are pulled, pushed on or loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forged import forge, taken_apart
from hub_stand_in import TOKEN, Hub, running_hub
from imel import IMeL
from imel.cli.main import main
from imel.errors import ImelError
from imel.hub import load_from_hub, model_card, pull_from_hub, push_to_hub
from small import BATCH, small_model

REPO = "me/pendulum"
RETURNS = [-130.0, -120.0]
PLAYED = {"mean": -125.0, "std": 5.0, "min": -130.0, "max": -120.0, "returns": RETURNS}
EVALUATION: dict[str, Any] = {
    **{"env": "Pendulum-v1", "timesteps": BATCH, "seed": 1, "episodes": 2},
    "deterministic": PLAYED,
}


@pytest.fixture(scope="module")
def trained() -> IMeL:
    return small_model(env="Pendulum-v1").learn(BATCH)


@pytest.fixture
def run(trained: IMeL, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    trained.save(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"env": "Pendulum-v1"}))
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    return folder


@pytest.fixture
def hub(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with the run in it."""
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
        (tmp_path / "scratch").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        hub.commit(REPO, {path.name: path.read_bytes() for path in run.iterdir()})
        yield hub


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def refused(tmp_path: Path, attempt: Callable[[], object]) -> str:
    """In one line, and nothing is left."""
    before = files_below(tmp_path)
    with pytest.raises(ImelError) as refusal:
        attempt()
    text = str(refusal.value)
    assert text.isprintable(), text
    assert len(text) < 1500
    assert files_below(tmp_path) == before
    return text


def test_an_honest_hub_serves(hub: Hub, tmp_path: Path) -> None:
    assert pull_from_hub(REPO, tmp_path / "pulled") == []
    assert load_from_hub(REPO).num_timesteps == BATCH
    assert not list((tmp_path / "scratch").iterdir())


# --- a hub that lies ---

LIES: dict[str, dict[str, Any]] = {
    "siblings that are none": {"siblings": 3},
    "siblings without names": {"siblings": [{}]},
    "names that are none": {"siblings": [{"rfilename": {"a": 1}}, {"rfilename": None}]},
    "no siblings": {"siblings": None},
    "a file that is not there": {"siblings": [{"rfilename": "policy.png"}]},
    "no commit": {"sha": None, "siblings": []},
    "a commit that is a path": {"sha": "../../../../etc"},
    "a commit that is a number": {"sha": 5},
}


@pytest.mark.parametrize("lies", LIES.values(), ids=LIES.keys())
def test_answers_that_are_none_are_refused(lies: dict[str, Any], hub: Hub, tmp_path: Path) -> None:
    hub.lies = lies
    assert REPO in refused(tmp_path, lambda: pull_from_hub(REPO, tmp_path / "pulled"))
    refused(tmp_path, lambda: load_from_hub(REPO))


def test_names_that_are_paths_are_not_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = ["../evil.json", "/etc/evil", "sub/../../evil", "\x1b[2Jx\nimel: all is well"]
    many = [f"{number}.bin" for number in range(1000)]
    known = [path.name for path in (tmp_path / "run").iterdir()]
    hub.lies = {"siblings": [{"rfilename": name} for name in [*known, *evil, *many]]}
    monkeypatch.chdir(tmp_path)
    assert main(["pull", REPO]) == 0
    line, place = capsys.readouterr().out.splitlines()
    assert place == "runs/pendulum"
    assert line.startswith("left out")
    assert line.isprintable()
    assert len(line) < 500
    assert files_below(tmp_path / "runs") == {"pendulum", *(f"pendulum/{name}" for name in known)}
    assert not [path for _, path in hub.requests if "evil" in path]


@pytest.mark.parametrize("name", ["ETag", "X-Repo-Commit"])
def test_headers_that_are_paths_write_nothing_elsewhere(
    name: str, hub: Hub, tmp_path: Path
) -> None:
    hub.headers = {name: "../../../../evil"}
    before = files_below(tmp_path)
    if name == "ETag":  # a part of the name under which the client keeps what it has received
        refused(tmp_path, lambda: load_from_hub(REPO))
    else:
        assert load_from_hub(REPO).num_timesteps == BATCH
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_without_end_is_not_fetched_for_ever(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.hub.transfer._LARGEST", 1 << 20)
    monkeypatch.setattr("imel.hub.transfer.LARGEST_FILE", 1 << 20)
    hub.endless = True
    hub.commit(REPO, {"model.safetensors": b"x"} if name == "model.safetensors" else {})
    said = refused(tmp_path, lambda: pull_from_hub(REPO, tmp_path / "pulled"))
    assert "is larger than 1 MiB" in said
    assert "is larger than 1 MiB" in refused(tmp_path, lambda: load_from_hub(REPO))


def test_a_token_is_not_sent_elsewhere(hub: Hub, tmp_path: Path) -> None:
    with running_hub() as other:
        hub.elsewhere = other.url.replace("127.0.0.1", "localhost")
        refused(tmp_path, lambda: load_from_hub(REPO))
        assert other.authorised
        assert not [token for token in other.authorised if token and TOKEN in token]


# --- runs of strangers ---


def test_a_sparse_model_is_not_copied(run: Path, tmp_path: Path) -> None:
    os.truncate(run / "model.safetensors", 1 << 40)  # which takes no room on disk
    for attempt in (
        lambda: pull_from_hub(str(run), tmp_path / "pulled"),
        lambda: push_to_hub(run, str(tmp_path / "pushed")),
        lambda: load_from_hub(str(run)),
    ):
        assert "model.safetensors is larger than" in refused(tmp_path, attempt)


@pytest.mark.parametrize("place", ["./", "..", "/"])
def test_a_place_without_a_name_needs_a_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["pull", place]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: error: ")
    assert files_below(tmp_path) == {"here"}


def played(**entries: Any) -> dict[str, Any]:
    return {**EVALUATION, "deterministic": {**PLAYED, **entries}}


FALSE: dict[str, dict[str, Any]] = {
    "a better mean": played(mean=1e6),
    "a better best": played(max=1e6),
    "more episodes": {**EVALUATION, "episodes": 1000},
    "another task": {**EVALUATION, "env": "HalfCheetah-v5"},
    "more steps": {**EVALUATION, "timesteps": 10**9},
    "NaN": played(std=float("nan")),
    "returns as text": played(returns=["<script>"]),
}


@pytest.mark.parametrize("document", FALSE.values(), ids=FALSE.keys())
def test_an_evaluation_that_lies_is_neither_fetched_nor_published(
    document: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    (run / "evaluation.json").write_text(json.dumps(document))
    for attempt in (
        lambda: pull_from_hub(str(run), tmp_path / "pulled"),
        lambda: push_to_hub(run, str(tmp_path / "pushed")),
    ):
        assert "evaluation.json is not" in refused(tmp_path, attempt)


MARKUP = "1.0 <script>alert(1)</script> | [x](javascript:alert(1))\n# Heading"


def test_a_card_holds_no_markup_of_strangers(run: Path) -> None:
    manifest, tensors = taken_apart(run / "model.safetensors")
    manifest["versions"]["torch"] = MARKUP
    manifest["versions"][MARKUP] = "2"
    forge(run / "model.safetensors", manifest, tensors)
    (run / "provenance.json").write_text(
        json.dumps({"run": manifest["run"]["id"], "commit": MARKUP})
    )
    card = model_card(run, REPO)
    assert "<script" not in card
    assert "[x](" not in card
    assert "\n# Heading" not in card


def test_a_policy_whose_name_is_markup_is_not_published(run: Path, tmp_path: Path) -> None:
    manifest, tensors = taken_apart(run / "model.safetensors")
    manifest["policy"] = MARKUP
    forge(run / "model.safetensors", manifest, tensors)
    (run / "config.json").unlink()
    refused(tmp_path, lambda: push_to_hub(run, str(tmp_path / "pushed")))


SPOILED: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], object]] = {
    "NaN": lambda _, tensors: tensors["policy/coefficients"].fill_(float("nan")),
    "another type": lambda _, tensors: tensors.update(
        {"policy/coefficients": tensors["policy/coefficients"].half()}
    ),
    "a foreign tensor": lambda _, tensors: tensors.update({"evil": torch.zeros(3)}),
    "a foreign setting": lambda manifest, _: manifest["settings"].update({"evil": 1}),
    "sizes that are claimed": lambda manifest, _: manifest["settings"].update(memory_size=2**40),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_hostile_model_is_neither_fetched_nor_published(
    spoil: Callable[[dict[str, Any], dict[str, torch.Tensor]], object],
    run: Path,
    hub: Hub,
    tmp_path: Path,
) -> None:
    manifest, tensors = taken_apart(run / "model.safetensors")
    spoil(manifest, tensors)
    forge(run / "model.safetensors", manifest, tensors)
    hub.commit(REPO, {"model.safetensors": (run / "model.safetensors").read_bytes()})
    asked = len(hub.requests)
    refused(tmp_path, lambda: push_to_hub(run, "me/other"))
    assert len(hub.requests) == asked
    refused(tmp_path, lambda: pull_from_hub(REPO, tmp_path / "pulled"))
    refused(tmp_path, lambda: load_from_hub(REPO))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"r,l,t\n" + b"x,y,z\n", b"#{\nr,l,t,steps\nnan,1,1,1\n", b"r" * 10_000_000],
    ids=["empty", "no text", "no numbers", "NaN", "one long line"],
)
def test_logs_of_a_stranger_are_drawn_or_refused_in_one_line(
    content: bytes, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "monitor.csv").write_bytes(content)
    code = main(["plot", str(run)])
    said = capsys.readouterr().err
    assert code in (0, 2)
    assert code == 0 or said.splitlines()[-1].startswith("imel: error: ")
    assert "Traceback" not in said
    assert len(said) < 2000
