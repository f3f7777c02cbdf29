"""Pages of Markdown as programs: their blocks, what their commands are, and how they are run.

`python tests/pages.py docs/tutorial.md` runs the tutorial, and writes what it prints and draws
into the page; `make tutorial` does this.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from imel.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"
SHELLS = ("console", "bash")
OUTPUT = "text"

_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """The text between two fences, and its place in the page."""

    language: str
    body: str
    start: int
    end: int


def blocks(text: str, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page, all of them or those in some languages."""
    found = [Block(one[1].strip(), one[2], *one.span(2)) for one in _FENCED.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def program(text: str) -> str:
    """Return a page's Python in order, each line where it is on the page, for tracebacks."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks(text, "python"):
        first = text.count("\n", 0, block.start)
        for number, line in enumerate(block.body.splitlines(), start=first):
            lines[number] = line
    return "\n".join(lines)


def commands(body: str) -> list[list[str]]:
    """Return the commands of a shell block as words; output shown below a `$ ` is skipped."""
    found = []
    lines = body.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        for part in re.split(r"&&|\|\||[;|]", re.sub(r"(^|\s)#.*", "", line)):
            words = shlex.split(part)
            while words and re.fullmatch(r"\w+=\S*", words[0]):  # a variable for what follows
                words = words[1:]
            if words:
                found.append([Path(words[0]).name, *words[1:]])
    return found


def run_page(text: str, folder: Path, replaced: Mapping[str, str]) -> str:
    """Run a page's Python and its `imel` commands in a folder; the page with what they print.

    A block of output belongs to the block before it. `replaced` are words of the page that are
    others in what is run.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed, result, place = "", "", 0
    scripts = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    with contextlib.chdir(folder), patch.dict(os.environ, PATH=scripts):
        for block in blocks(text):
            result += text[place : block.start]
            result += printed if block.language == OUTPUT else block.body
            place = block.end
            body = block.body
            for old, new in replaced.items():
                body = body.replace(old, new)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                if block.language == "python":
                    first = text.count("\n", 0, block.start)
                    exec(compile("\n" * first + body, "page.py", "exec"), namespace)
                elif block.language in SHELLS:
                    for name, *words in commands(body):
                        if name == "imel" and main(words) != 0:
                            raise RuntimeError(f"imel {shlex.join(words)} failed")
            printed = "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())
    return result + text[place:]


def refresh(page: Path) -> None:
    """Run a page as it is, and put what it prints and draws where it shows it."""
    from PIL import Image

    text = page.read_text()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        page.write_text(run_page(text, folder, {}))
        for name in re.findall(rf"\(images/{page.stem}/([\w-]+\.png)\)", text):
            ways = (folder / name, folder / "runs" / page.stem / name)
            drawn = next(way for way in ways if way.is_file())
            target = page.parent / "images" / page.stem / name
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(drawn).convert("RGB").quantize(256).save(target, optimize=True)


if __name__ == "__main__":
    refresh(Path(sys.argv[1]))
