"""One update as in the paper's Figure 1, and the policy from checkpoint to checkpoint."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from imel import IMeL
from imel.cli.main import main
from imel.pictures.run_pictures import training_surfaces, update_step
from imel.policies import Policy
from imel.runs.stored import find_run

Capsys = pytest.CaptureFixture[str]
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


def policy_after(run_dir: Path, iteration: int) -> Policy:
    return Policy.load(run_dir / "checkpoints" / f"iteration-{iteration:08d}")


# --- an update ---


@pytest.mark.parametrize(("asked", "drawn"), [(2, 2), (40, 4), (-5, 1), (None, 4)])
def test_the_checkpoint_nearest_to_the_update_is_drawn(
    run_dir: Path, asked: int | None, drawn: int
) -> None:
    step = update_step(find_run(run_dir), asked, None)
    assert step.title.endswith(f": update {drawn}, 256 new experiences")


def test_old_and_new_policy_are_those_before_and_after_the_update(run_dir: Path) -> None:
    step = update_step(find_run(run_dir), 3, None)
    before, after = policy_after(run_dir, 2), policy_after(run_dir, 3)
    newest = after.memory.column("iterations") == 2  # counted from zero there
    states = after.memory.column("states")[newest]
    np.testing.assert_allclose(step.old_means, before.act(states)[0][:, 0].numpy(), atol=1e-5)
    np.testing.assert_allclose(step.policy_means, after.act(states)[0][:, 0].numpy(), atol=1e-6)
    improved = after.memory.column("improved_means")[newest][:, 0].numpy()
    np.testing.assert_array_equal(step.improved_means, improved)
    # The axis is the first principal component of the batch
    places = after.normaliser(states).double().numpy()
    centred = places - places.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    correlation = np.corrcoef(centred @ vectors[:, -1], step.positions[:, 0])[0, 1]
    assert abs(correlation) == pytest.approx(1.0, abs=1e-4)
    assert np.var(step.positions[:, 0]) == pytest.approx(values[-1] / len(states), rel=1e-3)
    assert step.axis_labels[0].startswith("component 1 (")


# --- the policy over training ---


def test_each_frame_is_the_policy_of_its_checkpoint_on_the_same_plane(run_dir: Path) -> None:
    surfaces = training_surfaces(find_run(run_dir), None)
    assert len(surfaces) == 4
    for number, surface in enumerate(surfaces, start=1):
        assert surface.title.splitlines()[1] == f"iteration {number}, {256 * number:,} steps"
        np.testing.assert_array_equal(surface.x, surfaces[-1].x)
        np.testing.assert_array_equal(surface.y, surfaces[-1].y)
    first = policy_after(run_dir, 1)
    corner = torch.tensor([[surfaces[0].x[3], surfaces[0].y[5]]], dtype=torch.float32)
    assert surfaces[0].means[5, 3] == pytest.approx(float(first.act(corner)[0]), abs=1e-5)
    np.testing.assert_allclose(
        surfaces[0].positions, first.memory.column("states").numpy(), atol=1e-6
    )


def test_the_action_shown_is_that_of_the_last_checkpoint_and_named_once(tmp_path: Path) -> None:
    small: dict[str, Any] = {"n_envs": 2, "rollout_size": 64, "memory_size": 128, "seed": 0}
    model = IMeL("NearestPolicy", "Reacher-v5", critic_epochs=1, **small)
    for iteration in (1, 2):
        model.learn(64, reset_num_timesteps=False)
        model.save(tmp_path / "checkpoints" / f"iteration-{iteration:08d}")
    varying = model.policy.memory.column("improved_means").var(dim=0).argmax()
    for surface in training_surfaces(find_run(tmp_path), None):
        assert surface.dimension == varying
        assert surface.title.count(f"action {varying} of 2") == 1


# --- the commands ---


def test_the_commands_write_one_picture_each_and_change_nothing_else(
    run_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    before = contents(copy)
    assert main(["plot", "update", str(copy), "--iteration", "2"]) == 0
    assert main(["plot", "animation", str(copy)]) == 0
    written = [str(copy / "update.png"), str(copy / "policy.gif")]
    assert capsys.readouterr().out.splitlines() == written
    after = contents(copy)
    assert after.keys() - before.keys() == {"update.png", "policy.gif"}
    assert {name: after[name] for name in before} == before
    frames = []
    with Image.open(copy / "policy.gif") as animation:
        for number in range(animation.n_frames):
            animation.seek(number)
            frames.append(np.asarray(animation.convert("RGB"), dtype=int))
    assert len(frames) == 4
    assert all((one != other).any() for one, other in itertools.pairwise(frames))
    # The axes stay where they are: the labels left of them are the same in all frames
    labels = [frame[60:, :60] for frame in frames]
    assert (labels[0].sum(axis=2) < 300).any()
    for each in labels:
        assert (np.abs(each - labels[0]).sum(axis=2) < 90).mean() > 0.99


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("update", "--out", "x.jpg"), "not the name of a .png"),
        (("animation", "--out", "x.png"), "not the name of a .gif"),
        (("--out", "x.png"), "--out is for update and animation"),
        (("animation", "--iteration", "3"), "--iteration for update alone"),
        (("update", "--action", "3"), "action=3"),
        (("animation", "--action", "-1"), "action=-1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    run_dir: Path, capsys: Capsys, argv: tuple[str, ...], reason: str
) -> None:
    assert main(["plot", *argv, str(run_dir)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_a_single_model_makes_no_animation_and_an_untrained_one_no_update(
    run_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    alone = Path(shutil.copy(run_dir / "model.safetensors", tmp_path / "alone.safetensors"))
    assert main(["plot", "animation", str(alone)]) == 2
    assert "--checkpoints-kept" in capsys.readouterr().err
    assert main(["plot", "update", str(alone)]) == 0
    assert (tmp_path / "update.png").is_file()
    IMeL("MkiPolicy", "MountainCarContinuous-v0", seed=0, n_envs=1).save(tmp_path / "new")
    assert main(["plot", "update", str(tmp_path / "new.safetensors")]) == 2
    assert "no update yet" in capsys.readouterr().err
