"""An explanation: an answer of the policy beside the memories behind it, to be read or drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from imel.distributions import Distribution, listed, vector
from imel.policies.names import DimensionNames

Array = NDArray[Any]

Kind = Literal["sum", "attention", "sensitivity", "none"]
"""What a memory's weight is.

`sum`: its share in the answer; the answer is the sum of all contributions
(MKI, nearest neighbours).
`attention`: how much the network looked at it; what it made of that is not a sum.
`sensitivity`: how much the answer would move with its value, as a share of all such movements.
`none`: memories take no part in the answer (the regressor); they are in order of distance.
"""

COLUMNS = ("states", "actions", "means", "improved_means", "advantages", "episodes", "steps")
"""The columns of the memory that an explanation shows."""

_CONNECTION: dict[Kind, str] = {
    "sum": "is the sum of what {count:,} memories add, and rests on about {about} of them",
    "attention": "comes from a network whose attention rests on about {about} of {count:,} "
    "memories (where it looked, not what they added)",
    "sensitivity": "comes from a network and {count:,} memories; it is sensitive to about {about} "
    "of them (shares of d mean / d mu, not what they added)",
    "none": "comes from a network that does not consult its {count:,} memories; the nearest are "
    "shown",
}


class Readable(ABC):
    """What explanations by memories and by lessons have in common: sentences and a short table."""

    mean: Array
    familiarity: float
    distribution: Distribution
    names: DimensionNames
    headings: tuple[str, ...]
    """What the cells of the table are."""
    widths: ClassVar[tuple[int, ...]]
    """Characters of all columns but the last, in a pipe."""

    @property
    def answer(self) -> str:
        """What the policy does, in words."""
        return self.distribution.words(self.mean, self.names.action)

    @property
    def columns_of_logits(self) -> str:
        """Say which column of the logits is which option; empty where actions are continuous."""
        return f"logits of {listed(self.names.action)}" if self.distribution.sizes else ""

    @abstractmethod
    def sentence(self) -> str:
        """Say where the mean comes from."""

    @abstractmethod
    def table(self, count: int) -> list[tuple[str, ...]]:
        """Return the first rows in words, under the headings."""

    def familiarity_sentence(self) -> str:
        """Say how much the state is like what is remembered."""
        if np.isnan(self.familiarity):
            return "familiarity is unknown: the memory holds a single episode"
        if self.familiarity == 0.0:
            return (
                "familiarity 0 %: unlike anything remembered, farther from the memories than they "
                "are from each other's episodes"
            )
        return (
            f"familiarity {100 * self.familiarity:.0f} %: that share of the memories lies at least "
            "as far from all other episodes"
        )

    def as_text_table(self, count: int = 8) -> str:
        """Return the first rows as lines under headings."""
        lines = []
        for *cells, last in (self.headings, *self.table(count)):
            aligned = (cell.rjust(width) for cell, width in zip(cells, self.widths, strict=True))
            lines.append("  ".join([*aligned, last]))
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.sentence(), self.familiarity_sentence(), self.as_text_table()])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence()}>"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Readable):
    """An action's mean and every memory's part in it, the largest weight first.

    If `exact`, `contributions` sum to `mean`. Otherwise they are weights times values where there
    is attention, and first derivatives times values where there is sensitivity. Means and actions
    are in policy units: the action range is [-1, 1].
    """

    widths = (7, 7, 5, 9)

    observation: Array  # [d_s] raw
    mean: Array  # [d_a]
    kind: Kind
    familiarity: float
    """The share of memories that are at least as far from the other episodes as this state is
    from memory: 1 is as familiar as anything remembered, 0 farther off than any memory. NaN if
    the memory holds a single episode."""
    effective_neighbours: float
    """exp of the weights' entropy: how many memories the answer rests on."""
    weights: Array  # [N]
    contributions: Array  # [N, d_a] what each memory adds to the mean
    rows: Array  # [N] the memories' places in the policy's memory: what `without` takes
    improved_means: Array  # [N, d_a]
    means: Array  # [N, d_a]
    actions: Array  # [N, d_a]
    advantages: Array  # [N]
    states: Array  # [N, d_s] raw
    episodes: Array  # [N]
    steps: Array  # [N]
    distribution: Distribution
    names: DimensionNames

    @staticmethod
    def columns() -> tuple[str, ...]:
        """The fields that are columns of the memory."""
        return COLUMNS

    @property
    def exact(self) -> bool:
        """Whether the contributions are the computation itself: their sum is the mean."""
        return self.kind == "sum"

    @property
    def headings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the cells of the table are."""
        change = "mu -> mu*  (what it adds)" if self.exact else "mu -> mu*"
        if self.columns_of_logits:
            change += f", {self.columns_of_logits}"
        return ("share", "episode", "step", "advantage", change)

    def sentence(self) -> str:
        """Where the mean comes from, in words."""
        about = f"{self.effective_neighbours:.{0 if self.effective_neighbours >= 10 else 1}f}"
        said = _CONNECTION[self.kind].format(count=len(self.weights), about=about)
        return f"{self.answer} {said}"

    def table(self, count: int) -> list[tuple[str, ...]]:
        """The first rows in words, under the headings."""
        return [
            (
                "-" if self.kind == "none" else f"{self.weights[i]:.1%}",
                f"{self.episodes[i]}",
                f"{self.steps[i]}",
                f"{self.advantages[i]:+.2f}",
                f"{vector(self.means[i])} -> {vector(self.improved_means[i])}"
                + (f"  ({vector(self.contributions[i], digits=3)})" if self.exact else ""),
            )
            for i in range(min(count, len(self.weights)))
        ]

    def _repr_html_(self) -> str:
        from imel.explain.picture import draw_memories

        return draw_memories(self)
