"""A mean explained by memories: the part each has in it, in the strongest sense there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from imel.errors import ImelError
from imel.explain.explanation import COLUMNS, Array, Experiences, Readable, common_fields
from imel.policies import Policy
from imel.policies.names import DimensionNames
from imel.policies.paper.interpolator import Weighted, effective_neighbours

Kind = Literal["sum", "attention", "sensitivity", "none", "unknown"]
"""What a memory's weight is; where it is zero, the memories are in order of distance."""

_CONNECTION: dict[Kind, str] = {
    "sum": "is the sum of what {count:,} memories add, and rests on about {about} of them",
    "attention": "comes from a network whose attention rests on about {about} of {count:,} "
    "memories (where it looked, not what they added)",
    "sensitivity": "is computed from {count:,} memories and is sensitive to about {about} of them "
    "(shares of d mean / d mu*, not what they added)",
    "none": "comes from a network that does not consult its {count:,} memories; the nearest are "
    "shown",
    "unknown": "is computed in a way that hides what its {count:,} memories add; the nearest are "
    "shown",
}

Parts = tuple[Kind, Tensor, Tensor]
"""What weights are, the weights [N], and what each memory adds to the mean [N, d_a]."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Explanation(Readable, Experiences):
    """An action's mean and every memory's part in it, the largest weight first.

    If `exact`, `contributions` sum to `mean` before clipping. Otherwise they are weights (or first
    derivatives, where there is sensitivity) times values.
    """

    widths = (7, 7, 5, 9)

    kind: Kind
    effective_neighbours: float  # how many memories the mean rests on
    weights: Array  # [N]
    contributions: Array  # [N, d_a] what each memory adds to the mean

    @property
    def shares(self) -> Array:
        """The weights."""
        return self.weights

    @property
    def exact(self) -> bool:
        """Whether contributions are the computation itself: their sum is the unclipped mean."""
        return self.kind == "sum"

    @property
    def headings(self) -> tuple[str, ...]:
        """What the cells of the table are."""
        added = f"  (what it adds{self.origin and f' to {self.origin}'})" if self.exact else ""
        logits = self.columns_of_logits and f", {self.columns_of_logits}"
        return ("share", "episode", "step", "advantage", f"mu -> mu*{added}{logits}")

    def table(self, count: int) -> list[tuple[str, ...]]:
        """Return the first rows in words, under the headings."""
        words = self.in_units
        return [
            (
                f"{self.weights[i]:.1%}" if self.weights.any() else "-",
                f"{self.episodes[i]}",
                f"{self.steps[i]}",
                f"{self.advantages[i]:+.2f}",
                f"{words(self.means[i])} -> {words(self.improved_means[i])}"
                + (f"  ({words(self.contributions[i], 3, change=True)})" if self.exact else ""),
            )
            for i in range(min(count, len(self.weights)))
        ]

    def sentence(self) -> str:
        """Say where the mean comes from."""
        about = f"{self.effective_neighbours:.{0 if self.effective_neighbours >= 10 else 1}f}"
        said = _CONNECTION[self.kind].format(count=len(self.weights), about=about)
        return f"{self.answer} {said}"


def explain_memories(policy: Policy, states: Tensor, names: DimensionNames) -> list[Explanation]:
    """Explain the deterministic means of any policy at raw states by its memories."""  # [T, d_s]
    if not len(policy.memory):
        raise ImelError("the policy remembers nothing yet: it has not been trained")
    columns = {name: policy.memory.column(name) for name in COLUMNS}
    explained = []
    for state, fields in zip(states, common_fields(policy, states, names), strict=True):
        kind, weights, added = _parts(policy, state[None])
        if weights.any():
            # Of a smoother with negative weights, how many it rests on is about their sizes
            about = float(effective_neighbours(weights.abs()[None]))
            # Those without a share may still add something: after the others, what adds most first
            order = added.abs().sum(dim=1).argsort(descending=True, stable=True)
            order = order[weights[order].abs().argsort(descending=True, stable=True)]
        else:
            about, places = 0.0, policy.normaliser(columns["states"])
            order = torch.cdist(policy.normaliser(state[None]), places)[0].argsort(stable=True)
        table = {"weights": weights, "contributions": added, **columns}
        fields |= {name: column[order].cpu().numpy() for name, column in table.items()}
        fields |= {"kind": kind, "effective_neighbours": about, "rows": order.cpu().numpy()}
        explained.append(Explanation(**fields))
    return explained


def _parts(policy: Policy, state: Tensor) -> Parts:
    """Return what memories add to the mean: by their weights, else slopes times their values."""
    conditioned = policy.conditioned
    if isinstance(conditioned, Weighted):
        place = policy.normaliser(state)
        weights, added = conditioned.weights(place)[0], conditioned.contributions(place)[0]
        return "sum" if conditioned.exact else "attention", weights, added
    values = policy.memory.column("improved_means").clone()
    try:
        slopes: Tensor = jacobian(lambda given: policy.mean_by_values(state, given), values)  # type: ignore[no-untyped-call]
    except RuntimeError:  # it is not computed by torch alone
        slopes = values.new_zeros(values.shape[1], *values.shape)  # [d_a, N, d_a]
    norms = slopes.square().sum(dim=(0, 2)).sqrt()  # [N]
    added = torch.einsum("aiv,iv->ia", slopes, values)
    if norms.any():
        return "sensitivity", norms / norms.sum(), added
    return "unknown" if conditioned is None else "none", norms, added
