"""The page in a browser: scrub, see what made the action, forget it, see the action change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.explorer import Served
from explorer.conftest import train
from explorer.visit import HEIGHTS, Visit, served
from imel.explorer import DEMO
from imel.explorer.session import Session

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MEANS = "window.imelExplorer.answer.mean"
LESSONS = "Array.from(document.querySelectorAll('.lesson'), card => card.dataset.lesson)"
BARS = """() => Array.from(document.querySelectorAll('.bar'), bar => {
  const { left, right, top, bottom, height } = bar.getBoundingClientRect();
  const panel = document.querySelector('#action').getBoundingClientRect();
  const state = document.querySelector('#state').getBoundingClientRect();
  const seen = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  const inside = left >= panel.left - 1 && right <= panel.right + 1 && bottom <= state.top + 1;
  return { height, inside, seen: bar.contains(seen) };
})"""


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with served(run) as running:
        yield running.address


@pytest.fixture(scope="module")
def lessons(taught: Path) -> Iterator[str]:
    with served(taught) as running:
        yield running.address


@pytest.fixture(scope="module")
def opened(browser: Browser, address: str) -> Iterator[Visit]:
    with Visit(browser, address, 1280, "dark") as visit:
        visit.wait_for_episode()
        yield visit


@pytest.fixture
def visit(opened: Visit) -> Iterator[Visit]:
    """One page for several tests; each leaves nothing selected and nothing forgotten."""
    yield opened
    opened.page.keyboard.press("Escape")
    opened.page.wait_for_selector("#forget", state="detached")
    assert opened.page.locator("#undo").count() == 0
    assert opened.complaints == []


def test_a_memory_is_found_and_forgotten_and_the_action_changes(
    browser: Browser, address: str
) -> None:
    with Visit(browser, address, 1280, "light") as visit:
        page = visit.page
        visit.wait_for_episode()
        page.keyboard.press("Home")
        visit.at_step(0)
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        visit.at_step(3)
        page.wait_for_function("document.querySelector('#frame').naturalWidth == 64")
        page.wait_for_selector("tbody tr")
        assert "the sum of what memories add, and rests on about" in visit.text("#why-text")
        assert visit.text("#familiarity") == page.evaluate(
            "`familiarity ${Math.round(100 * window.imelExplorer.answer.familiarity)}\u00a0%`"
        )
        before = visit.text("[data-action='0']"), visit.text("[data-action='1']")
        visit.keep("1280-light-1-step")
        for row in page.locator("tbody tr").all()[:8]:
            row.click()
        assert "8 memories selected" in visit.text("#edit-bar")
        gone = page.locator("tbody tr").first.get_attribute("data-memory")
        page.keyboard.press("f")
        page.wait_for_selector("#undo")
        page.wait_for_function("document.querySelector('[data-action] small') !== null")
        shown = (
            "Array.from(document.querySelectorAll('[data-action]'), e => e.firstChild.textContent)"
        )
        assert tuple(page.evaluate(shown)) != before
        assert page.locator(f"[data-memory='{gone}']").count() == 0
        assert "without 8 memories" in visit.text("#edit-bar")
        page.keyboard.press("e")
        page.wait_for_function("document.querySelector('#return')?.textContent.includes('→')")
        visit.keep("1280-light-2-forgotten")
        page.keyboard.press("z")
        page.wait_for_function("document.querySelector('[data-action] small') === null")
        assert (visit.text("[data-action='0']"), visit.text("[data-action='1']")) == before


def test_points_are_lit_and_clicked_where_the_map_draws_them(visit: Visit) -> None:
    page, box = visit.page, visit.box("#map-a")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -240)
    page.wait_for_function("window.imelExplorer.map.plot.get('camera').view[0] > 1.01")
    drawn, lit = page.evaluate(
        """() => {
          const map = window.imelExplorer.map;
          const { width, height } = map.holder.getBoundingClientRect();
          return [map.plot.getScreenPosition(5), map.toScreen(map.x[5], map.y[5], width, height)];
        }"""
    )
    assert lit == pytest.approx(drawn, abs=0.5)
    page.keyboard.press("0")
    assert "episode" in visit.click_memory(17)
    page.wait_for_selector("#forget")
    assert "1 memory selected" in visit.text("#edit-bar")
    page.keyboard.press("a")
    page.wait_for_function(
        "!document.querySelector('#edit-bar').textContent.startsWith('1 memory')"
    )


def test_a_lasso_selects_what_it_encloses(visit: Visit) -> None:
    page, box = visit.page, visit.box("#map-a")
    left, right = box["x"] + 4, box["x"] + box["width"] - 4
    top, bottom = box["y"] + 4, box["y"] + box["height"] / 2
    page.keyboard.press("l")
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top + 5)):
        page.mouse.move(x, y, steps=6)
    page.mouse.up()
    page.wait_for_selector("#forget")
    chosen = set(page.evaluate("window.imelExplorer.edits.selection"))
    places = page.evaluate(
        "Array.from(window.imelExplorer.map.x, (_, row) =>"
        " window.imelExplorer.map.plot.getScreenPosition(row))"
    )
    near, middle = 12, box["height"] / 2
    inside = {
        row
        for row, (x, y) in enumerate(places)
        if near < x < box["width"] - near and near < y < middle - 8
    }
    assert inside
    assert inside <= chosen
    assert not chosen & {row for row, (_, y) in enumerate(places) if y > middle + 8}
    page.keyboard.press("l")


def test_two_checkpoints_are_shown_side_by_side(browser: Browser, address: str) -> None:
    with Visit(browser, address, 1920, "dark") as visit:
        visit.wait_for_episode()
        page = visit.page
        assert not page.locator("#map-b").is_visible()
        page.locator("#curve .checkpoint").first.click(modifiers=["Shift"])
        page.wait_for_selector("#map-b:not([hidden]) canvas")
        page.wait_for_function(
            "document.querySelector('#action-keys').textContent.includes('iteration 3')"
        )
        assert page.locator("#compare").input_value() == "m0"
        assert page.locator("#curve .checkpoint.compared").count() == 1
        visit.keep("1920-dark-compared")
        page.keyboard.press("c")
        page.wait_for_selector("#map-b", state="hidden")
        page.keyboard.press("[")
        page.wait_for_function("document.querySelector('#model').value == 'm2'")
        page.wait_for_function("document.querySelector('#subtitle').textContent.includes('384')")


def test_the_map_can_be_projected_and_coloured_otherwise(visit: Visit) -> None:
    page = visit.page
    page.select_option("#projection", "dimensions")
    page.wait_for_function("document.querySelector('#axes').textContent.includes('state 1')")
    page.select_option("#map-x", "1")
    page.wait_for_function("document.querySelector('#axes').textContent.startsWith('→ state 1')")
    page.select_option("#colour", "action")
    label = "document.querySelector('#legend-label').textContent"
    page.wait_for_function(f"{label}.includes('action 0')")
    page.select_option("#colour-dimension", "1")
    page.wait_for_function(f"{label}.includes('action 1')")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    visit.keep("1280-light-dimensions")
    page.keyboard.press("t")
    page.select_option("#projection", "features")
    for choice in ("age", "reward", "return", "action", "reward", "age"):
        page.select_option("#colour", choice)
    # The first choice is shown for a moment as well: what counts is what stays
    page.wait_for_load_state("networkidle")
    page.wait_for_function(
        f"{label} == 'iteration that made it' && window.imelExplorer.map.diverging === false"
    )
    page.select_option("#colour", "advantage")
    page.wait_for_function(f"{label} == 'advantage'")


def test_keys_play_and_explain_themselves(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("End")
    visit.at_step(23)
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#toggle').textContent == '❚❚'")
    visit.wait_for_episode()
    visit.at_step(23)
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    assert "forget the selected memories" in visit.text("#help")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help[open]", state="detached")


def test_a_policy_without_weights_shows_its_actions_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    folder = train(tmp_path / "np", "--policy", "np", "--total-timesteps", "384")
    with served(folder) as running, Visit(browser, running.address, 1280, "dark") as visit:
        page = visit.page
        visit.wait_for_episode()
        page.keyboard.press("Home")
        visit.at_step(0)
        assert "A NpPolicy has no per-memory weights" in visit.text("#why-text")
        assert page.locator("[data-action]").count() == 2
        assert page.locator("#memories tr").count() == 0
        assert not page.locator("#arrows-holder").is_visible()
        assert page.locator("#familiarity").is_visible()
        visit.click_memory(17)
        page.wait_for_selector("#forget")
        before = page.evaluate(MEANS)
        page.keyboard.press("f")
        page.wait_for_function("/^0 m0e/.test(document.body.dataset.answered)")
        after = page.evaluate(MEANS)
        assert after != before, "it has one memory less to summarise"
        assert after == pytest.approx(before, abs=0.1)


def test_when_the_server_has_gone_the_page_says_so(browser: Browser, session: Session) -> None:
    with Served(session) as running:
        visit = Visit(browser, running.address, 1280, "dark")
        visit.wait_for_episode()
    visit.page.keyboard.press("Home")
    visit.page.wait_for_selector("#notice:not([hidden])")
    assert "does not answer" in visit.text("#notice")
    visit.page.close()


# --- a run with lessons ---


def test_pages_that_are_opened_again_show_the_first_step_at_once(browser: Browser) -> None:
    with served(DEMO) as running, Visit(browser, running.address, 1280, "dark") as visit:
        for _ in range(5):  # the episodes of closed pages, of a thousand steps, go no further
            visit.page.reload()
            visit.page.wait_for_function("document.body.dataset.answered", timeout=15_000)
        visit.keep("1280-dark-demo")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light"), (1920, "light")])
def test_scrub_forget_lessons_and_see_action_trajectory_and_return_change(
    browser: Browser, lessons: str, width: int, scheme: Any
) -> None:
    with Visit(browser, lessons, width, scheme) as visit:
        page = visit.page
        visit.wait_for_episode()
        visit.scrub(2)
        first = page.evaluate(LESSONS), page.evaluate("[...window.imelExplorer.answer.shares]")
        visit.scrub(12)
        assert page.evaluate(LESSONS) != first[0], "other lessons light up at another step"
        assert page.evaluate("[...window.imelExplorer.answer.shares]") != first[1]
        assert "ostly taught by" in visit.text("#why-text")
        visit.keep(f"lessons-{width}-1-step")
        before = page.evaluate(MEANS)
        for card in page.locator(".lesson").all()[:4]:
            card.click()
        assert "4 lessons selected" in visit.text("#edit-bar")
        gone = page.evaluate(LESSONS)[:4]
        page.locator("#forget").click()
        page.wait_for_function(r"/^12 m\d+e/.test(document.body.dataset.answered)")
        assert page.evaluate(MEANS) != before
        assert not set(page.evaluate(LESSONS)) & set(gone)
        page.locator("#play-without").click()
        visit.wait_for_episode()
        page.wait_for_selector("#frame-before:not([hidden])")
        visit.scrub(23)
        _, now, held = (line.split() for line in visit.text("#step-label").splitlines())
        assert (now[0], held[0]) == ("return", "before")
        assert now[1] != held[1], "another trajectory from the same start"
        page.locator("#evaluate").click()
        page.wait_for_function("document.querySelector('#return')?.textContent.includes('→')")
        old, new = (part.split("±")[0].strip() for part in visit.text("#return").split("→"))
        assert old != new
        visit.keep(f"lessons-{width}-2-forgotten")
        page.locator("#undo").click()
        page.wait_for_selector("#undo", state="detached")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_stick_of_the_timeline_is_picked_and_a_stretch_of_it_selected(
    browser: Browser, lessons: str
) -> None:
    with Visit(browser, lessons, 1280, "dark") as visit:
        page = visit.page
        visit.wait_for_episode()
        visit.scrub(3)
        box = visit.box("#lesson-strip")
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
        page.keyboard.press("f")
        page.wait_for_selector("#undo")
        assert "without 8 lessons" in visit.text("#edit-bar")


@pytest.mark.parametrize("count", [6, 17])
def test_no_action_is_hidden_on_any_screen(browser: Browser, tmp_path: Path, count: int) -> None:
    flags = {"policy": "ridge", "env": f"Drawn{count}-v0"}
    with served(train(tmp_path / "run", "--total-timesteps", "384", **flags)) as running:
        for width in sorted(HEIGHTS):
            with Visit(browser, running.address, width, "dark") as visit:
                visit.wait_for_episode()
                visit.scrub(5)
                visit.page.locator("#action").scroll_into_view_if_needed()
                bars = visit.page.evaluate(BARS)
                assert len(bars) == count
                for bar in bars:
                    assert bar["inside"], f"{width} wide"
                    assert bar["seen"], f"{width} wide"
                    assert bar["height"] >= 12
                visit.keep(f"actions-{count}-{width}")
