"""Models, actions and memories as the page is told of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.explorer.insight import Answer, Insight

Array = NDArray[Any]

_LIT, _LISTED = 400, 24
"""Memories that light up on the map, and those that are listed, the largest shares first."""
_FEWEST = 1e-4
"""Shares below this are not shown."""


def describe(insight: Insight) -> dict[str, Any]:
    """A model in a few numbers."""
    return {
        "policy": insight.name,
        "rows": insight.rows,
        "forgotten": int(insight.forgotten.sum()),
        "weighted": insight.weighted,
        "has_features": insight.has_features,
        "state_dim": insight.state_dim,
        "action_dim": insight.action_dim,
    }


def describe_answer(insight: Insight, answer: Answer) -> tuple[dict[str, Any], dict[str, Array]]:
    """An action, and the memories behind it: those that light up, and a few in words."""
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
    names = {
        "state": "states",
        "action": "actions",
        "mean": "means",
        "improved": "improved_means",
        "advantage": "advantages",
        "reward": "rewards",
        "episode": "episodes",
        "step": "steps",
        "iteration": "iterations",
    }
    if row >= insight.rows:
        raise ImelError(f"there is no memory {row}")
    return {"row": row, **{key: insight.column(name)[row].tolist() for key, name in names.items()}}
