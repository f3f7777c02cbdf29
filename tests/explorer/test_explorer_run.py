"""Which models of a run are shown, jobs, pictures of remembered states, and the packed format."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from explorer.conftest import Page
from imel.environments.playing import make_environment
from imel.errors import ImelError
from imel.explorer.answers import pack, unpack
from imel.explorer.jobs import Job, Jobs
from imel.explorer.session import Recent, Session
from imel.pictures.rendering import (
    UnclearStateError,
    picture,
    pixels_of,
    pose,
    prepare_drawing,
)
from imel.runs.stored import find_run


def test_a_run_lists_its_checkpoints_in_order_with_the_final_model_last(page: Page) -> None:
    document = page.get("run")
    iterations = [model["iteration"] for model in document["models"]]
    assert iterations == [3, 6, 9, 12]
    assert [model["timesteps"] for model in document["models"]] == [192 * k for k in iterations]
    assert document["env"] == "explorer.drawn:Drawn-v0"
    assert document["newest"] == page.get("model", model=page.newest)


def test_the_learning_curve_comes_with_the_run(page: Page, run: Path) -> None:
    curve = page.get("run")["curve"]
    rows = (run / "monitor.csv").read_text().splitlines()[2:]
    assert len(curve["returns"]) == len(rows)
    assert curve["returns"][0] == pytest.approx(float(rows[0].split(",")[0]))
    assert len(curve["mean"]) == len(curve["places"])
    assert curve["evaluation"]["steps"] == 2304


def test_a_damaged_checkpoint_is_named_and_the_others_still_open(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    first = sorted((copy / "checkpoints").iterdir())[0]
    first.write_bytes(first.read_bytes()[:1000])
    session = Session(find_run(copy))
    page = Page(session)
    models = page.get("run")["models"]
    assert first.name in models[0]["problem"]
    assert models[1]["problem"] is None
    assert first.name in page.refusal("model", model="m0")
    assert page.get("model", model="m1")["rows"] == 384
    session.close()


def test_a_run_that_was_killed_is_shown_from_its_checkpoints(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    files = find_run(copy)
    assert [model.iteration for model in files.models] == [3, 6, 9]


def test_a_model_file_alone_has_no_curve_and_needs_an_environment_to_play(
    run: Path, tmp_path: Path
) -> None:
    alone = Path(shutil.copy(run / "model.safetensors", tmp_path / "alone.safetensors"))
    session = Session(find_run(alone))
    page = Page(session)
    assert page.get("run")["curve"] is None
    assert "--env" in page.refused_post("play", model="m0")
    session.close()
    named = Session(find_run(alone, "explorer.drawn:Drawn-v0"))
    Page(named).played("m0")
    named.close()


def test_a_model_for_another_environment_is_refused_by_the_job(run: Path) -> None:
    session = Session(find_run(run, "Pendulum-v1"))
    page = Page(session)
    ended = page.finish(page.post("play", model="m0")["job"])
    assert ended["state"] == "failed"
    assert "not made for Pendulum-v1" in ended["error"]
    ended = page.finish(page.post("evaluate", model="m0", episodes=1)["job"])
    assert "not made for Pendulum-v1" in ended["error"]
    session.close()


# --- jobs ---


def test_a_job_that_is_asked_to_stop_stops() -> None:
    jobs, begun = Jobs(), threading.Event()

    def work(job: Job) -> None:
        while True:
            begun.set()
            job.advance(0.5)

    name = jobs.start(work)
    assert begun.wait(10)
    jobs.get(name).stopping.set()
    jobs.close()
    assert jobs.get(name).state == "stopped"


def test_a_job_that_fails_says_why_and_one_that_ends_has_a_result() -> None:
    jobs = Jobs()

    def fail(_: Job) -> None:
        raise ImelError("it rained")

    failed, done = jobs.start(fail), jobs.start(lambda job: 42)
    jobs._pool.shutdown(wait=True)
    assert jobs.get(failed).as_json() == {
        "state": "failed",
        "progress": 0.0,
        "result": None,
        "error": "it rained",
    }
    assert jobs.get(done).result == 42
    with pytest.raises(ImelError, match="no job j99"):
        jobs.get("j99")


def test_jobs_under_way_are_bounded() -> None:
    jobs, leave = Jobs(threads=1), threading.Event()
    for _ in range(8):
        jobs.start(lambda _: leave.wait(20))
    with pytest.raises(ImelError, match="eight jobs"):
        jobs.start(lambda _: None)
    leave.set()
    jobs.close()


def test_what_was_not_used_for_long_is_dropped() -> None:
    table: Recent[int] = Recent(2)
    assert [table.obtain(key, lambda key=key: key) for key in (1, 2)] == [1, 2]  # type: ignore[misc]
    assert table.obtain(1, lambda: 0) == 1
    table.obtain(3, lambda: 3)
    assert set(table) == {1, 3}


# --- pictures of remembered states ---


@pytest.mark.parametrize(
    "env_id",
    [
        "Pendulum-v1",
        "MountainCarContinuous-v0",
        "InvertedPendulum-v5",
        "HalfCheetah-v5",
        "Hopper-v5",
        "Walker2d-v5",
        "Ant-v5",
    ],
)
def test_an_environment_is_put_into_a_remembered_state(env_id: str) -> None:
    lived, posed = gymnasium.make(env_id), make_environment(env_id, rendered=False)
    lived.reset(seed=3)
    lived.action_space.seed(3)
    posed.reset(seed=4)
    for _ in range(4):
        observation, *_ = lived.step(lived.action_space.sample())
    pose(posed, np.asarray(observation, dtype=np.float32))
    inner, other = lived.unwrapped, posed.unwrapped
    if hasattr(inner, "data"):
        skipped = getattr(inner, "observation_structure", {}).get("skipped_qpos", 0)
        expected, found = inner.data.qpos[skipped:], other.data.qpos[skipped:]  # type: ignore[attr-defined]
    else:
        expected, found = np.array(inner.state), np.array(other.state)  # type: ignore[attr-defined]
        expected, found = np.cos(expected), np.cos(found)  # an angle is the same after a turn
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "env_id", ["InvertedDoublePendulum-v5", "Reacher-v5", "explorer.drawn:Drawn-v0"]
)
def test_where_the_observation_is_not_the_state_there_is_no_picture(env_id: str) -> None:
    env = make_environment(env_id, rendered=False)
    observation, _ = env.reset(seed=0)
    with pytest.raises(ImelError, match="cannot be put into a remembered state"):
        pose(env, observation)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_classic_control_is_drawn_without_a_display(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    prepare_drawing()
    lived, posed = (make_environment(env_id, rendered=True) for _ in range(2))
    lived.action_space.seed(3)
    first, _ = lived.reset(seed=3)
    posed.reset(seed=4)
    for _ in range(30):
        observation, *_ = lived.step(lived.action_space.sample())
    pictures = []
    for state in (first, observation):
        pose(posed, np.asarray(state, dtype=np.float32))
        pictures.append(pixels_of(posed))
    assert (pictures[0] != pictures[1]).any()
    if env_id == "MountainCarContinuous-v0":  # a pendulum's picture also has the last torque
        assert (pictures[1] != pixels_of(lived)).mean() < 0.01
    assert Image.open(io.BytesIO(picture(posed))).size[0] >= 400


def test_an_observation_the_environment_could_not_have_made_is_not_drawn() -> None:
    env = make_environment("Pendulum-v1", rendered=False)
    env.reset(seed=0)
    with pytest.raises(UnclearStateError):
        pose(env, np.array([0.2, 0.1, 0.0], dtype=np.float32))  # cos² + sin² is not one


def test_why_there_is_no_picture_of_a_memory_is_said(page: Page) -> None:
    assert "DrawnEnv cannot be put" in page.refusal("picture", model=page.newest, row=0)
    assert "no memory 9999" in page.refusal("picture", model=page.newest, row=9999)


# --- the packed format ---


def test_packed_arrays_come_back_and_are_aligned() -> None:
    for text in ("", "a", "äöü", "abcd"):
        arrays = {"x": np.arange(6).reshape(2, 3), "none": np.zeros((0, 4)), "y": np.array([7.5])}
        content = pack({"text": text}, arrays)
        assert (4 + int.from_bytes(content[:4], "little")) % 4 == 0
        document, found = unpack(content)
        assert document == {"text": text}
        assert {name: array.shape for name, array in found.items()} == {
            "x": (2, 3),
            "none": (0, 4),
            "y": (1,),
        }
        np.testing.assert_array_equal(found["x"], arrays["x"])
        np.testing.assert_array_equal(found["y"], arrays["y"])


def test_the_page_can_stop_a_job(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any, progress: Callable[[float], None]) -> None:
        while True:
            progress(0.25)

    monkeypatch.setattr("imel.explorer.session.evaluate", endless)
    job = page.post("evaluate", model=page.newest, episodes=1)["job"]
    page.post("stop", job=job)
    ended = page.finish(job)
    assert ended["state"] == "stopped"
    assert ended["result"] is None
