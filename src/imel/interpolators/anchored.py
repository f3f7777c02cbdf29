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


class Trend:
    """Means and improvements of all memories, each by ridge regression on one basis.

    An average of neighbours flattens what it is given a little at every iteration, and that sums
    up to more than the steps do; a regression whose basis spans the policy does not.
    """

    def __init__(self, design: Design, means: Ridge, step: Ridge) -> None:
        self.design, self.means, self.step = design, means, step

    def left(self) -> Tensor:
        """What it leaves of the memories' means and of their improvements."""  # [N, 2 d_a]
        return torch.cat([self.means.left(), self.step.left()], dim=1)


class AnchoredTrend(Anchored, Weighted):
    """Anchor and step by their trends, and a kernel for what the trends leave of the memories.

    It is a linear smoother throughout. With S(s) the shares in a trend, w(s) those in the kernel
    and c how far the kernel is believed, those in the sum are S(s) + c w(s) (I - S).

    :param kernel: over some of the memories, whose values are columns of `Trend.left`
    :param rows: which memories these are
    :param believed: how far it is in the anchor, and how far in the step
    """

    exact = True

    def __init__(
        self,
        trend: Trend,
        scale: float,
        kernel: Weighted | None = None,
        rows: Tensor | None = None,
        believed: Tensor | None = None,
    ) -> None:
        self.trend, self.scale, self.kernel = trend, scale, kernel
        self._rows = torch.zeros(0, dtype=torch.int64) if rows is None else rows
        self._believed = torch.zeros(2) if believed is None else believed
        self.values = trend.means.values
        width, parts = self.values.shape[1], (trend.means, trend.step)
        self._slope = torch.cat([part.slope for part in parts], dim=1)  # [d_phi, 2 d_a]
        offset = torch.cat([part.offset for part in parts])
        self._offset = offset - trend.design.centre @ self._slope
        self._belief = self._believed.repeat_interleave(width)  # [2 d_a]

    def __call__(self, states: Tensor) -> Prediction:
        """Where the policy is at these states, moved."""
        anchor, step = self._parts(states)
        return Prediction(anchor + self.scale * step)

    def anchor(self, states: Tensor) -> Prediction:  # type: ignore[override]
        """Where the policy is."""
        return Prediction(self._parts(states)[0])

    def step(self, states: Tensor) -> Prediction:  # type: ignore[override]
        """Where it would go, were the scale one."""
        return Prediction(self._parts(states)[1])

    def _parts(self, states: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.addmm(self._offset, self.trend.design.basis(states), self._slope)
        if self.kernel is not None:
            both += self._belief * self.kernel(states).mean
        anchor, step = both.chunk(2, dim=1)
        return anchor, step

    def weights(self, states: Tensor) -> Tensor:
        """Shares in the anchor, which sum to one and may be negative."""  # [T, N]
        return self._shares(states)[0]

    def contributions(self, states: Tensor) -> Tensor:
        """What each memory adds, through anchor and step."""  # [T, N, d_v]
        anchor, step = self._shares(states)
        contributions = anchor[:, :, None] * self.trend.means.values
        contributions += self.scale * step[:, :, None] * self.trend.step.values
        return contributions

    def _shares(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The memories' shares in anchor and step."""  # [T, N] each
        design, trend = self.trend.design, self.trend
        features = design.basis(states) - design.centre
        if self.kernel is None:
            return trend.means.shares(features, 1.0), trend.step.shares(features, 1.0)
        weights = self.kernel.weights(states)  # [T, n]
        there, total = weights @ design.features[self._rows], weights.sum(dim=1, keepdim=True)
        anchor, step = (
            part.shares(features - believed * there, 1.0 - believed * total).index_add_(
                1, self._rows, believed * weights
            )
            for part, believed in zip((trend.means, trend.step), self._believed, strict=True)
        )
        return anchor, step
