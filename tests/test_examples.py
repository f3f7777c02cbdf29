"""The examples run: scripts and notebooks, in their short form."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from imel.cli.main import main
from pages import ROOT

FOLDER = ROOT / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGER = {"imel_in_one_file": 300, "own_policy": 75}
ARGUMENTS = {"imel_in_one_file": ["--steps", "2048"]}


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMEL_SHORT", "1")


def test_there_are_twelve_scripts_and_three_notebooks_that_the_pages_link() -> None:
    assert (len(SCRIPTS), len(NOTEBOOKS)) == (12, 3)
    page = (FOLDER / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", page)) == sorted(
        path.name for path in [*SCRIPTS, *NOTEBOOKS]
    )
    for name in ("README.md", "docs/index.md"):
        assert "examples/" in (ROOT / name).read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_and_is_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGER.get(path.stem, 45)
    assert ast.get_docstring(ast.parse(text))
    monkeypatch.setattr(sys, "argv", [str(path), *ARGUMENTS.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")


def test_a_policy_of_ones_own_is_trained_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    policy = ["--policy", "own_policy:FourierPolicy", "--bandwidth", "1.5"]
    assert main(["train", "Pendulum-v1", *policy, "--total-timesteps", "1024"]) == 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_small_outputs_and_a_picture(path: Path, tmp_path: Path) -> None:
    assert path.stat().st_size < 100_000
    book: Any = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert all(output.output_type != "error" for output in outputs)
    assert any("image/png" in output.get("data", ()) for output in outputs)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
