"""Publishing a run and getting it back, by a hub on this machine and by a folder."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from hub_stand_in import TOKEN, Hub, running_hub
from imel import IMeL
from imel.cli.main import main
from imel.errors import ImelError
from imel.hub import load_from_hub, model_card, pull_from_hub, push_to_hub
from imel.hub.card import interval
from imel.hub.transfer import KNOWN
from imel.runs import layout
from small import BATCH, answers, differing, small_model, tensors_of

RETURNS = [-130.0, -120.0, -125.0, -90.0, -140.0]


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
    played = {"mean": float(np.mean(RETURNS)), "std": float(np.std(RETURNS)), "returns": RETURNS}
    played |= {"min": min(RETURNS), "max": max(RETURNS), "lengths": [200] * 5}
    about = {"env": "Pendulum-v1", "timesteps": 128, "seed": 10_000, "episodes": 5}
    (folder / "evaluation.json").write_text(json.dumps({**about, "deterministic": played}))
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
        yield hub


def test_a_pushed_model_comes_back_bit_for_bit(hub: Hub, run: Path, trained: IMeL) -> None:
    assert push_to_hub(run, "me/pendulum") == f"{hub.url}/me/pendulum"

    model = load_from_hub("me/pendulum")

    assert differing(tensors_of(trained), tensors_of(model)) == []
    np.testing.assert_array_equal(answers(trained), answers(model))


def test_a_new_repository_is_private_unless_said_otherwise(hub: Hub, run: Path) -> None:
    push_to_hub(run, "me/mine")
    push_to_hub(run, "me/everyones", private=False)
    push_to_hub(run, "me/mine", private=False)

    assert hub.visibility == {"me/mine": "private", "me/everyones": "public"}


def test_only_files_of_known_kinds_are_sent(hub: Hub, run: Path) -> None:
    push_to_hub(run, "me/pendulum")

    (_, files), *others = hub.commits["me/pendulum"]
    assert not others
    known = {"README.md", "model.safetensors", "config.json", "evaluation.json"}
    assert set(files) == known | {"provenance.json", "curve.png"}
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert json.loads(files["config.json"])["warm_start"] == "demos.parquet"


def test_pull_fetches_known_files_only_and_names_the_others(hub: Hub, run: Path) -> None:
    push_to_hub(run, "me/pendulum")
    hub.commit("me/pendulum", {"evil.pkl": b"x", "sub/model.safetensors": b"y"})

    left_out = pull_from_hub("me/pendulum", run.parent / "pulled")

    assert left_out == ["evil.pkl", "sub/model.safetensors"]
    files = {path.name for path in (run.parent / "pulled").iterdir()}
    assert files == set(hub.commits["me/pendulum"][0][1])
    fetched = [path for _, path in hub.requests if "/resolve/" in path]
    assert fetched
    assert not [path for path in fetched if "evil" in path or "/sub/" in path]


def test_a_revision_is_what_was_published_then(hub: Hub, run: Path, trained: IMeL) -> None:
    push_to_hub(run, "me/pendulum")
    first = hub.commits["me/pendulum"][0][0]
    small_model().learn(BATCH).save(run / "model.safetensors")
    (run / "evaluation.json").unlink()
    push_to_hub(run, "me/pendulum")

    assert load_from_hub("me/pendulum", revision=first).num_timesteps == 2 * BATCH
    assert load_from_hub("me/pendulum").num_timesteps == BATCH
    pull_from_hub("me/pendulum", run.parent / "first", revision=first)
    pulled = IMeL.load(run.parent / "first" / "model.safetensors")
    assert differing(tensors_of(trained), tensors_of(pulled)) == []


def test_a_damaged_model_is_neither_sent_nor_kept(hub: Hub, run: Path) -> None:
    good = (run / "model.safetensors").read_bytes()
    bad = good[:-4] + bytes(4 * [255])
    push_to_hub(run, "me/pendulum")
    hub.commit("me/pendulum", {"model.safetensors": bad})

    with pytest.raises(ImelError, match="damaged"):
        pull_from_hub("me/pendulum", run.parent / "pulled")
    assert sorted(path.name for path in run.parent.iterdir() if path.name != "cache") == ["run"]

    (run / "model.safetensors").write_bytes(bad)
    with pytest.raises(ImelError, match="damaged"):
        push_to_hub(run, "me/other")
    assert "me/other" not in hub.visibility


@pytest.mark.parametrize("content", [b"GIF89a", b"\x80\x04K\x01."])
def test_what_is_not_what_its_name_says_is_refused(hub: Hub, run: Path, content: bytes) -> None:
    push_to_hub(run, "me/pendulum")
    for name in ("curve.png", "config.json"):
        hub.commit("me/pendulum", {name: content})
        with pytest.raises(ImelError, match=name):
            pull_from_hub("me/pendulum", run.parent / "pulled")
        assert not (run.parent / "pulled").exists()
        hub.commit("me/pendulum", {name: (run / name).read_bytes()})


def test_an_existing_folder_is_not_overwritten(hub: Hub, run: Path) -> None:
    push_to_hub(run, "me/pendulum")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(ImelError, match="exists already"):
        pull_from_hub("me/pendulum", run)
    with pytest.raises(ImelError, match="exists already"):
        push_to_hub(run, str(run))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_the_token_is_in_no_message(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "hf_aWrongOneThatTheServerEchoes"
    monkeypatch.setenv("HF_TOKEN", wrong)

    assert main(["push", str(run), "me/pendulum"]) == 2
    with pytest.raises(ImelError) as caught:
        load_from_hub("me/pendulum", token=wrong + "2")

    said = capsys.readouterr()
    assert said.err.startswith("imel: error: me/pendulum: ")
    assert said.err.count("\n") == 1
    assert "401" in said.err
    assert "401" in str(caught.value)
    assert "aWrongOne" not in said.out + said.err + str(caught.value)
    assert hub.commits == {}


@pytest.mark.parametrize("repo", ["me/nothing", "../nothing", "not a name"])
def test_what_is_not_there_is_refused_in_one_line(
    repo: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", repo, "--run-dir", str(tmp_path / "pulled")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("imel: error: ")
    assert said.count("\n") == 1
    assert repo.strip(".") in said
    assert not (tmp_path / "pulled").exists()


def test_a_folder_serves_as_well(
    run: Path, trained: IMeL, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["push", "run", "./shared/pendulum", "--license", "mit"]) == 0
    Path("shared/pendulum/evil.pkl").write_bytes(b"x")
    assert main(["pull", "./shared/pendulum"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "shared/pendulum",
        "left out, of no known kind: evil.pkl",
        "runs/pendulum",
    ]
    pulled = {path.name for path in Path("runs/pendulum").iterdir()}
    assert pulled == {path.name for path in Path("shared/pendulum").iterdir()} - {"evil.pkl"}
    assert differing(tensors_of(trained), tensors_of(load_from_hub("./shared/pendulum"))) == []


def test_the_hub_can_read_the_card(run: Path) -> None:
    data = ModelCard(model_card(run, "me/pendulum", "mit")).data

    assert (data["license"], data["library_name"]) == ("mit", "imel")
    assert "reinforcement-learning" in data["tags"]
    (result,) = data["eval_results"]
    assert result.task_type == "reinforcement-learning"
    assert result.dataset_name == "Pendulum-v1"
    assert result.metric_value == "-121.00 +/- 16.85"


def test_the_card_says_what_the_run_was(run: Path) -> None:
    card = model_card(run, "me/pendulum")
    low, high = interval(RETURNS) or (0.0, 0.0)

    assert f"| 95 % interval of the mean | {low:.2f} to {high:.2f} |" in card
    assert "| `trust_region` | `0.1` |" in card
    assert "| environment steps | 128 |" in card
    assert "| commit of imel | " + "ab" * 20 + " |" in card
    assert 'load_from_hub("me/pendulum", env="Pendulum-v1")' in card
    assert "![Return of the training episodes](curve.png)" in card
    assert "policy.png" not in card  # which this run has not
    assert "No licence was chosen" in card
    assert "gamma" not in card  # as it is by default


def test_the_interval_is_over_episodes() -> None:
    low, high = interval(RETURNS) or (0.0, 0.0)
    assert min(RETURNS) < low < np.mean(RETURNS) < high < max(RETURNS)
    assert interval([5.0]) is None
    assert interval([5.0, 5.0]) == (5.0, 5.0)


def test_a_model_without_a_run_has_a_card(tmp_path: Path, trained: IMeL) -> None:
    trained.save(tmp_path / "model.safetensors")
    card = ModelCard(model_card(tmp_path, "me/model"))
    assert card.data["eval_results"] is None
    assert "an unnamed environment" in card.text


def test_what_is_published_are_files_of_a_run() -> None:
    names = {value for value in vars(layout).values() if isinstance(value, str)}
    assert set(KNOWN) - {"README.md"} <= names


def test_the_package_is_imported_only_where_it_is_used() -> None:
    code = (
        "import sys, imel, imel.hub, imel.datasets\n"
        "from imel.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "assert not {'huggingface_hub', 'minari', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_the_package_the_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImelError, match=r"imel\[hub\]"):
        push_to_hub(run, "me/pendulum")
