"""Where the policy is, and where it goes: an interpolated anchor plus a smoothed step.

    mu(s) = anchor(s) + beta step(s)

The anchor interpolates what the policy does at remembered states, which is free of noise; the
step smooths the improvements, which are little else. No single kernel can be sharp for the one
and wide for the other. Both are made of memories, so each memory's contribution is their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from imel.interpolators.base import Conditioned, Prediction, Weighted
from imel.interpolators.ridge import Design, Ridge


class Anchored(Conditioned):
    """An anchor over some of the memories, and a step over all of them."""

    def __init__(self, anchor: Conditioned, step: Ridge, scale: float) -> None:
        self.anchor, self.step = anchor, step
        self.scale = scale  # beta

    def __call__(self, states: Tensor) -> Prediction:
        """Where the policy is at these states, moved."""
        mean, std = self.anchor(states)
        return Prediction(mean + self.scale * self.step(states).mean, std)


class WeightedAnchored(Anchored, Weighted):
    """One whose anchor gives memories a share.

    The weights are the anchor's: the step's may be negative and are no shares. Contributions are
    of both, and add up to the mean if the anchor's add up to the anchor.
    """

    def __init__(self, anchor: Weighted, step: Ridge, scale: float, rows: Tensor) -> None:
        super().__init__(anchor, step, scale)
        self._anchor, self._rows = anchor, rows
        self.values = step.values
        self.exact = anchor.exact  # type: ignore[misc]  # of the class elsewhere

    def weights(self, states: Tensor) -> Tensor:
        """The share of each memory in the anchor; zero for those it is not made of."""  # [T, N]
        weights = states.new_zeros(states.shape[0], self.values.shape[0])
        weights[:, self._rows] = self._anchor.weights(states)
        return weights

    def contributions(self, states: Tensor) -> Tensor:
        """What each memory adds, through anchor and step."""  # [T, N, d_v]
        contributions = self.scale * self.step.contributions(states)
        contributions[:, self._rows] += self._anchor.contributions(states)
        return contributions


class AnchoredRidge(WeightedAnchored):
    """Anchor and step on one basis: the anchor gives back what the policy was, without loss.

    An average of neighbours flattens what it is given a little at every iteration, and that sums
    up to more than the steps do; a regression whose basis spans the policy does not.
    """

    def __init__(self, design: Design, means: Ridge, step: Ridge, scale: float) -> None:
        rows = torch.arange(means.values.shape[0], device=means.values.device)
        super().__init__(means, step, scale, rows)
        self._basis, self._means = design.basis, means

    def __call__(self, states: Tensor) -> Prediction:
        """Where the policy is at these states, moved."""
        features = self._basis(states)
        return Prediction(self._means.at(features) + self.scale * self.step.at(features))
