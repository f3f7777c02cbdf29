"""What `imel why` says of a `RidgePolicy`: the lessons behind an action, in words or as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from imel.explain import LessonExplanation, lesson_words
from imel.explain.explanation import familiarity_words, vector
from imel.pictures.why import Chosen

_COLUMNS = ("episodes", "counts", "steps", "lengths", "returns", "contributions")


def print_lessons(chosen: Chosen, count: int, without: tuple[int, ...]) -> None:
    """Print one step in words, and the first lessons behind it."""
    why, console = chosen.why, Console(highlight=False, markup=False)
    assert isinstance(why, LessonExplanation)
    console.print()
    console.print(f"step {chosen.step} ({chosen.name})", style="bold", soft_wrap=True)
    said = [why.sentence(), familiarity_words(why.familiarity), lesson_words.sensitivity_words(why)]
    if chosen.otherwise is not None:
        said.append(without_words(why, chosen.otherwise, without))
    for line in said:
        # A terminal's lines are broken between words, those in a pipe are left whole
        console.print(line, soft_wrap=not console.is_terminal)
    if not console.is_terminal:
        print(lesson_words.text_table(why, count))
        return
    table = Table(*lesson_words.HEADINGS, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[:4]:
        column.justify = "right"
    for cells in lesson_words.table(why, count):
        table.add_row(*cells)
    console.print(table)


def without_words(why: LessonExplanation, otherwise: Any, without: tuple[int, ...]) -> str:
    """Say what the policy would do without what some episodes taught it."""
    names = ", ".join(map(str, without))
    return (
        f"without the lesson{'s' if len(without) > 1 else ''} of {names}: mean "
        f"{vector(otherwise.mean)}, a change of {vector(otherwise.mean - why.mean)}"
    )


def lessons_document(chosen: Chosen, count: int) -> dict[str, Any]:
    """Return the same as JSON."""
    document = {"step": chosen.step, "chosen": chosen.name, **_document(chosen.why, count)}
    otherwise = chosen.otherwise
    document["without"] = None if otherwise is None else _document(otherwise, count)
    return document


def _document(why: Any, count: int) -> dict[str, Any]:
    lessons = why.lessons
    return {
        "observation": why.observation.tolist(),
        "mean": why.mean.tolist(),
        "kind": "lessons",
        "exact": True,
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
        "sentence": why.sentence(),
        "state_names": list(why.names.state),
        "action_names": list(why.names.action),
        "sensitivity": why.sensitivity.tolist(),
        "lessons": [
            {name: getattr(lessons, name)[i].tolist() for name in _COLUMNS}
            for i in range(min(count, len(lessons)))
        ],
    }
