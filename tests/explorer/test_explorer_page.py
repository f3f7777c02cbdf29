"""The files of the page: built from the sources beside them, readable, and all of them shipped."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from importlib import resources
from itertools import product
from pathlib import Path
from urllib.request import urlopen

import pytest

FRONTEND = Path(__file__).parents[2] / "explorer-frontend"
STATIC = resources.files("imel.explorer") / "static"
TEXTS = ("--text", "--muted", "--bad", "--good", "--accent")
GROUNDS = ("--ground", "--panel", "--raised", "--map")


def test_the_bundle_was_built_from_the_sources_as_they_are() -> None:
    digest = hashlib.sha256()
    for file in [*sorted((FRONTEND / "src").iterdir()), FRONTEND / "package-lock.json"]:
        digest.update(file.read_bytes())
    first = (STATIC / "explorer.js").read_text().split("\n", 1)[0]
    assert f"sha256 {digest.hexdigest()};" in first, "run: make explorer-frontend"


def test_the_bundle_comes_with_the_licences_of_what_is_in_it() -> None:
    text = (STATIC / "licences.txt").read_text()
    for name in ("regl-scatterplot", "regl", "kdbush", "gl-matrix", "earcut"):
        assert re.search(rf"^{name} \d[\d.]* \((MIT|ISC)\)$", text, re.MULTILINE)
    assert text.count("Permission") >= 10


def luminance(colour: str) -> float:
    """Of sRGB, as the Web Content Accessibility Guidelines define it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="light"] {'])
def test_text_is_readable_in_both_themes(theme: str) -> None:
    css = (STATIC / "explorer.css").read_text()
    block = css[css.index(theme) :].split("}", 1)[0]
    colours = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
    for text, ground in product(TEXTS, GROUNDS):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["--on-accent"], colours["--accent"]) >= 4.5
    for mark in ("--mean", "--other"):  # what is drawn needs less
        assert contrast(colours[mark], colours["--panel"]) >= 3.0


def test_the_command_serves_the_page_until_it_is_interrupted(run: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    script = "import sys; from imel.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "explore", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "run: 384 memories\n"
            address = process.stdout.readline().split()[0]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
            assert b"<title>imel explore</title>" in urlopen(address).read()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        finally:
            process.kill()
