"""One update as in the paper's Figure 1, and the policy from checkpoint to checkpoint."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from PIL import Image

from imel import IMeL
from imel.cli.main import main
from imel.pictures.policy_figures import PolicySurface, UpdateStep, update_figure
from imel.pictures.run_pictures import training_surfaces, update_step
from imel.policies import ImelPolicy

TRAIN = (
    *("--n-envs", "4", "--rollout-size", "256", "--memory-size", "512"),
    *("--total-timesteps", "1024", "--eval-episodes", "1"),
    *("--checkpoint-every", "1", "--checkpoints-kept", "9"),
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "car"
    assert main(["train", "MountainCarContinuous-v0", *TRAIN, "--run-dir", str(folder)]) == 0
    return folder


def test_the_action_shown_is_named_once(tmp_path: Path) -> None:
    small: dict[str, Any] = {"n_envs": 2, "rollout_size": 64, "memory_size": 128, "seed": 0}
    model = IMeL("NearestPolicy", "Reacher-v5", critic_epochs=1, **small)
    folder = tmp_path / "checkpoints"
    for iteration in (1, 2):
        model.learn(64, reset_num_timesteps=False)
        model.save(folder / f"iteration-{iteration:08d}")
    titles = [surface.title for surface in training_surfaces(tmp_path, None)]
    assert [title.count("of 2") for title in titles] == [1, 1]
    assert [title.splitlines()[1] for title in titles] == [
        "iteration 1, 64 steps",
        "iteration 2, 128 steps",
    ]


def policy_after(run_dir: Path, iteration: int) -> ImelPolicy:
    return ImelPolicy.load(str(run_dir / "checkpoints" / f"iteration-{iteration:08d}"))


@pytest.mark.parametrize(("asked", "drawn"), [(1, 1), (2, 2), (40, 4), (-5, 1), (None, 4)])
def test_the_checkpoint_nearest_to_the_update_is_drawn(
    run_dir: Path, asked: int | None, drawn: int
) -> None:
    step = update_step(run_dir, asked, None)
    assert f": update {drawn}, 256 new experiences" in step.title


def test_old_and_new_policy_are_those_before_and_after_the_update(run_dir: Path) -> None:
    step = update_step(run_dir, 3, None)
    before, after = policy_after(run_dir, 2), policy_after(run_dir, 3)
    memory = after.memory
    newest = memory.column("iterations") == 2  # counted from zero there
    states = memory.column("states")[newest]
    np.testing.assert_allclose(step.old_means, before.act(states)[0][:, 0].numpy(), atol=1e-5)
    np.testing.assert_allclose(step.new_means, after.act(states)[0][:, 0].numpy(), atol=1e-6)
    improved = memory.column("improved_means")[newest][:, 0].numpy()
    np.testing.assert_array_equal(step.improved_means, improved)


def test_the_axis_is_the_first_principal_component_of_the_batch(run_dir: Path) -> None:
    step = update_step(run_dir, 3, None)
    policy = policy_after(run_dir, 3)
    newest = policy.memory.column("iterations") == 2
    states = policy.normaliser(policy.memory.column("states")[newest]).double().numpy()
    centred = states - states.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    along = centred @ vectors[:, -1]
    correlation = np.corrcoef(along, step.positions)[0, 1]
    assert abs(correlation) == pytest.approx(1.0, abs=1e-4)
    assert np.var(step.positions) == pytest.approx(values[-1] / len(states), rel=1e-3)
    assert step.axis_label.startswith("component 1 (")


def test_the_figure_has_both_policies_and_an_arrow_for_each_experience() -> None:
    x = np.linspace(-1.0, 1.0, 100)
    old, new = 0.2 * x, 0.2 * x + 0.1
    improved = np.where(np.arange(100) % 4 == 0, old - 0.3, old + 0.2)
    step = UpdateStep("an update", "component 1", "action", x, old, improved, new)
    (axes,) = update_figure(step).axes
    arrows = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert [len(each.get_segments()) for each in arrows] == [75, 25]
    for lines, change in zip(arrows, (0.2, -0.3), strict=True):
        for start, end in lines.get_segments():
            assert start[1] == pytest.approx(0.2 * start[0], abs=1e-9)
            assert end[1] - start[1] == pytest.approx(change, abs=1e-9)
    drawn = {line.get_label(): line for line in axes.lines}
    middle = {
        str(label): float(np.interp(0.0, *np.asarray(line.get_data(), dtype=float)))
        for label, line in drawn.items()
        if "policy" in str(label)
    }
    (old_line,) = [value for label, value in middle.items() if label.startswith("old")]
    (new_line,) = [value for label, value in middle.items() if label.startswith("new")]
    assert old_line == pytest.approx(0.0, abs=0.01)
    assert new_line == pytest.approx(0.1, abs=0.01)


def test_the_figure_says_what_its_dots_are() -> None:
    x = np.linspace(-1.0, 1.0, 10)
    old, new = np.full(10, -0.5), np.full(10, 0.5)
    step = UpdateStep("an update", "component 1", "action", x, old, old + 0.2, new)
    figure = update_figure(step)
    (axes,), (legend,) = figure.axes, figure.legends
    dots = {
        str(each.get_label()): set(np.asarray(each.get_offsets())[:, 1].tolist())
        for each in axes.collections
        if str(each.get_label()).endswith("at a state")
    }
    assert dots == {"old policy μ at a state": {-0.5}, "new policy at a state": {0.5}}
    assert dots.keys() <= {text.get_text() for text in legend.get_texts()}


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_commands_write_one_picture_each_and_change_nothing_else(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    before = digests(copy)
    assert main(["plot", "update", str(copy), "--iteration", "2"]) == 0
    assert main(["plot", "animation", str(copy)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(copy / "update.png"),
        str(copy / "policy.gif"),
    ]
    after = digests(copy)
    assert after.keys() - before.keys() == {"update.png", "policy.gif"}
    assert {name: after[name] for name in before} == before
    with Image.open(copy / "policy.gif") as animation:
        assert animation.n_frames == 4
        frames = []
        for number in range(4):
            animation.seek(number)
            frames.append(np.asarray(animation.convert("RGB"), dtype=int))
    assert all((one != other).any() for one, other in itertools.pairwise(frames))
    # The axes stay where they are: their edges are black in all frames, left of the colour bar's
    dark = [np.flatnonzero((frame.sum(axis=2) < 60).mean(axis=0) > 0.6)[:2] for frame in frames]
    assert len(dark[0]) == 2
    assert all(np.array_equal(one, dark[0]) for one in dark)


def test_each_frame_is_the_policy_of_its_checkpoint_on_the_same_plane(run_dir: Path) -> None:
    surfaces: list[PolicySurface] = training_surfaces(run_dir, None)
    assert len(surfaces) == 4
    for number, surface in enumerate(surfaces, start=1):
        assert f"iteration {number}, {256 * number:,} steps" in surface.title
        np.testing.assert_array_equal(surface.x, surfaces[-1].x)
        np.testing.assert_array_equal(surface.y, surfaces[-1].y)
    first = policy_after(run_dir, 1)
    corner = torch.tensor([[surfaces[0].x[3], surfaces[0].y[5]]], dtype=torch.float32)
    assert surfaces[0].means[5, 3] == pytest.approx(float(first.act(corner)[0]), abs=1e-5)
    np.testing.assert_allclose(
        surfaces[0].positions, first.memory.column("states").numpy(), atol=1e-6
    )


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("update", "--out", "x.jpg"), "not the name of a .png"),
        (("animation", "--out", "x.png"), "not the name of a .gif"),
        (("update", "--action", "3"), "action=3"),
        (("animation", "--action", "-1"), "action=-1"),
        (("update", "--iterations", "3"), "did you mean '--iteration'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], reason: str
) -> None:
    kind, *flags = argv
    assert main(["plot", kind, str(run_dir), *flags]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_single_model_makes_no_animation(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Path(shutil.copy(run_dir / "model.safetensors", tmp_path / "alone.safetensors"))
    assert main(["plot", "animation", str(alone)]) == 2
    assert "--checkpoints-kept" in capsys.readouterr().err
    assert main(["plot", "update", str(alone)]) == 0
    assert (tmp_path / "update.png").is_file()


def test_a_model_that_has_not_learned_has_no_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    IMeL("MkiPolicy", "MountainCarContinuous-v0", seed=0, n_envs=1).save(tmp_path / "new")
    assert main(["plot", "update", str(tmp_path / "new.safetensors")]) == 2
    assert "no update yet" in capsys.readouterr().err
