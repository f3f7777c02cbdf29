"""What README and docs show is true: their code runs, their commands and names exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from imel.cli.main import COMMANDS, main
from imel.settings import Settings
from small import BATCH, LogBook, small_model
from toy import FloatArray, ScriptedEnv

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("console", "sh", "bash", "shell")


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in some languages."""
    fenced = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [body for language, body in fenced if language in languages]


def commands(text: str) -> list[list[str]]:
    """The commands of a page's shell blocks, as words; output shown below a `$ ` is skipped."""
    found = []
    for block in blocks(text, *SHELLS):
        lines = block.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            for part in re.split(r"&&|\|\||[;|]", line):
                words = shlex.split(part, comments=True)
                if words:
                    found.append([Path(words[0]).name, *words[1:]])
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_words(text: str) -> list[str]:
    """The make targets and imel commands a page's shell blocks name, and which do not exist."""
    unknown = []
    for program, *words in commands(text):
        plain = [word for word in words if not word.startswith("-") and "=" not in word]
        if program == "make":
            unknown += [word for word in plain if word not in make_targets()]
        elif program == "imel":
            unknown += [word for word in plain[:1] if word not in COMMANDS]
    return unknown


def test_readme_shows_python() -> None:
    assert blocks((ROOT / "README.md").read_text(), "python")


def test_the_python_of_every_page_runs(tmp_path: Path) -> None:
    # Blocks in order, as someone reading the page would type them; all pages in one process, for
    # it is the imports that take long
    scripts = []
    for page in PAGES:
        scripts.append(f"{page.stem}.py")
        (tmp_path / scripts[-1]).write_text("\n".join(blocks(page.read_text(), "python")))
    run_all = f"import runpy\nfor path in {scripts}: runpy.run_path(path, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", run_all], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert unknown_words(page.read_text()) == []


def test_the_options_of_shown_commands_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for page in PAGES:
        for program, *words in commands(page.read_text()):
            if program == "imel" and words[:1] and words[0] in COMMANDS:
                assert main([words[0], "--help"]) == 0
                known = set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert options <= known, f"{page.name}: {words}"


def test_the_check_for_commands_notices_what_is_wrong() -> None:
    page = (
        "```console\n$ make test && make tset  # twice\nmake nothing\n$ bin/imel tarin X\n```\n"
        "```sh\nOUT=1\nmake -n check RUN=a \\\n  dosc\nimel train Pendulum-v1 --seed 1\n```\n"
        "```python\nmake = 1\n```\n"
    )
    assert unknown_words(page) == ["tset", "tarin", "dosc"]
    assert blocks(page, "python") == ["make = 1\n"]


class Successful(ScriptedEnv):
    """Reports success, so that everything there is to log is logged."""

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "is_success": True}


def test_the_metrics_page_lists_exactly_what_is_logged() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = re.findall(r"^\| `(\w+/\w+)` \|", page, re.MULTILINE)
    logged: set[str] = set()
    for update in ("plain", "anchored"):
        model = small_model(env=Successful(), update=update)
        book = LogBook.of(model)
        model.learn(BATCH)
        logged |= set(book.pages[0])

    assert sorted(listed) == sorted(logged)


def test_the_metrics_page_says_of_each_key_its_meaning_unit_and_healthy_values() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| (`\w+/\w+`) \|(.*)\|$", page, re.MULTILINE)
    assert rows
    for key, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        assert len(cells) == 3, key
        assert all(cells), key


def test_the_settings_page_names_every_setting() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert [field.name for field in fields(Settings) if f"`{field.name}`" not in page] == []
