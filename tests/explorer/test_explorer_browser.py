"""The page in a browser: scrub, see what made the action, forget it, see the action change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.explorer import Served
from explorer.conftest import train
from explorer.visit import Visit
from imel.explorer.session import Session
from imel.runs.stored import find_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    session = Session(find_run(run))
    session.prepare()
    with Served(session) as served:
        yield served.address


@pytest.fixture(scope="module")
def opened(browser: Browser, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address, 1280, "dark")
    visit.wait_for_episode()
    yield visit
    visit.page.close()


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
    visit = Visit(browser, address, 1280, "light")
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
    visit.keep("1280-light-2-selected")
    gone = page.locator("tbody tr").first.get_attribute("data-memory")
    page.keyboard.press("f")
    page.wait_for_selector("#undo")
    page.wait_for_function("document.querySelector('[data-action] small') !== null")
    means = "Array.from(document.querySelectorAll('[data-action]'), e => e.firstChild.textContent)"
    assert tuple(page.evaluate(means)) != before
    assert page.locator(f"[data-memory='{gone}']").count() == 0
    assert "without 8 memories" in visit.text("#edit-bar")
    page.keyboard.press("e")
    page.wait_for_function("document.querySelector('#return')?.textContent.includes('→')")
    visit.keep("1280-light-3-forgotten")
    page.keyboard.press("z")
    page.wait_for_function("document.querySelector('[data-action] small') === null")
    assert (visit.text("[data-action='0']"), visit.text("[data-action='1']")) == before
    assert visit.complaints == []
    page.close()


def test_points_are_lit_where_the_map_draws_them(visit: Visit) -> None:
    page = visit.page
    box = visit.box()
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


def test_a_click_on_the_map_selects_a_memory_and_escape_clears_it(visit: Visit) -> None:
    page = visit.page
    assert "episode" in visit.click_memory(17)
    page.wait_for_selector("#forget")
    assert "1 memory selected" in visit.text("#edit-bar")
    page.keyboard.press("a")
    page.wait_for_function(
        "!document.querySelector('#edit-bar').textContent.startsWith('1 memory')"
    )
    page.keyboard.press("Escape")
    page.wait_for_selector("#forget", state="detached")


def test_a_lasso_selects_what_it_encloses(visit: Visit) -> None:
    page = visit.page
    box = visit.box()
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
        """() => {
          const { plot, x } = window.imelExplorer.map;
          return Array.from(x, (_, row) => plot.getScreenPosition(row));
        }"""
    )
    margin = 8
    inside = {
        row
        for row, (x, y) in enumerate(places)
        if 4 + margin < x < box["width"] - 4 - margin
        and 4 + margin < y < box["height"] / 2 - margin
    }
    outside = {row for row, (_, y) in enumerate(places) if y > box["height"] / 2 + margin}
    assert inside <= chosen
    assert not chosen & outside
    assert inside
    page.keyboard.press("l")


def test_two_checkpoints_are_shown_side_by_side(browser: Browser, address: str) -> None:
    visit = Visit(browser, address, 1920, "dark")
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
    visit.keep("1920-dark-4-compared")
    page.keyboard.press("c")
    page.wait_for_selector("#map-b", state="hidden")
    page.keyboard.press("[")
    page.wait_for_function("document.querySelector('#model').value == 'm2'")
    page.wait_for_function("document.querySelector('#subtitle').textContent.includes('384')")
    assert visit.complaints == []
    page.close()


def test_the_map_can_be_projected_and_coloured_otherwise(visit: Visit) -> None:
    page = visit.page
    page.select_option("#projection", "dimensions")
    page.wait_for_function("document.querySelector('#axes').textContent.includes('state 1')")
    page.select_option("#map-x", "1")
    page.wait_for_function("document.querySelector('#axes').textContent.startsWith('→ state 1')")
    page.select_option("#colour", "action")
    page.wait_for_function(
        "document.querySelector('#legend-label').textContent.includes('action 0')"
    )
    page.select_option("#colour-dimension", "1")
    page.wait_for_function(
        "document.querySelector('#legend-label').textContent.includes('action 1')"
    )
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    visit.keep("1280-light-5-dimensions")
    page.keyboard.press("t")
    page.select_option("#colour", "advantage")
    page.select_option("#projection", "features")


def test_the_last_of_several_quick_choices_is_what_is_shown(visit: Visit) -> None:
    page = visit.page
    for choice in ("age", "reward", "return", "action", "reward", "age"):
        page.select_option("#colour", choice)
    # The first choice is shown for a moment as well: what counts is what stays
    page.wait_for_load_state("networkidle")
    page.wait_for_function(
        "document.querySelector('#legend-label').textContent == 'iteration that made it'"
        " && window.imelExplorer.map.diverging === false"
    )
    page.select_option("#colour", "advantage")
    page.wait_for_function("document.querySelector('#legend-label').textContent == 'advantage'")


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
    visit.keep("1280-dark-6-help")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help[open]", state="detached")


def test_a_policy_without_weights_shows_its_actions_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    folder = train(tmp_path / "np", "--policy", "np", "--total-timesteps", "384")
    session = Session(find_run(folder))
    session.prepare()
    with Served(session) as served:
        visit = Visit(browser, served.address, 1280, "dark")
        page = visit.page
        visit.wait_for_episode()
        page.keyboard.press("Home")
        visit.at_step(0)
        assert "A NpPolicy has no per-memory weights" in visit.text("#why-text")
        assert page.locator("[data-action]").count() == 2
        assert page.locator("#memories tr").count() == 0
        assert not page.locator("#arrows-holder").is_visible()
        assert page.locator("#familiarity").is_visible()
        assert page.evaluate("window.imelExplorer.map.x.length") == 384
        visit.click_memory(17)
        page.wait_for_selector("#forget")
        before = page.evaluate("window.imelExplorer.answer.mean")
        page.keyboard.press("f")
        page.wait_for_function("/^0 m0e/.test(document.body.dataset.answered)")
        after = page.evaluate("window.imelExplorer.answer.mean")
        assert after != before, "it has one memory less to summarise"
        assert after == pytest.approx(before, abs=0.1)
        visit.keep("1280-dark-7-np")
        assert visit.complaints == []
        page.close()


def test_when_the_server_has_gone_the_page_says_so(browser: Browser, session: Session) -> None:
    with Served(session) as served:
        visit = Visit(browser, served.address, 1280, "dark")
        visit.wait_for_episode()
    visit.page.keyboard.press("Home")
    visit.page.wait_for_selector("#notice:not([hidden])")
    assert "does not answer" in visit.text("#notice")
    visit.page.close()
