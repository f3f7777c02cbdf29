"""The examples run: scripts and notebooks, in their short form."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from pages import ROOT

FOLDER = ROOT / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMEL_SHORT", "1")


def test_there_are_ten_scripts_and_three_notebooks_that_the_pages_link() -> None:
    assert (len(SCRIPTS), len(NOTEBOOKS)) == (10, 3)
    page = (FOLDER / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", page)) == sorted(
        path.name for path in [*SCRIPTS, *NOTEBOOKS]
    )
    for name in ("README.md", "docs/index.md"):
        assert "examples/" in (ROOT / name).read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_and_is_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 45
    assert ast.get_docstring(ast.parse(text))
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_small_outputs_and_a_picture(path: Path, tmp_path: Path) -> None:
    assert path.stat().st_size < 100_000
    read: Any = nbformat.read
    book = read(path, 4)
    kinds = {kind for cell in book.cells for out in cell.get("outputs", []) for kind in _kinds(out)}
    assert "image/png" in kinds
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def _kinds(output: Any) -> set[str]:
    assert output.output_type != "error"
    return set(output.get("data", ()))
