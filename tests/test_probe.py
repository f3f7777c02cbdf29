"""Interpolators judged apart from returns: the measures have analytic answers, and anyone's class
takes part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env

from imel.cli.main import main
from imel.distributions import Gaussian
from imel.errors import ImelError, SettingsError
from imel.probe import contestants
from imel.probe.contestants import CONTESTANTS, find_contestant
from imel.probe.measures import (
    KL,
    Judgement,
    Memories,
    acting_error,
    folds_of,
    gain,
    judge,
    memories_of,
)
from pages import ROOT, blocks
from small import small_model

Array = NDArray[Any]
N, EPISODES, STD = 4000, 40, 0.5
SLOPES = torch.tensor([[0.6], [0.0], [-0.3]])


class Noise:
    """Predicts what has nothing to do with anything."""

    def fit(self, states: Array, values: Array) -> None:
        self.width = values.shape[1]

    def predict(self, states: Array) -> Array:
        return np.random.default_rng(len(states)).normal(size=(len(states), self.width))


class Narrow(Noise):
    """Predicts too few values."""

    def predict(self, states: Array) -> Array:
        return np.zeros(len(states) - 1)


class Lost(Noise):
    """Predicts NaN."""

    def predict(self, states: Array) -> Array:
        return np.full((len(states), self.width), np.nan)


@pytest.fixture(scope="module")
def linear_field() -> Memories:
    """Memories whose expected policy gradient is f(s) / sigma with f linear: A = f(s) noise."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(N, 3, generator=generator)
    noise = torch.randn(N, 1, generator=generator)  # (a - mu) / sigma
    advantages = (states @ SLOPES) * noise
    means, stds = 0.3 * states[:, :1] + 0.1, torch.full((N, 1), STD)
    gradients = (advantages * noise / STD).double()
    return Memories(
        states,
        means,
        (means + 0.1 * gradients).float(),
        stds,
        gradients,
        torch.arange(N) // (N // EPISODES),
        Gaussian(1),
    )


def judged(memories: Memories, name: str) -> Judgement:
    return judge(name, find_contestant(name), memories, folds_of(memories.episodes, 4), seed=0)


def test_gain_of_the_true_field_is_the_analytic_one(linear_field: Memories) -> None:
    # delta = c f with c^2 E f^2 / (2 sigma^2) = KL, so E[f / sigma . delta] = sqrt(2 KL E f^2)
    best = float((2.0 * KL * SLOPES.square().sum()) ** 0.5)
    found = gain(linear_field, linear_field.states @ SLOPES)
    assert found.value == pytest.approx(best, abs=3.0 * found.error)
    assert 0.0 < found.error < 0.1 * best
    opposite = gain(linear_field, -5.0 * linear_field.states @ SLOPES)
    assert opposite.value == pytest.approx(-found.value), "the length of a shift does not matter"


def test_linear_and_ridge_win_where_improvements_are_linear(linear_field: Memories) -> None:
    best = float((2.0 * KL * SLOPES.square().sum()) ** 0.5)
    names = ("constant", "linear", "ridge", "nearest", f"{__name__}.Noise")
    constant, linear, ridge, nearest, noise = (judged(linear_field, name) for name in names)
    assert linear.gain.value > 0.9 * best
    assert ridge.gain.value > 0.9 * best
    assert nearest.gain.value < min(linear.gain.value, ridge.gain.value)
    for each in (constant, noise):
        assert abs(each.gain.value) < 3.0 * each.gain.error
        assert each.gain.value < 0.2 * best


def test_error_is_a_share_of_variance(linear_field: Memories) -> None:
    assert judged(linear_field, "constant").misfit.value == pytest.approx(1.0, abs=0.01)
    # Improvements are c f noise^2: their mean square is 3 c^2 f^2, their variance 2 c^2 f^2. Linear
    # interpolation finds mean and expected improvement, the acting mean knows the former only
    linear = judged(linear_field, "linear").misfit
    assert linear.value == pytest.approx(2.0 / 3.0 * acting_error(linear_field), abs=linear.error)


def test_standard_errors_are_those_of_independent_episodes() -> None:
    # Ten equal rows an episode are one observation, not ten
    values = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, ones = values.repeat_interleave(10)[:, None], torch.ones(500, 1)
    memories = Memories(rows.float(), ones, ones, ones, rows, torch.arange(500) // 10, Gaussian(1))
    scale = (2.0 * KL) ** 0.5  # a shift of one has the KL 1/2
    assert gain(memories, ones).value == pytest.approx(scale * float(values.mean()))
    error = scale * float(values.std()) / 50**0.5
    assert gain(memories, ones).error == pytest.approx(error)


def test_folds_leave_out_whole_episodes_and_every_memory_once() -> None:
    episodes = torch.tensor([7] * 30 + [1] * 5 + [2] * 5 + [9] * 20 + [1] * 5)
    folds = folds_of(episodes, 3)
    assert sorted(torch.cat(folds).tolist()) == list(range(65))
    held = [set(episodes[rows].tolist()) for rows in folds]
    assert held == [{7}, {9}, {1, 2}]
    assert len(folds_of(episodes, 10)) == 4, "no more folds than episodes"
    with pytest.raises(ImelError, match="one episode"):
        folds_of(torch.zeros(5), 2)


def test_a_held_out_episode_is_not_seen(linear_field: Memories) -> None:
    seen: list[torch.Tensor] = []

    def fit(context: Any, generator: torch.Generator) -> Any:
        seen.append(context.episodes)
        return lambda states: torch.zeros(len(states), 1)

    folds = folds_of(linear_field.episodes, 4)
    judge("spy", fit, linear_field, folds, seed=0)
    assert len(seen) == 8, "means and improvements, fold by fold"
    for number, episodes in enumerate(seen):
        assert not torch.isin(episodes, linear_field.episodes[folds[number // 2]]).any()


@pytest.mark.parametrize("policy", ["RidgePolicy", "NearestPolicy"])
@pytest.mark.parametrize("discrete", [False, True])
def test_every_kind_of_run_can_be_probed(policy: str, discrete: bool) -> None:
    env = make_vec_env("CartPole-v1", 4) if discrete else None
    model = small_model(policy, env)
    with pytest.raises(ImelError, match="nothing to probe"):
        memories_of(model.policy)
    model.learn(256)
    memories = memories_of(model.policy)
    if policy == "NearestPolicy" and not discrete:  # improved once already, from where it acted
        asked = model.policy.memory.column("improved_means") - memories.means
        cosine = torch.cosine_similarity(asked, memories.gradients.float(), dim=1)
        assert cosine.median() == pytest.approx(1.0)
    # Along what each memory asks for the gain is as large as it can be
    found = gain(memories, memories.gradients.float())
    assert found.value > 5.0 * abs(judged(memories, "constant").gain.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probed")
    model = small_model(rollout_size=128, memory_size=512)
    model.learn(512)
    model.save(folder / "model")
    return folder / "model.safetensors"


def test_probe_prints_a_table_and_writes_json_and_picture(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestants, "_ROUNDS", 1)
    assert main(["probe", str(run)]) == 0
    printed = capsys.readouterr().out
    document = json.loads((run.parent / "probe.json").read_text())
    found = document["interpolators"]
    assert {each["name"] for each in found} == set(CONTESTANTS)
    gains = [each["gain"][0] for each in found]
    assert gains == sorted(gains, reverse=True)
    assert document["memories"] == 512
    for each in found:
        assert f"{each['gain'][0]:+.4f} ± {each['gain'][1]:.4f}" in printed
    assert (run.parent / "probe.png").stat().st_size > 10_000
    assert main(["probe", str(run), "--interpolators", "mki", "ridge"]) == 0
    again = json.loads((run.parent / "probe.json").read_text())["interpolators"]
    for each in again:  # the same whoever else takes part
        before = next(one for one in found if one["name"] == each["name"])
        assert (each["gain"], each["misfit"]) == (before["gain"], before["misfit"])


def test_the_class_of_the_documentation_takes_part(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = blocks((ROOT / "docs" / "questions-probe.md").read_text(), "python")
    (tmp_path / "mine.py").write_text(shown.body)
    monkeypatch.chdir(tmp_path)
    assert main(["probe", str(run), "--interpolators", "constant", "mine.Local"]) == 0
    found = json.loads((run.parent / "probe.json").read_text())["interpolators"]
    assert {each["name"] for each in found} == {"constant", "mine.Local"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("rigde", "did you mean 'ridge'"),
        ("nowhere.Mine", "no interpolator 'nowhere.Mine'"),
        ("json.Missing", "no interpolator 'json.Missing'"),
        ("json.JSONDecoder", "no methods fit"),
        (f"{__name__}.Narrow", r"failed: ValueError: \(\d+,\) predicted instead of"),
        (f"{__name__}.Lost", "not finite"),
    ],
)
def test_an_interpolator_that_is_none_is_refused_by_name(
    name: str, problem: str, linear_field: Memories
) -> None:
    with pytest.raises((ImelError, SettingsError), match=problem):
        judged(linear_field, name)
