"""`imel report`: tables and figures from the rows of a store; nothing is run for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.bench.store import LATEST, Store
from imel.cli.arguments import parse
from imel.errors import ImelError, SettingsError
from imel.files import write_atomically
from imel.report.markdown import PAPER_FIGURES, make_report, paper_figure, png
from imel.report.results import gather

_DESCRIPTION = """\
Make a report of a store that `imel bench` has filled: learning curves, a table for every task,
scores over all tasks; as Markdown and PNG. The same rows give the same files.

examples:
  imel report results/paper --out report --into page.md
  imel report runs/bench --baseline ridge   variants of ridge, made by --set, beside it
  imel report figure2 results/paper         the paper's Figure 2 (or figure3) from these runs"""


@dataclass(frozen=True)
class ReportArguments:
    """What is reported, and where to."""

    store: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")] = None
    """Folder of the results; by default the one that `imel bench` has filled last, or
    results/paper."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the report; by default the folder 'report' in the store."""
    baseline: Annotated[str, tyro.conf.arg(metavar="NAME")] = "trpo"
    """The algorithm the others are compared with; its score is 1."""
    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("ppo",)
    """More algorithms to compare with, as far as they were run."""
    into: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Put the text into this page, between its two marks, instead of into DIR/report.md."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    figure = argv[0] if argv and argv[0] in PAPER_FIGURES else None
    words = argv[1:] if figure else argv
    given: ReportArguments = parse(ReportArguments, words, "imel report", _DESCRIPTION)
    store = given.store or latest_store()
    if not store.is_dir():
        raise SettingsError(f"there is no store at {store}")
    rows = Store(store).rows()
    if not rows:
        raise ImelError(f"the store at {store} is empty")
    results, out = gather(rows), given.out or store / "report"
    if figure is not None:
        files = {out / f"{figure}.png": png(paper_figure(results, figure))}
    else:
        page = given.into or out / "report.md"
        images = Path(os.path.relpath(out, page.parent)).as_posix()
        around = ("# Benchmark report\n\n", "")
        if given.into:  # a page without marks is refused before anything is drawn
            around = around_marks(page, "report")
        prefix = "" if images == "." else f"{images}/"
        report = make_report(results, given.baseline, given.against, prefix)
        for note in report.notes:
            print(f"note: {note}")
        files = {out / name: png(figure) for name, figure in report.figures.items()}
        files[page] = report.body.join(around).encode()
    for path, content in files.items():
        write_atomically(path, content)
        print(path)
    return 0


def latest_store() -> Path:
    """Return the store that `imel bench` has filled last, or the paper's."""
    noted = Path(LATEST.read_text(encoding="utf-8") if LATEST.is_file() else "results/paper")
    return noted.relative_to(Path.cwd()) if noted.is_relative_to(Path.cwd()) else noted


def around_marks(page: Path, name: str) -> tuple[str, str]:
    """The page up to and with the first mark of this name, and from the second."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SettingsError(f"{page} lacks the lines '{begin}' and '{end}'")
    return f"{before}{begin}\n\n", f"\n{end}{after}"
