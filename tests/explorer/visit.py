"""A visit to the explorer's page in a browser.

With SCREENSHOTS=1 in the environment, pictures of each stage are left in
tests/explorer/artefacts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, FloatRect, ViewportSize

Scheme = Literal["dark", "light"]
HEIGHTS = {390: 844, 1280: 720, 1920: 1080}
ARTEFACTS = Path(__file__).parent / "artefacts"


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

    def _heard(self, message: ConsoleMessage) -> None:
        # That there are no pictures of remembered states is said on the page
        expected = ("/api/picture", "/api/moment")
        if message.type == "error" and not any(
            path in message.location["url"] for path in expected
        ):
            self.complaints.append(message.text)

    def box(self) -> FloatRect:
        """Where the map is in the window."""
        box = self.page.locator("#map-a").bounding_box()
        assert box is not None
        return box

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def click_memory(self, row: int) -> str:
        """Click a memory on the map, once it answers to the mouse; what the map says of it."""
        box = self.box()
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
