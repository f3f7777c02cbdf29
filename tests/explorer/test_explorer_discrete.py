"""The tools on a run with discrete actions: the explorer, words, pictures, files, a warm start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from explorer.conftest import Page, opened
from imel import IMeL
from imel.cli.main import main
from imel.hub import load_from_hub, push_to_hub
from imel.pictures.run_pictures import policy_surface, update_step
from imel.policies import Policy
from imel.policies.names import names_for
from imel.runs.stored import find_run


@pytest.fixture(scope="module")
def cart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("discrete") / "run"
    size = ["--n-envs", "4", "--rollout-size", "256", "--memory-size", "512"]
    length = ["--total-timesteps", "1536", "--eval-episodes", "2", "--checkpoint-every", "3"]
    assert main(["train", "CartPole-v1", *size, *length, "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def page(cart: Path) -> Iterator[Page]:
    yield from opened(cart)


def test_explorer_takes_logits_apart_and_plays_choices(page: Page) -> None:
    for kind in ("sampled", "mean"):
        episode = page.played(page.newest, 1, kind)
        _, arrays = page.arrays("episode", episode=episode)
        assert (np.sort(arrays["actions"], axis=1) == [0.0, 1.0]).all(), "one option each"

    answer, _ = page.step(episode, 0, page.newest, "run")
    assert answer["std"] == [0.0, 0.0]
    assert sum(answer["mean"]) == pytest.approx(0.0, abs=1e-4)
    assert "%" in answer["sentence"], "what is done, by probability"
    taken = answer["lessons"][0]
    reduced = page.forget([taken["row"]])["model"]
    left = np.array(answer["mean"]) - taken["adds"]
    np.testing.assert_allclose(page.step(episode, 0, reduced, "run")[0]["mean"], left, atol=1e-4)


def test_words_say_what_is_done(cart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(cart), "--step", "3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["explained"]
    assert found["action_names"] == ["push left", "push right"]
    chosen = found["action_names"][int(np.argmax(found["mean"]))]
    assert found["sentence"].startswith(f"{chosen} ")
    assert found["answer"] in found["sentence"]
    logits = np.exp(found["mean"])
    np.testing.assert_allclose(found["probabilities"], logits / logits.sum(), atol=1e-6)
    first = str(found["lessons"][0]["episodes"])
    assert main(["why", str(cart), "--step", "3", "--without-lesson", first]) == 0
    text = capsys.readouterr().out
    assert f"{chosen} ({100 * max(found['probabilities']):.0f} %)" in text
    assert "adds to the logits of push left, push right\n" in text
    assert "] in the logits of push left, push right\n" in text


def test_pictures_show_probabilities(cart: Path) -> None:
    policy = Policy.load(str(cart / "model.safetensors"))
    names = names_for("CartPole-v1", policy.dimensions)
    surface = policy_surface(policy, "a run", names, action=1)
    assert surface.span == (0.0, 1.0)
    assert surface.action_label == "probability of: push right"
    for values in (surface.means, surface.old_means, surface.improved_means):
        assert ((values >= 0.0) & (values <= 1.0)).all()
    other = policy_surface(policy, "a run", names, action=0)
    np.testing.assert_allclose(surface.means + other.means, 1.0)
    step = update_step(find_run(cart), None, 1)
    assert step.action_label == "probability of: push right"
    assert "pole angle" in " ".join(step.axis_labels[0].split())
    np.testing.assert_allclose(step.old_means, surface.old_means[-len(step.old_means) :])


def test_exported_memory_makes_a_warm_start(cart: Path, tmp_path: Path) -> None:
    out = tmp_path / "export"
    flags = ["--format", "parquet", "--episodes", "1", "--out", str(out)]
    assert main(["export", str(cart), *flags]) == 0
    settings = {"n_envs": 4, "rollout_size": 256, "memory_size": 512, "seed": 0}
    model = IMeL("RidgePolicy", "CartPole-v1", **settings)  # type: ignore[arg-type]
    model.warm_start(out / "memory.parquet")
    old = Policy.load(str(cart / "model.safetensors"))
    assert len(model.policy.memory) == len(old.memory) == 512
    states = old.memory.column("states")
    asked = old.memory.column("improved_means")[:, 0] > 0
    agrees = (model.policy.act(states)[0][:, 0] > 0) == asked
    assert float(agrees.float().mean()) > 0.7, "it does as the improved logits ask"
    other = IMeL("RidgePolicy", "Acrobot-v1", **settings)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="its actions are from"):
        other.warm_start(out / "memory.parquet")


def test_shared_run_acts_alike(cart: Path, tmp_path: Path) -> None:
    push_to_hub(cart, str(tmp_path / "shared"))
    model = load_from_hub(str(tmp_path / "shared"))
    states = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    old = Policy.load(str(cart / "model.safetensors"))
    expected = old.predict(states, deterministic=True)[0]
    np.testing.assert_array_equal(model.predict(states, deterministic=True)[0], expected)
