"""What `imel why` says: a table on a terminal, plain lines in a pipe, or JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from imel.explain import Explanation
from imel.explain.explanation import vector
from imel.pictures.why import Chosen

_COLUMNS = ("rows", "weights", "contributions", *Explanation.columns())


def print_answer(chosen: Chosen, count: int, without: tuple[int, ...]) -> None:
    """One step in words, and the first memories behind it."""
    why, console = chosen.why, Console(highlight=False, markup=False)
    console.print()
    console.print(f"step {chosen.step} ({chosen.name})", style="bold", soft_wrap=True)
    said = [f"state {vector(why.observation, 12)}", why.sentence(), why.familiarity_sentence()]
    if chosen.otherwise is not None:
        said.append(counterfactual(why, chosen.otherwise, without))
    for line in said:
        # A terminal's lines are broken between words, those in a pipe are left whole
        console.print(line, soft_wrap=not console.is_terminal)
    if not console.is_terminal:
        print(why.as_text_table(count))
        return
    table = Table(*why.headings, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[:4]:
        column.justify = "right"
    for cells in why.table(count):
        table.add_row(*cells)
    console.print(table)


def counterfactual(why: Explanation, otherwise: Explanation, without: tuple[int, ...]) -> str:
    """What the policy would do, had it not seen some episodes."""
    left = len(why.rows) - len(otherwise.rows)
    names = ", ".join(map(str, without))
    change = otherwise.mean - why.mean
    lost = why.weights[np.isin(why.episodes, without)].sum()
    weight = f", whose weight here is {lost:.1%}" if why.kind != "none" else ""
    return (
        f"without episode{'s' if len(without) > 1 else ''} {names} ({left} memories{weight}): "
        f"mean {vector(otherwise.mean)}, a change of {vector(change)}; "
        f"familiarity {otherwise.familiarity:.2f} instead of {why.familiarity:.2f}"
    )


def as_document(chosen: Chosen, count: int) -> dict[str, Any]:
    """The same as JSON."""
    document = {"step": chosen.step, "chosen": chosen.name, **_document(chosen.why, count)}
    otherwise = chosen.otherwise
    document["without"] = None if otherwise is None else _document(otherwise, count)
    return document


def _document(why: Explanation, count: int) -> dict[str, Any]:
    return {
        "observation": why.observation.tolist(),
        "mean": why.mean.tolist(),
        "kind": why.kind,
        "exact": why.exact,
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
        "effective_neighbours": why.effective_neighbours,
        "memories": [
            {name: getattr(why, name)[i].tolist() for name in _COLUMNS}
            for i in range(min(count, len(why.rows)))
        ],
    }
