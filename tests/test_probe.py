"""Interpolators judged apart from returns: the measures have analytic answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import interpolators, probe
from benchmarks.interpolators import INTERPOLATORS, find_interpolator
from benchmarks.probe import KL, Judgement, Memories, folds_of, gain, judge, memories_of
from imel.distributions import Gaussian
from imel.errors import ImelError
from pages import ROOT, blocks
from small import small_model

N, EPISODES, STD = 4000, 40, 0.5
SLOPES = torch.tensor([[0.6], [0.0], [-0.3]])
BEST = float((2.0 * KL * SLOPES.square().sum()) ** 0.5)
"""delta = c f with c^2 E f^2 / (2 sigma^2) = KL, so E[f / sigma . delta] = sqrt(2 KL E f^2)."""


@pytest.fixture(scope="module")
def linear_field() -> Memories:
    """Memories whose expected policy gradient is f(s) / sigma with f linear: A = f(s) noise."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(N, 3, generator=generator)
    noise = torch.randn(N, 1, generator=generator)  # (a - mu) / sigma
    means, gradients = 0.3 * states[:, :1] + 0.1, (states @ SLOPES) * noise.square() / STD
    episodes = torch.arange(N) // (N // EPISODES)
    improved, stds = means + 0.1 * gradients, torch.full((N, 1), STD)
    return Memories(states, means, improved, stds, gradients.double(), episodes, Gaussian(1))


def judged(memories: Memories, name: str, fit: Any = None) -> Judgement:
    fit = fit or find_interpolator(name)
    return judge(name, fit, memories, folds_of(memories.episodes, 4), seed=0)


def test_gain_of_the_true_field_is_the_analytic_one(linear_field: Memories) -> None:
    found = gain(linear_field, linear_field.states @ SLOPES)
    assert found.value == pytest.approx(BEST, abs=3.0 * found.error)
    assert 0.0 < found.error < 0.1 * BEST
    opposite = gain(linear_field, -5.0 * linear_field.states @ SLOPES)
    assert opposite.value == pytest.approx(-found.value), "the length of a shift does not matter"


def test_linear_and_ridge_win_where_improvements_are_linear(linear_field: Memories) -> None:
    names = ("constant", "linear", "ridge", "nearest")
    constant, linear, ridge, nearest = (judged(linear_field, name) for name in names)
    guess = judged(linear_field, "guess", lambda *_: lambda states: torch.randn(len(states), 1))
    best = min(linear.gain.value, ridge.gain.value)
    assert best > max(0.9 * BEST, nearest.gain.value)
    for each in (constant, guess):
        assert abs(each.gain.value) < min(3.0 * each.gain.error, 0.2 * BEST)
    # The error is a share of variance. Improvements are c f noise^2: their mean square is
    # 3 c^2 f^2, their variance 2 c^2 f^2. Linear interpolation finds mean and expected
    # improvement, the acting mean knows the former only
    assert constant.misfit.value == pytest.approx(1.0, abs=0.01)
    expected = 2.0 / 3.0 * probe.acting_error(linear_field)
    assert linear.misfit.value == pytest.approx(expected, abs=linear.misfit.error)


def test_standard_errors_are_those_of_independent_episodes() -> None:
    # Ten equal rows an episode are one observation, not ten
    values = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, ones = values.repeat_interleave(10)[:, None], torch.ones(500, 1)
    memories = Memories(rows.float(), ones, ones, ones, rows, torch.arange(500) // 10, Gaussian(1))
    scale = (2.0 * KL) ** 0.5  # a shift of one has the KL 1/2
    expected = (scale * float(values.mean()), scale * float(values.std()) / 50**0.5)
    assert gain(memories, ones) == pytest.approx(expected)


def test_folds_leave_out_whole_episodes_and_every_memory_once(linear_field: Memories) -> None:
    episodes = torch.tensor([7] * 30 + [1] * 5 + [2] * 5 + [9] * 20 + [1] * 5)
    folds = folds_of(episodes, 3)
    assert sorted(torch.cat(folds).tolist()) == list(range(65))
    assert [set(episodes[rows].tolist()) for rows in folds] == [{7}, {9}, {1, 2}]
    assert len(folds_of(episodes, 10)) == 4, "no more folds than episodes"
    with pytest.raises(ImelError, match="one episode"):
        folds_of(torch.zeros(5), 2)
    seen: list[torch.Tensor] = []

    def spy(context: Any, generator: torch.Generator) -> Any:
        seen.append(context.episodes)
        return lambda states: torch.zeros(len(states), 1)

    judged(linear_field, "spy", spy)
    assert len(seen) == 8, "means and improvements, fold by fold"
    for number, fitted in enumerate(seen):
        held = linear_field.episodes[folds_of(linear_field.episodes, 4)[number // 2]]
        assert not torch.isin(fitted, held).any()


@pytest.mark.parametrize("policy", ["RidgePolicy", "NearestPolicy"])
@pytest.mark.parametrize("discrete", [False, True])
def test_every_kind_of_run_can_be_probed(policy: str, discrete: bool) -> None:
    model = small_model(policy, make_vec_env("CartPole-v1", 4) if discrete else None)
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


def test_probe_prints_a_table_and_writes_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpolators, "_ROUNDS", 1)
    monkeypatch.chdir(tmp_path)
    small_model(rollout_size=128, memory_size=512).learn(512).save("model")

    def probed(*arguments: str) -> list[dict[str, Any]]:
        probe.main(["model.safetensors", *arguments])
        found: list[dict[str, Any]] = json.loads(Path("probe.json").read_text())["interpolators"]
        return found

    found = probed()
    printed = capsys.readouterr().out
    assert {each["name"] for each in found} == set(INTERPOLATORS)
    gains = [each["gain"][0] for each in found]
    assert gains == sorted(gains, reverse=True)
    for each in found:
        assert f"{each['gain'][0]:+.4f} ± {each['gain'][1]:.4f}" in printed
    assert Path("probe.png").stat().st_size > 10_000
    (shown,) = blocks((ROOT / "docs" / "questions-probe.md").read_text(), "python")
    Path("mine.py").write_text(shown.body)  # the class of the documentation takes part
    again = {each["name"]: each for each in probed("--interpolators", "mki", "ridge", "mine.Local")}
    assert again.keys() == {"mki", "ridge", "mine.Local"}
    for each in found:  # the same whoever else takes part
        same = again.get(each["name"], each)
        assert (each["gain"], each["misfit"]) == (same["gain"], same["misfit"])


@pytest.mark.parametrize(
    ("name", "fit", "problem"),
    [
        ("rigde", None, "did you mean 'ridge'"),
        ("nowhere.Mine", None, "no interpolator 'nowhere.Mine'"),
        ("json.JSONDecoder", None, "no methods fit"),
        ("few", lambda context, _: lambda states: states[1:], "'few' failed: RuntimeError: shape"),
        ("lost", lambda context, _: lambda states: states[:, :1] / 0.0, "'lost' .* not finite"),
    ],
)
def test_an_interpolator_that_is_none_is_refused_by_name(
    name: str, fit: Any, problem: str, linear_field: Memories
) -> None:
    with pytest.raises(ImelError, match=problem):
        judged(linear_field, name, fit)
