"""What explanations by lessons and by memories have in common: a mean, to be read or drawn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from html import escape
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from imel.distributions import Categorical, Distribution, listed, vector
from imel.explain.familiarity import familiarity_of
from imel.policies import Policy
from imel.policies.names import DimensionNames

Array = NDArray[Any]

_BAR, _DRAWN = 75, 10
"""In a notebook: pixels of the longest bar to each side, and rows of the table."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiences:
    """What the policy's memory holds of some experiences, in policy units."""

    rows: Array  # [n] places in the policy's memory: what `without` takes
    episodes: Array  # [n]
    steps: Array  # [n] within the episode
    states: Array  # [n, d_s] raw
    actions: Array  # [n, d_a] taken
    means: Array  # [n, d_a] mu, when it was improved last
    improved_means: Array  # [n, d_a] mu*
    advantages: Array  # [n]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def asked(self) -> Array:
        """What each experience asked for in the last update: mu* - mu."""  # [n, d_a]
        return np.asarray(self.improved_means - self.means)


COLUMNS = tuple(field.name for field in fields(Experiences) if field.name != "rows")
"""The columns of the memory that an explanation shows."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Readable(ABC):
    """A mean, and where it comes from: arrays in policy units, words in the environment's."""

    widths: ClassVar[tuple[int, ...]]  # characters of all columns but the last, in a pipe

    observation: Array  # [d_s] raw
    mean: Array  # [d_a] before it is clipped to the action range; logits of discrete actions
    familiarity: float  # the share of remembered states that are as unusual, or NaN
    names: DimensionNames
    distribution: Distribution
    middle: Array | float = 0.0  # [d_a] of the action range, in the environment's units
    scale: Array | float = 1.0  # [d_a] the environment's units of one policy unit; 1 of logits

    @property
    @abstractmethod
    def headings(self) -> tuple[str, ...]:
        """What the cells of the table are."""

    @property
    @abstractmethod
    def shares(self) -> Array:
        """The share of each row of the table, as a notebook draws it."""

    @abstractmethod
    def table(self, count: int) -> list[tuple[str, ...]]:
        """Return the first rows in words, under the headings."""

    @abstractmethod
    def sentence(self) -> str:
        """Say where the mean comes from."""

    def sentences(self) -> list[str]:
        """Return all there is to say beside the table."""
        return [self.sentence(), self.familiarity_sentence()]

    @property
    def answer(self) -> str:
        """What the policy does, in words."""
        if isinstance(self.distribution, Categorical):
            return self.distribution.words(self.mean, self.names.action)
        clipped = " before clipping" if np.abs(self.mean).max() > 1.0 else ""
        return f"mean {self.in_units(self.mean)}{clipped}"

    @property
    def columns_of_logits(self) -> str:
        """Say which column of the logits is which option; empty where actions are continuous."""
        return f"logits of {listed(self.names.action)}" if self.distribution.sizes else ""

    @property
    def origin(self) -> str:
        """The mean without any contribution, where it is not zero in the environment's units."""
        return self.in_units(0.0 * self.mean) if np.any(self.middle) else ""

    def in_units(self, values: Array, digits: int = 2, change: bool = False) -> str:
        """Return means, or changes of means, in the environment's units."""
        # A range narrower than [-1, 1] needs more digits
        digits += max(0, math.ceil(-math.log10(max(float(np.min(self.scale)), 1e-4))))
        return vector((0.0 if change else self.middle) + self.scale * values, digits=digits)

    def familiarity_sentence(self) -> str:
        """Say how much the state is like what is remembered."""
        if np.isnan(self.familiarity):
            return "familiarity is unknown: fewer than two episodes are remembered"
        if self.familiarity == 0.0:
            return "familiarity 0 %: no remembered state is this unusual, the policy extrapolates"
        share = f"{100 * self.familiarity:.0f} %"
        return f"familiarity {share}: {share} of remembered states are at least this unusual"

    def as_text_table(self, count: int = 8) -> str:
        """Return the first rows as lines under headings."""
        lines = []
        for *cells, last in (self.headings, *self.table(count)):
            aligned = (cell.rjust(width) for cell, width in zip(cells, self.widths, strict=True))
            lines.append("  ".join([*aligned, last]))
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([*self.sentences(), self.as_text_table()])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence()}>"

    def _repr_html_(self) -> str:
        said = "<br/>".join(map(escape, self.sentences()))
        largest = max(float(np.abs(self.shares[:_DRAWN]).max(initial=0.0)), 1e-12)
        lines = ["".join(f"<th>{escape(heading)}</th>" for heading in (*self.headings, ""))]
        for cells, share in zip(self.table(_DRAWN), self.shares, strict=False):
            length, colour = _BAR * float(share) / largest, "#2d6fb5" if share >= 0 else "#c0392b"
            lines.append(
                "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                + f'<td><svg width="{2 * _BAR}" height="10"><rect x="{_BAR + min(length, 0):.1f}" '
                f'width="{abs(length):.1f}" height="10" fill="{colour}"/></svg></td>'
            )
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<div><p>{said}</p><table>{rows}</table></div>"


def common_fields(policy: Policy, states: Tensor, names: DimensionNames) -> list[dict[str, Any]]:
    """Return the fields of `Readable` for the deterministic means at raw states [T, d_s]."""
    means, scores = policy.act(states)[0].cpu().numpy(), familiarity_of(policy)(states)
    shared: dict[str, Any] = {"names": names, "distribution": policy.distribution}
    space = policy.action_space
    if isinstance(space, spaces.Box):
        shared |= {"middle": (space.high + space.low) / 2, "scale": (space.high - space.low) / 2}
    return [
        {"observation": state, "mean": mean, "familiarity": float(score), **shared}
        for state, mean, score in zip(states.cpu().numpy(), means, scores, strict=True)
    ]
