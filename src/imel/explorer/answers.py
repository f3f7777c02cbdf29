"""Models, actions, memories and curves as the page is told of them: JSON, or packed arrays.

A packed answer is one run of bytes, so that a hundred thousand memories are a moment:

    uint32 length of the header | header: JSON, padded with spaces to a multiple of 4 | float32 ...

all little-endian. The header's `arrays` names what follows: `[[name, [shape]], ...]`, in order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explain.lesson_words import episode_words, steps_words
from imel.explorer.insight import Answer, Insight
from imel.explorer.lessons import LessonInsight
from imel.pictures.curve import read_curve
from imel.pictures.style import summarise_near
from imel.runs import layout

Array = NDArray[Any]

MEDIA_TYPE = "application/vnd.imel.arrays"
_LIT, _LISTED = 400, 24
"""Memories that light up on the map, and those that are listed, the largest shares first."""
_FEWEST = 1e-4
"""Shares below this are not shown."""
_DOTS = 2000
"""Episodes of the learning curve that are drawn as dots."""


def describe(insight: Insight) -> dict[str, Any]:
    """A model in a few numbers."""
    return {
        "policy": type(insight.policy).__name__,
        "kind": insight.kind,
        "rows": insight.rows,
        "last_step": insight.last_step,
        "forgotten": int(insight.forgotten.sum()),
        "weighted": insight.weighted,
        "projection": insight.first_projection,
        "has_features": insight.has_features,
        "state_names": insight.names.state,
        "action_names": insight.names.action,
    }


def describe_step(insight: Insight, state: Array) -> tuple[dict[str, Any], dict[str, Array]]:
    """An action, and what is behind it: lessons or memories."""
    if isinstance(insight, LessonInsight):
        return _describe_lessons(insight, state)
    return _describe_memories(insight, insight.answer(state))


def _describe_lessons(
    insight: LessonInsight, state: Array
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The share of every lesson, and the largest in words, with the state of each most alike."""
    why, rows = insight.why(state)
    signed = why.shares  # [L]
    shares = np.zeros(insight.rows, dtype=np.float32)
    shares[rows] = signed
    order = np.argsort(-np.abs(signed), kind="stable")
    listed = order[~insight.forgotten[rows[order]]][:_LISTED]
    alike = insight.alike(state, rows[listed])
    lessons, scaled = why.lessons, why.distribution.has_std
    document = {
        "mean": why.mean.tolist(),
        "std": (insight.left.std if scaled else 0.0 * insight.left.std).tolist(),
        "familiarity": None if np.isnan(why.familiarity) else why.familiarity,
        # Bars show a mean, but not the probabilities behind logits
        "sentence": why.sentence().rpartition(": ")[2] if scaled else why.sentence(),
        "depends": why.sensitivity_sentence(),
        "lessons": [
            {
                "row": int(rows[i]),
                "name": episode_words(lessons.episodes[i], lessons.counts[i]),
                "steps": steps_words(*lessons.steps[i]),
                "return": float(lessons.returns[i]),
                "share": float(signed[i]),
                "adds": lessons.contributions[i].tolist(),
                "moment": int(moment),
            }
            for i, moment in zip(listed, alike, strict=True)
        ],
    }
    lit = np.argsort(-np.abs(shares), kind="stable")[:_LIT]
    return document, {"shares": shares, "rows": lit, "weights": shares[lit]}


def _describe_memories(insight: Insight, answer: Answer) -> tuple[dict[str, Any], dict[str, Array]]:
    """The memories that light up, and a few in words."""
    document: dict[str, Any] = {
        "mean": answer.mean.tolist(),
        "std": answer.std.tolist(),
        "anchor": None if answer.anchor is None else answer.anchor.tolist(),
        "exact": answer.exact,
        "familiarity": answer.familiarity,
        "effective_neighbours": answer.effective_neighbours,
        "covered": 0.0,
        "memories": [],
    }
    if answer.weights is None or answer.contributions is None:
        return document, {}
    sizes = np.abs(answer.weights)
    largest = min(_LIT, len(sizes))
    rows = np.argpartition(sizes, -largest)[-largest:]
    rows = rows[np.argsort(-sizes[rows], kind="stable")]
    rows = rows[sizes[rows] >= _FEWEST]
    weights = answer.weights[rows]
    document["covered"] = float(weights.sum())
    document["memories"] = [
        {
            **describe_memory(insight, int(row)),
            "weight": float(answer.weights[row]),
            "adds": answer.contributions[row].tolist(),
        }
        for row in rows[:_LISTED]
    ]
    return document, {"rows": rows, "weights": weights}


def describe_memory(insight: Insight, row: int) -> dict[str, Any]:
    """One memory in full."""
    if row >= len(insight.policy.memory):
        raise ImelError(f"there is no memory {row}")
    vectors = ("states", "actions", "means", "improved_means")
    numbers = ("advantages", "rewards", "episodes", "steps", "iterations")
    values = {name: insight.column(name)[row].tolist() for name in (*vectors, *numbers)}
    return {"row": row} | {n.removesuffix("_means").removesuffix("s"): v for n, v in values.items()}


def describe_curve(folder: Path) -> dict[str, Any] | None:
    """Return the curve of a run directory as plain lists; None without a record of training."""
    monitor = folder / layout.MONITOR
    if not monitor.is_file():
        return None
    curve = read_curve(monitor, folder / layout.EVALUATION, "")
    if not len(curve.returns):
        return None
    trend = summarise_near(curve.steps, curve.returns)
    shown = np.unique(np.linspace(0, len(curve.returns) - 1, _DOTS).astype(int))
    evaluation = curve.evaluation
    return {
        "steps": curve.steps[shown].tolist(),
        "returns": curve.returns[shown].tolist(),
        "places": _finite(trend.places),
        "mean": _finite(trend.mean),
        "low": _finite(trend.low),
        "high": _finite(trend.high),
        "evaluation": None
        if evaluation is None
        else {"steps": evaluation.steps, "mean": evaluation.mean, "std": evaluation.std},
    }


def _finite(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def pack(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A JSON document and arrays as one run of bytes."""
    layout = [[name, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({**document, "arrays": layout}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    body = [np.ascontiguousarray(array, dtype="<f4").tobytes() for array in arrays.values()]
    return b"".join([struct.pack("<I", len(header)), header, *body])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """What `pack` made; the page's own reader does the same."""
    (length,) = struct.unpack_from("<I", content)
    document: dict[str, Any] = json.loads(content[4 : 4 + length])
    arrays, offset = {}, 4 + length
    for name, shape in document.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, "<f4", count, offset).reshape(shape)
        offset += 4 * count
    return document, arrays
