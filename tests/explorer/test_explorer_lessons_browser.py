"""The page of a run with lessons, on wide and narrow screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.explorer import Served
from explorer.conftest import train
from explorer.visit import HEIGHTS, Visit
from imel.explorer.session import Session
from imel.runs.stored import find_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MEANS = "window.imelExplorer.answer.mean"
ROWS = "Array.from(document.querySelectorAll('.lesson'), card => card.dataset.lesson)"
BARS = """() => Array.from(document.querySelectorAll('.bar'), bar => {
  const { left, right, top, bottom, height } = bar.getBoundingClientRect();
  const panel = document.querySelector('#action').getBoundingClientRect();
  const state = document.querySelector('#state').getBoundingClientRect();
  const seen = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  const inside = left >= panel.left - 1 && right <= panel.right + 1 && bottom <= state.top + 1;
  return { height, inside, seen: bar.contains(seen), right };
})"""


@pytest.fixture(scope="module")
def address(taught: Path) -> Iterator[str]:
    session = Session(find_run(taught))
    session.prepare()
    with Served(session) as served:
        yield served.address


def at_step(visit: Visit, step: int) -> None:
    visit.page.evaluate(f"window.imelExplorer.player.pauseAt({step})")
    visit.at_step(step)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light"), (1920, "light")])
def test_scrub_forget_lessons_and_see_action_trajectory_and_return_change(
    browser: Browser, address: str, width: int, scheme: Any
) -> None:
    visit = Visit(browser, address, width, scheme)
    page = visit.page
    visit.wait_for_episode()
    at_step(visit, 2)
    first, shares = page.evaluate(ROWS), page.evaluate("[...window.imelExplorer.answer.shares]")
    at_step(visit, 12)
    assert page.evaluate(ROWS) != first, "other lessons light up at another step"
    assert page.evaluate("[...window.imelExplorer.answer.shares]") != shares
    assert "ostly taught by" in visit.text("#why-text")
    visit.keep(f"lessons-{width}-1-step")
    before = page.evaluate(MEANS)
    for card in page.locator(".lesson").all()[:4]:
        card.click()
    assert "4 lessons selected" in visit.text("#edit-bar")
    gone = page.evaluate(ROWS)[:4]
    page.locator("#forget").click()
    page.wait_for_function(r"/^12 m\d+e/.test(document.body.dataset.answered)")
    assert page.evaluate(MEANS) != before
    assert not set(page.evaluate(ROWS)) & set(gone)
    page.locator("#play-without").click()
    visit.wait_for_episode()
    page.wait_for_selector("#frame-before:not([hidden])")
    at_step(visit, 23)
    label = page.locator("#step-label").inner_text().splitlines()
    assert label[1].startswith("return")
    assert label[2].startswith("before")
    assert label[1].split()[1] != label[2].split()[1], "another trajectory from the same start"
    page.locator("#evaluate").click()
    page.wait_for_function("document.querySelector('#return')?.textContent.includes('→')")
    held, now = (part.split("±")[0].strip() for part in visit.text("#return").split("→"))
    assert held != now
    visit.keep(f"lessons-{width}-2-forgotten")
    page.locator("#undo").click()
    page.wait_for_selector("#undo", state="detached")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert visit.complaints == []
    page.close()


def test_a_stick_of_the_timeline_is_picked_and_a_stretch_of_it_selected(
    browser: Browser, address: str
) -> None:
    visit = Visit(browser, address, 1280, "dark")
    page = visit.page
    visit.wait_for_episode()
    at_step(visit, 3)
    box = page.locator("#lesson-strip").bounding_box()
    assert box is not None
    places = page.evaluate(
        "Array.from(window.imelExplorer.columns.places, (_, row) =>"
        f" window.imelExplorer.lessonStrip.x(row, {box['width']}))"
    )
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + places[4], middle)
    page.wait_for_selector("#tooltip:not([hidden])")
    page.mouse.click(box["x"] + places[4], middle)
    (picked,) = page.evaluate("window.imelExplorer.edits.selection")
    near = [row for row, place in enumerate(places) if abs(place - places[4]) <= 6]
    shares = page.evaluate("[...window.imelExplorer.answer.shares]")
    assert picked == max(near, key=lambda row: abs(shares[row]))
    page.keyboard.press("Escape")
    page.mouse.move(box["x"] + places[2] - 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + places[9] + 0.5, middle, steps=4)
    page.mouse.up()
    assert page.evaluate("window.imelExplorer.edits.selection") == list(range(2, 10))
    assert page.locator(".lesson.selected").count() <= 8
    page.keyboard.press("f")
    page.wait_for_selector("#undo")
    assert "without 8 lessons" in visit.text("#edit-bar")
    assert visit.complaints == []
    page.close()


@pytest.mark.parametrize("count", [6, 17])
def test_no_action_is_hidden_on_any_screen(browser: Browser, tmp_path: Path, count: int) -> None:
    folder = train(
        tmp_path / "run", "--total-timesteps", "384", policy="ridge", env=f"Drawn{count}-v0"
    )
    session = Session(find_run(folder))
    session.prepare()
    with Served(session) as served:
        for width in sorted(HEIGHTS):
            visit = Visit(browser, served.address, width, "dark")
            visit.wait_for_episode()
            at_step(visit, 5)
            visit.page.locator("#action").scroll_into_view_if_needed()
            bars = visit.page.evaluate(BARS)
            assert len(bars) == count
            for bar in bars:
                assert bar["inside"], f"{width} wide"
                assert bar["seen"], f"{width} wide"
                assert bar["height"] >= 12
            visit.keep(f"actions-{count}-{width}")
            visit.page.close()
