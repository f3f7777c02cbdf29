"""What the explorer asks of a policy: its rows, their places and colours, and what made an action.

An `Insight` sees a policy as memories, a `LessonInsight` (`imel.explorer.lesson_view`) as lessons.
Rows are those of the policy as it was loaded: they keep their numbers when some are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.explain import familiarity_of
from imel.policies import Policy
from imel.policies.names import DimensionNames

Array = NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]
"""A document, and arrays beside it."""

LIT, LISTED = 400, 24
"""Rows that light up on the map, and those that are listed, the largest shares first."""
_SMALLEST = 1e-4
"""Memories with a smaller share are not shown."""
_WEIGHTS_AT_ONCE = 1 << 23
"""Shares held in memory while many states are answered: 32 MiB of float32."""


class Space(NamedTuple):
    """A space in which the rows of a model are points; a map shows a plane of it."""

    points: Callable[[Any], Tensor]  # an insight of the same kind -> its rows [N, d]
    states: Callable[[Tensor], Tensor] | None = None  # raw states -> [n, d], if they have a place
    axes: tuple[str, str] | None = None  # labels of two dimensions that are shown as they are


class Insight:
    """A policy with all of its memory, or with some of it left out."""

    kind: ClassVar = "memories"
    """What its rows are: the points of the map, which can be forgotten."""
    columns: tuple[str, ...] = ("episodes", "steps", "iterations", "advantages", "rewards")
    """What a page needs of every row."""
    colours: ClassVar = {
        "advantage": ("advantages", "advantage"),
        "return": ("returns", "return of its episode, as far as remembered"),
        "age": ("iterations", "iteration that made it"),
        "reward": ("rewards", "reward of the step"),
        "action": ("actions", "action taken"),
        "improved": ("improved_means", "improved mean μ*"),
    }
    """Quantities of every row: the column, and its name."""

    def __init__(
        self, policy: Policy, names: DimensionNames, forgotten: Array | None = None
    ) -> None:
        self.policy, self.names = policy, names
        self.rows = self._count()
        self.forgotten = np.zeros(self.rows, dtype=bool) if forgotten is None else forgotten
        self.left = policy if forgotten is None else self._reduced()
        """The policy that answers."""

    def _count(self) -> int:
        return len(self.policy.memory)

    def _reduced(self) -> Policy:
        return self.policy.without(rows=self.forgotten)

    def require_rows(self) -> None:
        """Refuse to be asked about a policy that has learned nothing yet."""
        if not self.rows:
            raise ImelError("the model remembers nothing yet: it has not been trained")

    # --- a model in a few numbers, and its rows ---

    def describe(self) -> dict[str, Any]:
        """Return what a page is told of a model when it opens it."""
        return {
            "policy": type(self.policy).__name__,
            "kind": self.kind,
            "rows": self.rows,
            "last_step": None,  # is known of lessons
            "forgotten": int(self.forgotten.sum()),
            "weighted": self.weighted,
            "projection": self.first_projection,
            "has_features": self.has_features,
            "state_names": self.names.state,
            "action_names": self.names.action,
        }

    @property
    def first_projection(self) -> str:
        """The map that is shown first."""
        return "features" if self.has_features else "states"

    @cached_property
    def has_features(self) -> bool:
        """Whether the policy compares states in a learned space."""
        some = self.tensor(np.zeros((1, self.policy.state_dim)))
        return not torch.equal(self.policy.embed(some), self.policy.normaliser(some))

    @property
    def weighted(self) -> bool:
        """Whether each row has a share in every action."""

        def shares() -> bool:
            (why,) = self.policy.explain(self.tensor(self.memory("states")[:1]), self.names)
            return getattr(why, "kind", None) in ("sum", "attention")

        return bool(self.rows) and self.policy.cached("weighted", shares)

    def memory(self, name: str) -> Array:
        """Return a column of the whole memory."""
        return self.policy.memory.column(name).numpy(force=True)

    def column(self, name: str) -> Array:
        """Return a quantity of every row: a column of the memory, or the return of its episode."""
        if name in self.policy.memory.column_names:
            return self.memory(name)
        if name != "returns":
            raise ImelError(f"memories have no {name}")
        _, member = np.unique(self.memory("episodes"), return_inverse=True)
        totals = np.bincount(member, weights=self.memory("rewards"))
        return np.asarray(totals[member])

    def state(self, row: int, number: int | None = None) -> Array:
        """Return a remembered state, or one of those that are kept of a lesson."""
        kept = self.memory("states")[:, None] if number is None else self.column("samples")
        number = number or 0
        if row >= kept.shape[0] or number >= kept.shape[1]:
            raise ImelError(f"there is no state {number} of row {row}")
        return np.asarray(kept[row, number])

    # --- the map ---

    def space(self, projection: str) -> Space:
        """Return the space of a map: `features`, `states`, or `dimensions-0-1` of the state."""
        place, axes = self.policy.normaliser.__call__, None
        if projection == "features":
            if not self.has_features:
                raise ImelError("this policy has no learned features; choose another projection")
            place = self.policy.embed
        elif dimensions := re.fullmatch(r"dimensions-(\d{1,4})-(\d{1,4})", projection):
            x, y = (int(number) for number in dimensions.groups())
            width = self.policy.state_dim
            if max(x, y) >= width:
                raise ImelError(f"the state has dimensions 0 to {width - 1}, not {max(x, y)}")
            axes = self.names.state[x], self.names.state[y]
            place = lambda states: states[:, [x, y]]  # noqa: E731
        elif projection != "states":
            raise ImelError(f"memories have no map by '{projection}'")
        rows = lambda model: place(model.policy.memory.column("states"))  # noqa: E731
        return Space(rows, place, axes)

    def quantity(self, by: str, dimension: int) -> tuple[Array, str]:
        """Return a quantity of every row, to colour it by, and its name."""  # [N]
        if by not in self.colours:
            raise ImelError(f"{self.kind} have no colour by '{by}'")
        column, name = self.colours[by]
        values = self.column(column)
        if values.ndim == 1:
            return values, name
        width = values.shape[1]
        if dimension >= width:
            raise ImelError(f"actions have dimensions 0 to {width - 1}, not {dimension}")
        several = f", {self.names.action[dimension]}" if width > 1 else ""
        return values[:, dimension], name + several

    # --- actions ---

    def means(self, states: Array) -> Array:
        """Return mu at many raw states."""  # [T, d_s] -> [T, d_a]
        size = max(1, _WEIGHTS_AT_ONCE // max(1, self.rows))
        parts = (self.tensor(states[i : i + size]) for i in range(0, len(states), size))
        return np.concatenate([self.left.act(part)[0].numpy(force=True) for part in parts])

    def step(self, state: Array) -> Answer:
        """Return the action at a raw state, and the rows that made it."""
        asked = self.tensor(state[None])
        mean, std = (part[0].tolist() for part in self.left.act(asked))
        familiarity = float(familiarity_of(self.left)(asked)[0])
        document = {
            "mean": mean,
            # Where actions are discrete there is none
            "std": std if self.policy.distribution.has_std else [0.0] * len(std),
            "familiarity": None if np.isnan(familiarity) else familiarity,
        }
        found, arrays = self._behind(state)
        return {**document, **found}, arrays

    def _behind(self, state: Array) -> Answer:
        """Return the memories that light up, and those with the largest shares in full."""
        if not self.weighted:
            return {"anchor": None, "exact": False, "memories": []}, {}
        why: Any = self.left.explain(self.tensor(state[None]), self.names)[0]
        shown = int((np.abs(why.weights[:LIT]) >= _SMALLEST).sum())
        rows, weights = np.flatnonzero(~self.forgotten)[why.rows[:shown]], why.weights[:shown]
        document = {
            # The average of the memories' means before their improvements
            "anchor": (why.weights @ why.means).tolist() if why.exact else None,
            "exact": why.exact,
            "effective_neighbours": why.effective_neighbours,
            "memories": [
                {
                    "row": int(row),
                    "weight": float(weights[i]),
                    "episode": int(why.episodes[i]),
                    "step": int(why.steps[i]),
                    "iteration": int(self.memory("iterations")[row]),
                    "advantage": float(why.advantages[i]),
                    "mean": why.means[i].tolist(),
                    "improved": why.improved_means[i].tolist(),
                    "adds": why.contributions[i].tolist(),
                }
                for i, row in enumerate(rows[:LISTED])
            ],
        }
        return document, {"rows": rows, "weights": weights}

    def tensor(self, states: Array) -> Tensor:
        """Return raw states as the policy takes them."""
        return torch.as_tensor(np.asarray(states, dtype=np.float32), device=self.policy.device)
