"""Publishing a run and getting it back, by a hub on this machine and by a folder."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from forged import forge, taken_apart
from hub_stand_in import TOKEN, Hub, running_hub
from imel import IMeL
from imel.cli.main import main
from imel.errors import ImelError
from imel.hub import load_from_hub, model_card, pull_from_hub, push_to_hub
from small import BATCH, answers, differing, small_model, tensors_of

REPO = "me/pendulum"
RETURNS = [-130.0, -120.0, -125.0, -90.0, -140.0]
PLAYED: dict[str, Any] = {
    **{"mean": float(np.mean(RETURNS)), "std": float(np.std(RETURNS)), "returns": RETURNS},
    **{"min": min(RETURNS), "max": max(RETURNS), "lengths": [200] * 5},
}
EVALUATION: dict[str, Any] = {
    **{"env": "Pendulum-v1", "timesteps": 2 * BATCH, "seed": 10_000, "episodes": 5},
    "deterministic": PLAYED,
}


@pytest.fixture(scope="module")
def trained() -> IMeL:
    return small_model(trust_region=0.1).learn(2 * BATCH)


@pytest.fixture
def run(tmp_path: Path, trained: IMeL) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    trained.save(folder / "model.safetensors")
    config = {"env": "Pendulum-v1", "seed": 0, "warm_start": "/home/me/secret/demos.parquet"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    (folder / "provenance.json").write_text(json.dumps({"commit": "ab" * 20, "dirty": False}))
    (folder / "curve.png").write_bytes(b"\x89PNG\r\n\x1a\nfigure")
    (folder / "weights.pkl").write_bytes(pickle.dumps({"a": 1}))
    (folder / "notes.txt").write_text("private")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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


# --- to a hub and back ---


def test_a_pushed_run_comes_back_bit_for_bit_and_private_unless_said_otherwise(
    hub: Hub, run: Path, tmp_path: Path, trained: IMeL
) -> None:
    before = files_below(tmp_path)
    assert push_to_hub(run, REPO) == f"{hub.url}/{REPO}"
    model = load_from_hub(REPO)
    assert differing(tensors_of(trained), tensors_of(model)) == []
    np.testing.assert_array_equal(answers(trained), answers(model))
    assert files_below(tmp_path) == before
    assert main(["push", str(run), "me/everyones", "--public"]) == 0
    push_to_hub(run, REPO, private=False)
    assert hub.visibility == {REPO: "private", "me/everyones": "public"}


def test_only_files_of_known_kinds_are_sent_and_fetched(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push_to_hub(run, REPO)
    ((_, files),) = hub.commits[REPO]
    known = {"README.md", "model.safetensors", "config.json", "evaluation.json"}
    assert files.keys() == known | {"provenance.json", "curve.png"}
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert json.loads(files["config.json"])["warm_start"] == "demos.parquet"

    evil = ["evil.pkl", "sub/config.json", "../evil.json", "/etc/evil", "\x1b[2Jevil\nimel: well"]
    hub.commit(REPO, dict.fromkeys(evil, b"x"))
    monkeypatch.chdir(run.parent)
    assert main(["pull", REPO]) == 0
    assert capsys.readouterr().out == "runs/pendulum\n"
    assert files_below(run.parent / "runs") == {"pendulum", *(f"pendulum/{name}" for name in files)}
    assert not [path for path in hub.requests if "evil" in path]


def test_a_revision_is_what_was_published_then(hub: Hub, run: Path, trained: IMeL) -> None:
    push_to_hub(run, REPO)
    first = hub.commits[REPO][0][0]
    small_model().learn(BATCH).save(run / "model.safetensors")
    push_to_hub(run, REPO)
    assert load_from_hub(REPO).num_timesteps == BATCH
    pull_from_hub(REPO, run.parent / "first", revision=first)
    pulled = IMeL.load(run.parent / "first" / "model.safetensors")
    for model in (pulled, load_from_hub(REPO, revision=first)):
        assert differing(tensors_of(trained), tensors_of(model)) == []


def test_a_folder_serves_as_well_and_none_is_overwritten(
    run: Path, trained: IMeL, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["push", "run", "./shared/pendulum", "--license", "mit"]) == 0
    Path("shared/pendulum/evil.pkl").write_bytes(b"x")
    assert main(["pull", "./shared/pendulum"]) == 0
    assert capsys.readouterr().out.splitlines() == ["shared/pendulum", "runs/pendulum"]
    pulled = {path.name for path in Path("runs/pendulum").iterdir()}
    assert pulled == {path.name for path in Path("shared/pendulum").iterdir()} - {"evil.pkl"}
    assert differing(tensors_of(trained), tensors_of(load_from_hub("./shared/pendulum"))) == []
    with pytest.raises(ImelError, match="a folder has no revisions"):
        load_from_hub("./shared/pendulum", revision="v1")

    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for words in (["pull", "./shared/pendulum", "--run-dir", "run"], ["push", "run", "./run"]):
        assert main(words) == 2
        assert "exists already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_the_token_is_in_no_message(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_aWrongOneThatTheServerEchoes")
    for words in (["push", str(run), REPO], ["pull", REPO, "--run-dir", str(run.parent / "new")]):
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"imel: error: {REPO}: ")
        assert said.err.count("\n") == 1
        assert "401" in said.err
        assert "aWrongOne" not in said.out + said.err
    assert hub.commits == {}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("repo", ["me/nothing", "../nothing", "not a name", "./", "/"])
def test_what_is_not_there_is_refused_in_one_line(
    repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = files_below(tmp_path)
    assert main(["pull", repo]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("imel: error: ")
    assert repo.strip("./") in said
    assert files_below(tmp_path) - {"runs"} == before


# --- the card ---


def test_the_card_says_what_the_run_was_and_the_hub_can_read_it(run: Path, tmp_path: Path) -> None:
    card = ModelCard(model_card(run, REPO, "mit"))
    assert (card.data["license"], card.data["library_name"]) == ("mit", "imel")
    (result,) = card.data["eval_results"]
    assert (result.task_type, result.dataset_name) == ("reinforcement-learning", "Pendulum-v1")
    assert result.metric_value == "-121.00 +/- 16.85"
    for text in (
        "**-121.00** (standard error 7.54; worst -140.00, best -90.00)",
        "`trust_region=0.1`",
        "Trained for 128 environment steps, seed 0",
        "imel at commit " + "ab" * 20 + ".",
        'load_from_hub("me/pendulum", env="Pendulum-v1")',
        "![Training returns](curve.png)",
    ):
        assert text in card.text
    assert "policy.png" not in card.text  # which this run has not
    assert "gamma" not in card.text  # as it is by default

    (run / "model.safetensors").rename(tmp_path / "model.safetensors")
    alone = ModelCard(model_card(tmp_path, "me/model"))
    assert alone.data["eval_results"] is None
    assert "an unnamed environment" in alone.text
    assert "No licence was chosen" in alone.text


MARKUP = "1.0 <script>alert(1)</script> | [x](javascript:alert(1))\n# Heading"


def test_a_card_holds_no_markup_of_strangers(run: Path, tmp_path: Path) -> None:
    manifest, tensors = taken_apart(run / "model.safetensors")
    manifest["versions"] |= {"torch": MARKUP, MARKUP: "2"}
    forge(run / "model.safetensors", manifest, tensors)
    own = {"run": manifest["run"]["id"], "commit": MARKUP}
    (run / "provenance.json").write_text(json.dumps(own))
    card = model_card(run, REPO)
    assert not [each for each in ("<script", "[x](", "\n# Heading") if each in card]

    forge(run / "model.safetensors", manifest | {"policy": MARKUP}, tensors)
    (run / "config.json").unlink()
    refused(tmp_path, lambda: push_to_hub(run, str(tmp_path / "pushed")))


# --- runs of strangers, and damaged ones ---


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_too_large_is_neither_fetched_nor_sent(
    name: str, hub: Hub, run: Path, tmp_path: Path
) -> None:
    push_to_hub(run, REPO)
    asked, hub.sizes = len(hub.requests), {name: 1 << 40}
    pulled, pushed = tmp_path / "pulled", str(tmp_path / "pushed")
    attempts: list[Callable[[], object]] = [lambda: pull_from_hub(REPO, pulled)]
    attempts += [lambda: load_from_hub(REPO)] * (name == "model.safetensors")
    for attempt in attempts:
        assert f"{name} is larger than" in refused(tmp_path, attempt)
    assert not [path for path in hub.requests[asked:] if "resolve" in path]

    os.truncate(run / name, 1 << 40)  # which takes no room on disk
    for attempt in (lambda: pull_from_hub(str(run), pulled), lambda: push_to_hub(run, pushed)):
        assert f"{name} is larger than" in refused(tmp_path, attempt)


@pytest.mark.parametrize("name", ["config.json", "evaluation.json", "provenance.json"])
def test_a_table_that_is_none_is_neither_fetched_nor_published(
    name: str, run: Path, tmp_path: Path
) -> None:
    wrong = [b'{"deterministic": {"mean": "high"}}'] * (name == "evaluation.json")
    for content in (b"\x80\x04K\x01.", b"[" * 100_000, *wrong):
        (run / name).write_bytes(content)
        assert name in refused(tmp_path, lambda: pull_from_hub(str(run), tmp_path / "pulled"))
        assert name in refused(tmp_path, lambda: push_to_hub(run, str(tmp_path / "pushed")))


SPOILED: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], object]] = {
    "NaN": lambda _, tensors: tensors["policy/coefficients"].fill_(float("nan")),
    "a foreign tensor": lambda _, tensors: tensors.update({"evil": torch.zeros(3)}),
    "a foreign setting": lambda manifest, _: manifest["settings"].update({"evil": 1}),
    "sizes that are claimed": lambda manifest, _: manifest["settings"].update(memory_size=2**40),
}


@pytest.mark.parametrize("spoilt", ["damaged", *SPOILED])
def test_a_hostile_or_damaged_model_is_neither_fetched_nor_published(
    spoilt: str, run: Path, hub: Hub, tmp_path: Path
) -> None:
    model = run / "model.safetensors"
    push_to_hub(run, REPO)
    if spoilt == "damaged":
        model.write_bytes(model.read_bytes()[:-4] + bytes(4 * [255]))
    else:
        manifest, tensors = taken_apart(model)
        SPOILED[spoilt](manifest, tensors)
        forge(model, manifest, tensors)
    hub.commit(REPO, {model.name: model.read_bytes()})
    asked = len(hub.requests)
    refused(tmp_path, lambda: push_to_hub(run, "me/other"))
    assert len(hub.requests) == asked
    refused(tmp_path, lambda: pull_from_hub(REPO, tmp_path / "pulled"))
    refused(tmp_path, lambda: load_from_hub(REPO))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"r,l,t\nx,y,z\n", b"#{\nr,l,t\nnan,1,1\n", b"r" * 10_000_000]
)
def test_logs_of_a_stranger_are_drawn_or_refused_in_one_line(
    content: bytes, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "monitor.csv").write_bytes(content)
    code, said = main(["plot", str(run)]), capsys.readouterr().err
    assert code == 0 or (code == 2 and said.splitlines()[-1].startswith("imel: error: "))
    assert "Traceback" not in said
    assert len(said) < 2000
