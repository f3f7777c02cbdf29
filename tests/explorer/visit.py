"""A visit to the explorer's page in a browser.

With SCREENSHOTS=1 in the environment, pictures of each stage are left in
tests/explorer/artefacts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from benchmarks.explorer import Served
from imel.explorer.session import Session
from imel.pictures.rendering import prepare_drawing
from imel.runs.stored import find_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, FloatRect, ViewportSize

Scheme = Literal["dark", "light"]
HEIGHTS = {390: 844, 1280: 720, 1920: 1080}
ARTEFACTS = Path(__file__).parent / "artefacts"


@contextmanager
def served(place: Path) -> Iterator[Served]:
    """The explorer of a run, for as long as the block lasts."""
    prepare_drawing()
    session = Session(find_run(place))
    session.prepare()
    with Served(session) as running:
        yield running
    session.close()


class Visit:
    """A tab with the page in it; whatever the page complains about is kept."""

    def __init__(self, browser: Browser, address: str, width: int, scheme: Scheme) -> None:
        size: ViewportSize = {"width": width, "height": HEIGHTS[width]}
        self.page = browser.new_page(viewport=size, color_scheme=scheme)
        self.page.set_default_timeout(90_000)  # a busy machine is no fault of the page
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready=map]")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.page.close()
        assert kind is not None or self.complaints == []

    def _heard(self, message: ConsoleMessage) -> None:
        # That there are no pictures of remembered states is said on the page
        if message.type == "error" and "/api/picture" not in message.location["url"]:
            self.complaints.append(message.text)

    def box(self, selector: str) -> FloatRect:
        """Where something is in the window."""
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        return box

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def click_memory(self, row: int) -> str:
        """Click a memory on the map, once it answers to the mouse; what the map says of it."""
        box = self.box("#map-a")
        x, y = self.page.evaluate(f"window.imelExplorer.map.plot.getScreenPosition({row})")
        self.page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
        self.page.wait_for_selector("#tooltip:not([hidden])")
        told = self.text("#tooltip")
        self.page.mouse.click(box["x"] + x, box["y"] + y)
        return told

    def wait_for_episode(self) -> None:
        """The policy is played when the page opens; wait until that is over."""
        self.page.wait_for_function(
            "document.querySelector('#scrub').max == 23"
            " && document.querySelector('#toggle').textContent == '▶'"
        )

    def scrub(self, step: int) -> None:
        """Go to a step, and wait until its action is shown."""
        self.page.evaluate(f"window.imelExplorer.player.pauseAt({step})")
        self.at_step(step)

    def at_step(self, step: int) -> None:
        """Wait until a step is reached, and its action is shown."""
        self.page.wait_for_function(
            "step => document.querySelector('#step-label').textContent.startsWith(`step ${step} `)"
            " && document.body.dataset.answered?.startsWith(`${step} `)",
            arg=step,
        )

    def keep(self, name: str) -> None:
        if not os.environ.get("SCREENSHOTS"):
            return
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png")
