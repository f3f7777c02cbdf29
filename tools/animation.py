"""Make the animated picture of the README: `make animation`.

Opens the explorer on the demo in a Chromium, scrubs an episode, selects on the timeline the stretch
of lessons that the policy misses most, forgets them, plays the same episode without them, and
evaluates.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.explorer import Served  # noqa: E402
from imel.explain import policy_without  # noqa: E402
from imel.explorer import DEMO  # noqa: E402
from imel.explorer.lesson_view import LessonInsight  # noqa: E402
from imel.explorer.session import Session  # noqa: E402
from imel.pictures.rendering import prepare_drawing  # noqa: E402
from imel.runs.evaluation import evaluate  # noqa: E402
from imel.runs.stored import find_run  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE = (1280, 720)
SHOWN = (960, 540)
LEFT, RIGHT = 58, 18
"""Pixels beside the timeline, as in explorer-frontend/src/curve.js."""
LARGEST = 2 << 20
LATEST = 220
"""Step up to which episodes have to be recorded."""
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


class Film:
    """Screenshots of a page, each with the milliseconds it is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []

    def shoot(self, milliseconds: int) -> None:
        """Add what the page shows."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(image.resize(SHOWN, Image.Resampling.LANCZOS))
        self.durations.append(milliseconds)

    def at(self, step: int, milliseconds: int) -> None:
        """Add a step of the episode, when its action and its frame are there."""
        self.page.evaluate(f"window.imelExplorer.player.pauseAt({step})")
        self.page.wait_for_function(
            f"document.body.dataset.answered?.startsWith('{step} ')"
            " && ['frame', 'frame-before'].every(id => document.getElementById(id).complete)"
        )
        self.page.wait_for_timeout(350)  # until the cards have their pictures
        self.shoot(milliseconds)

    def save(self, path: Path) -> None:
        """Write an animated WebP."""
        first, *rest = self.frames
        first.save(
            path,
            save_all=True,
            append_images=rest,
            duration=self.durations,
            loop=0,
            quality=60,
            method=6,
        )


def record_enough(page: Page) -> None:
    """Wait until enough of an episode is recorded, or all of it."""
    page.wait_for_function(
        "latest => { const { length, episode } = window.imelExplorer.player;"
        " return length > latest || Boolean(episode?.ended); }",
        arg=LATEST,
        timeout=300_000,
    )
    page.evaluate("window.imelExplorer.player.pauseAt(0)")


def worst_stretch(session: Session, share: float) -> tuple[float, float]:
    """Return the stretch of the run, as shares of it, whose lessons the policy misses most."""
    insight = session.prepare()
    assert isinstance(insight, LessonInsight)
    assert session.run.env is not None
    episodes, places = insight.column("episodes"), insight.column("places")
    found = []
    for begin in np.arange(0.0, 1.0 - share, share / 2):
        inside = (places >= begin * places.max()) & (places <= (begin + share) * places.max())
        reduced = policy_without(insight.policy, lessons=episodes[inside])
        value = float(np.mean(evaluate(reduced, session.run.env, 2).returns))
        found.append((value, float(begin)))
        print(f"without {begin:.0%} to {begin + share:.0%} of the run: {value:,.0f}", flush=True)
    begin = min(found)[1]
    return begin, begin + share


def perform(film: Film, stretch: tuple[float, float]) -> None:
    """Scrub, select a stretch of lessons, forget them, play and evaluate without them."""
    page = film.page
    record_enough(page)
    for step in range(40, 140, 8):
        film.at(step, 160)
    film.shoot(900)
    box = page.locator("#lesson-strip").bounding_box()
    assert box is not None
    middle, width = box["y"] + box["height"] / 2, box["width"] - LEFT - RIGHT
    left, right = (box["x"] + LEFT + share * width for share in stretch)
    page.mouse.move(left, middle)
    page.mouse.down()
    for part in range(1, 5):
        page.mouse.move(left + (right - left) * part / 4, middle)
        film.shoot(150)
    page.mouse.up()
    page.mouse.move(640, 20)
    film.shoot(1100)
    page.keyboard.press("f")
    page.wait_for_selector("#undo")
    page.wait_for_timeout(600)
    film.shoot(1600)
    page.keyboard.press("p")
    page.wait_for_function("window.imelExplorer.player.before !== null", timeout=60_000)
    record_enough(page)
    last = min(LATEST, page.evaluate("window.imelExplorer.player.length") - 1)
    for step in range(4, last, max(1, last // 18)):
        film.at(step, 160)
    page.keyboard.press("e")
    page.wait_for_function(
        "document.querySelector('#return')?.textContent.includes('→')", timeout=600_000
    )
    film.shoot(2800)


def main() -> None:
    """Make the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=DEMO)
    parser.add_argument("--target", type=Path, default=ROOT / "docs/images/lessons.webp")
    parser.add_argument("--share", type=float, default=0.2, help="of the run that is forgotten")
    parser.add_argument("--still", type=Path, default=ROOT / "docs/images/explorer.png")
    arguments = parser.parse_args()
    prepare_drawing()
    session = Session(find_run(arguments.run))
    stretch = worst_stretch(session, arguments.share)
    with Served(session) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(
            viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light"
        )
        page.goto(served.address)
        page.wait_for_selector("body[data-ready=map]")
        film = Film(page)
        perform(film, stretch)
        page.screenshot(path=arguments.still)
        browser.close()
    film.save(arguments.target)
    size = arguments.target.stat().st_size
    print(f"{arguments.target}: {len(film.frames)} frames, {size:,} bytes")
    if size > LARGEST:
        raise SystemExit(f"that is more than {LARGEST:,} bytes")


if __name__ == "__main__":
    main()
