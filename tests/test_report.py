"""The pictures: what is read from a run's files, and what is drawn where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.pictures.curve import Evaluation, LearningCurve, curve_figure, read_curve
from imel.pictures.policy_figures import PolicySurface, surface_figure
from imel.pictures.run_pictures import policy_surface, state_plane
from imel.pictures.style import summarise_near
from imel.policies import MkiPolicy, Policy
from imel.policies.names import DimensionNames, names_for

# --- running summaries ---


def test_values_far_from_a_place_have_no_say_in_its_summary() -> None:
    x = np.concatenate([np.linspace(9.0, 10.0, 500), np.linspace(0.0, 1.0, 500)])
    summary = summarise_near(x, np.where(x < 5.0, 1.0, 3.0), 0.1)
    assert_array_equal(summary.places, np.sort(summary.places))
    for line in (summary.mean, summary.low, summary.high):
        apart = np.interp([0.5, 9.5], summary.places, line)
        assert_allclose(apart, [1.0, 3.0], rtol=1e-12)


def test_a_summary_weighs_the_nearer_values_more_and_symmetrically() -> None:
    x = np.arange(101.0)
    line = summarise_near(x, 2.0 * x, 0.2)
    middle = 50
    assert line.mean[middle] == pytest.approx(100.0, abs=1.1)
    assert line.high[middle] - line.low[middle] == pytest.approx(24.0, abs=2.1)  # 60 % of 20 steps
    peak = summarise_near(x, np.where(x == 50.0, 1.0, 0.0), 0.2).mean
    assert peak.max() > 1.8 / 20  # of equal weights it would be 1 / 20 at all places
    assert peak[45] < peak.max()


def test_a_summary_of_one_value_is_that_value() -> None:
    summary = summarise_near(np.ones(1), np.array([7.0]), 0.1)
    assert (summary.mean[0], summary.low[0], summary.high[0]) == (7.0, 7.0, 7.0)


# --- the learning curve ---


def write_monitor(path: Path, columns: str, *rows: str) -> Path:
    path.write_text("\n".join(['#{"t_start": 0.0, "env_id": "None"}', columns, *rows, ""]))
    return path


def test_a_curve_stands_at_the_steps_recorded_with_each_episode(tmp_path: Path) -> None:
    monitor = write_monitor(tmp_path / "monitor.csv", "r,l,t,steps", "1.5,4,0.1,32", "-2,4,0.2,64")
    curve = read_curve(monitor, tmp_path / "evaluation.json", "a title")
    assert_array_equal(curve.steps, [32, 64])
    assert_array_equal(curve.returns, [1.5, -2.0])
    assert curve.evaluation is None


def test_a_monitor_file_without_steps_has_its_lengths_summed(tmp_path: Path) -> None:
    monitor = write_monitor(tmp_path / "monitor.csv", "r,l,t", "1,10,0.1", "2,5,0.2")
    curve = read_curve(monitor, tmp_path / "evaluation.json", "a title")
    assert_array_equal(curve.steps, [10, 15])


@pytest.mark.parametrize("row", ["x,4,0.1,32", "1.5"])
def test_a_damaged_monitor_file_is_refused_by_name(tmp_path: Path, row: str) -> None:
    monitor = write_monitor(tmp_path / "monitor.csv", "r,l,t,steps", row)
    with pytest.raises(ImelError, match=r"monitor\.csv is damaged"):
        read_curve(monitor, tmp_path / "evaluation.json", "a title")


def test_another_csv_file_is_no_monitor_file(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("r,l,t\n1,2,3\n")
    with pytest.raises(ImelError, match="not a monitor file"):
        read_curve(tmp_path / "other.csv", tmp_path / "evaluation.json", "a title")


def test_the_evaluation_is_read_beside_the_episodes(tmp_path: Path) -> None:
    monitor = write_monitor(tmp_path / "monitor.csv", "r,l,t,steps", "1,4,0.1,32")
    played = {"mean": 5.0, "std": 0.5, "min": 4.5, "max": 5.5, "returns": [4.5, 5.5]}
    document = {"timesteps": 64, "episodes": 2, "seed": 0, "deterministic": played}
    (tmp_path / "evaluation.json").write_text(json.dumps(document))
    curve = read_curve(monitor, tmp_path / "evaluation.json", "a title")
    assert curve.evaluation == Evaluation(steps=64, episodes=2, mean=5.0, std=0.5)
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(ImelError, match="not an evaluation"):
        read_curve(monitor, tmp_path / "evaluation.json", "a title")


def test_the_trend_of_equal_returns_is_flat_over_all_steps() -> None:
    curve = LearningCurve("", np.linspace(10.0, 1000.0, 40), np.full(40, 3.0))
    trend = summarise_near(curve.steps, curve.returns)
    assert (trend.places[0], trend.places[-1]) == (10.0, 1000.0)
    for line in (trend.mean, trend.low, trend.high):
        assert_allclose(line, 3.0)


def test_the_band_holds_the_middle_of_the_returns() -> None:
    returns = np.random.default_rng(0).permutation(np.linspace(0.0, 1.0, 5001))
    trend = summarise_near(np.arange(5001.0), returns)
    inner = slice(20, -20)
    assert_allclose(trend.low[inner].mean(), 0.2, atol=0.01)
    assert_allclose(trend.high[inner].mean(), 0.8, atol=0.01)


def test_the_figure_of_a_curve_has_every_episode_the_trend_and_the_evaluation() -> None:
    steps, returns = np.arange(1.0, 31.0) * 100, np.linspace(-5.0, 5.0, 30)
    curve = LearningCurve("env, policy, seed 0", steps, returns, Evaluation(3200, 20, 6.0, 0.5))
    (axes,) = curve_figure(curve).axes
    assert axes.get_title() == "env, policy, seed 0"
    (dots,) = (c for c in axes.collections if isinstance(c, PathCollection))
    assert_allclose(np.asarray(dots.get_offsets()), np.stack([steps, returns], axis=1))
    lines = {line.get_label(): line for line in axes.lines}
    assert_allclose(
        np.asarray(lines["running mean"].get_ydata()),
        summarise_near(curve.steps, curve.returns).mean,
    )
    (bar,) = axes.containers
    assert bar.get_label() == "deterministic, 20 episodes: 6.0 ± 0.5"
    ((marker_x, marker_y),) = bar.lines[0].get_xydata()  # type: ignore[attr-defined]
    assert (marker_x, marker_y) == (3200, 6.0)
    left, right = axes.get_xlim()
    assert left == 0.0
    assert right > 3200


def test_a_run_without_a_finished_episode_says_so_in_its_figure() -> None:
    (axes,) = curve_figure(LearningCurve("", np.empty(0), np.empty(0))).axes
    assert [text.get_text() for text in axes.texts] == ["no episode has ended"]


# --- the policy's picture ---


def a_surface(count: int) -> PolicySurface:
    generator = np.random.default_rng(1)
    positions = generator.uniform(-1.0, 1.0, (count, 2))
    old = generator.uniform(-0.5, 0.5, count)
    grid = np.linspace(-1.0, 1.0, 12)
    return PolicySurface(
        title="a title",
        axis_labels=("first", "second"),
        action_label="action",
        x=grid,
        y=grid,
        means=np.add.outer(grid, np.zeros(12)),
        positions=positions,
        old_means=old,
        improved_means=old + generator.normal(0.0, 0.3, count),
        policy_means=0.5 * positions[:, 0],
    )


def panels(figure: Figure) -> tuple[Axes, Axes]:
    left, right, _colour_bar = figure.axes
    return left, right


def test_few_memories_are_all_drawn_and_many_are_thinned_in_the_same_way_each_time() -> None:
    assert_array_equal(a_surface(250).shown(), np.arange(250))
    rows = a_surface(2000).shown()
    assert len(set(rows.tolist())) == 300
    assert_array_equal(rows, a_surface(2000).shown())


def test_map_and_memories_share_a_colour_scale_centred_at_zero() -> None:
    surface = a_surface(50)
    left, _ = panels(surface_figure(surface))
    (mesh,) = (c for c in left.collections if isinstance(c, QuadMesh))
    *_heads, dots = (c for c in left.collections if isinstance(c, PathCollection))
    for coloured in (mesh, dots):
        assert coloured.get_clim() == (-1.0, 1.0)
        assert coloured.get_cmap().name == "coolwarm"
    assert_allclose(np.asarray(mesh.get_array()).reshape(12, 12), surface.means)
    assert_allclose(np.asarray(dots.get_array()), surface.improved_means)
    assert_allclose(np.asarray(dots.get_offsets()), surface.positions)


def largest_changes(surface: PolicySurface) -> NDArray[Any]:
    """Return the 40 memories that change most: more arrows could not be told apart."""
    return np.argsort(-np.abs(surface.improved_means - surface.old_means), kind="stable")[:40]


def test_arrows_go_from_the_old_mean_to_the_improved_one() -> None:
    surface = a_surface(60)
    _, right = panels(surface_figure(surface))
    arrows = {c.get_label(): c for c in right.collections if isinstance(c, LineCollection)}
    rows = largest_changes(surface)
    old, improved = surface.old_means[rows], surface.improved_means[rows]
    for label, chosen in (("raised", improved > old), ("lowered", improved < old)):
        drawn = np.array(arrows[f"μ → μ*, {label}"].get_segments())  # [n, 2, 2]
        x = surface.positions[rows][chosen, 0]
        expected = np.stack([x, old[chosen], x, improved[chosen]], axis=1).reshape(-1, 2, 2)
        assert_allclose(drawn, expected)


def test_the_line_in_the_update_panel_is_the_policy_at_the_memories() -> None:
    surface = a_surface(4000)
    _, right = panels(surface_figure(surface))
    (line,) = (line for line in right.lines if "new policy" in str(line.get_label()))
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    inner = np.abs(x) < 0.9
    assert inner.sum() >= 8
    assert_allclose(y[inner], 0.5 * x[inner], atol=0.01)


def test_the_update_panel_shows_the_action_range_and_means_far_beyond_it() -> None:
    surface = a_surface(60)
    _, right = panels(surface_figure(surface))
    low, high = right.get_ylim()
    assert low <= -1.1
    assert 1.1 <= high < 2.0
    _, right = panels(surface_figure(replace(surface, policy_means=np.full(60, 20.0))))
    assert right.get_ylim()[1] > 20.0


# --- its data ---


def a_policy(states: torch.Tensor, improved: torch.Tensor) -> MkiPolicy:
    """A policy that remembers the given states and improved means."""
    unbounded = spaces.Box(-np.inf, np.inf, (states.shape[1],), np.float32)
    policy = MkiPolicy(unbounded, spaces.Box(-1.0, 1.0, (improved.shape[1],), np.float32))
    policy.normaliser.update(states)
    policy.normaliser.refresh()
    policy.memory.set_prior(states, improved)
    policy.memory.column("means").zero_()
    policy.invalidate()
    return policy


def numbered(policy: Policy) -> DimensionNames:
    return names_for(None, policy.dimensions)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_a_state_of_two_dimensions_is_its_own_plane(generator: torch.Generator) -> None:
    states = torch.randn(200, 2, generator=generator) * torch.tensor([5.0, 0.1]) + 2.0
    policy = a_policy(states, torch.randn(200, 1, generator=generator))
    surface = policy_surface(policy, "a title", numbered(policy))
    assert surface.axis_labels == ("state 0", "state 1")
    assert surface.title == "a title"
    assert_allclose(surface.positions, states.numpy(), rtol=1e-6)
    assert_array_equal(surface.old_means, np.zeros(200))
    assert_allclose(surface.improved_means, policy.memory.column("improved_means")[:, 0].numpy())
    corner = torch.tensor([[surface.x[7], surface.y[2]]], dtype=torch.float32)
    assert_allclose(surface.means[2, 7], policy.act(corner)[0].item(), rtol=1e-4, atol=1e-6)
    assert_allclose(surface.policy_means, policy.act(states)[0][:, 0].numpy(), rtol=1e-5)


def test_a_larger_state_is_drawn_over_its_first_two_principal_components(
    generator: torch.Generator,
) -> None:
    # Normalised, the first three dimensions are one and the same; the other two are independent
    common = torch.randn(400, 1, generator=generator)
    states = torch.cat(
        [common * 3.0, common * 0.2, -common, torch.randn(400, 2, generator=generator)], dim=1
    )
    policy = a_policy(states, torch.randn(400, 1, generator=generator))
    plane = state_plane(policy, states, numbered(policy))
    first = plane.directions[0]
    assert_allclose(first.abs()[:3].numpy(), 1 / np.sqrt(3), atol=0.01)
    assert_allclose((plane.directions @ plane.directions.T).numpy(), np.eye(2), atol=1e-5)
    assert plane.labels[0].startswith("component 1 (6")
    assert "0.58 state 0" in " ".join(plane.labels[0].split())
    surface = policy_surface(policy, "", numbered(policy))
    spread = surface.positions.var(axis=0)
    assert spread[0] > spread[1]
    normalised = policy.normaliser(states)
    centred = normalised - normalised.mean(dim=0)
    assert_allclose(surface.positions, (centred @ plane.directions.T).numpy(), atol=1e-5)
    point = normalised.mean(dim=0) + torch.tensor([surface.x[30], surface.y[60]]).float() @ (
        plane.directions
    )
    raw = policy.normaliser.inverse(point)[None]
    assert_allclose(surface.means[60, 30], policy.act(raw)[0].item(), rtol=1e-3, atol=1e-5)


def test_a_state_of_one_dimension_can_be_drawn_too(generator: torch.Generator) -> None:
    states = torch.randn(50, 1, generator=generator)
    policy = a_policy(states, states.clone())
    surface = policy_surface(policy, "", numbered(policy))
    assert surface.axis_labels[1] == "no second dimension"
    assert np.isfinite(surface.means).all()
    assert_allclose(surface.positions[:, 1], 0.0)
    surface_figure(surface)


def test_the_action_that_varies_most_in_memory_is_shown_unless_another_is_chosen(
    generator: torch.Generator,
) -> None:
    states = torch.randn(100, 2, generator=generator)
    improved = torch.randn(100, 3, generator=generator) * torch.tensor([0.1, 0.2, 0.9])
    policy = a_policy(states, improved)
    surface = policy_surface(policy, "run", numbered(policy))
    assert surface.title == "run: action 2 of 3, whose μ* varies most"
    assert_allclose(surface.improved_means, improved[:, 2].numpy())
    surface = policy_surface(policy, "run", numbered(policy), action=0)
    assert surface.title == "run: action 0 of 3"
    assert surface.action_label == "action 0"
    assert_allclose(surface.improved_means, improved[:, 0].numpy())
    names = DimensionNames(("x", "y"), ("thigh", "leg", "foot"))
    surface = policy_surface(policy, "run", names)
    assert surface.title == "run: action 2 of 3, foot, whose μ* varies most"
    assert (surface.action_label, surface.axis_labels) == ("foot", ("x", "y"))
    with pytest.raises(ImelError, match="action=3 is not between 0 and 2"):
        policy_surface(policy, "run", numbered(policy), action=3)


def test_states_are_asked_in_chunks_and_put_together_in_order(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = torch.randn(300, 2, generator=generator)
    policy = a_policy(states, torch.randn(300, 1, generator=generator))
    sizes = []

    def act(chunk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(chunk))
        return chunk[:, :1], chunk[:, 1:]

    monkeypatch.setattr(policy, "_act", act)
    monkeypatch.setattr("imel.pictures.run_pictures._CHUNK", 77)
    surface = policy_surface(policy, "", numbered(policy))
    assert max(sizes) == 77
    assert_array_equal(surface.policy_means, states[:, 0].double().numpy())
    assert_allclose(surface.means, np.tile(surface.x, (len(surface.y), 1)), rtol=1e-6)
