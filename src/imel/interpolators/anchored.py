"""Where the policy is, and where it goes: an interpolated anchor plus a smoothed step.

    mu(s) = anchor(s) + beta step(s)

The anchor interpolates what the policy does at remembered states, which is free of noise; the
step smooths the improvements, which are little else. No single kernel can be sharp for the one
and wide for the other. Both are made of memories, so each memory's contribution is their sum.
"""

from __future__ import annotations

from collections.abc import Iterator

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

    def step_at_memories(self) -> Tensor:
        """The step at the memories' own states, where the basis is known."""  # [N, d_v]
        return self.step.fitted()


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


class AnchoredTrend(Anchored, Weighted):
    """Anchor and step by their trends, and a kernel for what the step's leaves of the memories.

    It is a linear smoother throughout. With S(s) the shares in the step's trend, w(s) those in the
    kernel and c how far the kernel is believed, those in the step are S(s) + c w(s) (I - S).

    :param kernel: over some of the memories, with what the trend leaves of them as its values
    :param rows: which memories these are
    :param believed: c
    """

    exact = True

    def __init__(
        self,
        trend: Trend,
        scale: float,
        kernel: Weighted | None = None,
        rows: Tensor | None = None,
        believed: float = 0.0,
    ) -> None:
        self.trend, self.kernel, self.believed = trend, kernel, believed
        self._rows = rows
        self._step_at_memories: Tensor | None = None
        self.values = trend.means.values
        parts = (trend.means, trend.step)
        self._slope = torch.cat([part.slope for part in parts], dim=1)  # [d_phi, 2 d_a]
        offset = torch.cat([part.offset for part in parts])
        # In double precision: what the basis has at its centre is much, and mostly cancels
        moved = offset.double() - trend.design.centre.double() @ self._slope.double()
        self._offset = moved.to(offset.dtype)
        self.scale = scale

    def from_elsewhere(self, means: Tensor, share: float, penalty: float) -> AnchoredTrend:
        """One with other means that goes a share of the step."""
        trend, design = self.trend, self.trend.design
        moved = Trend(design, Ridge(design, means, penalty), trend.step)
        return AnchoredTrend(moved, share * self.scale, self.kernel, self._rows, self.believed)

    @property
    def scale(self) -> float:
        """Beta."""
        return self._scale

    @scale.setter
    def scale(self, scale: float) -> None:
        self._scale = scale
        slope, offset = (anchor + scale * step for anchor, step in self._halves())
        self._moved = self.trend.design.basis.frozen(slope, offset)

    def _halves(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Anchor's and step's coefficients, then their offsets."""
        for both in (self._slope, self._offset):
            anchor, step = both.chunk(2, dim=-1)
            yield anchor, step

    def __call__(self, states: Tensor) -> Prediction:
        """Where the policy is at these states, moved."""
        mean = self._moved(states)
        if self.kernel is not None:
            mean = mean + self.scale * self.believed * self.kernel(states).mean
        return Prediction(mean)

    def at_memories(self) -> Tensor:
        """Where the policy is at the memories' own states, moved."""  # [N, d_v]
        return self.trend.means.fitted() + self.scale * self.step_at_memories()

    def step_at_memories(self) -> Tensor:
        """The step there, which is asked for to bound it and to take it."""  # [N, d_v]
        if self._step_at_memories is None:
            step = self.trend.step.fitted()
            if self.kernel is not None:
                step = step + self.believed * self.kernel(self.trend.design.states).mean
            self._step_at_memories = step
        return self._step_at_memories

    def anchor(self, states: Tensor) -> Prediction:  # type: ignore[override]
        """Where the policy is."""
        return Prediction(self._parts(states)[0])

    def step(self, states: Tensor) -> Prediction:  # type: ignore[override]
        """Where it would go, were the scale one."""
        return Prediction(self._parts(states)[1])

    def _parts(self, states: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.addmm(self._offset, self.trend.design.basis(states), self._slope)
        anchor, step = both.chunk(2, dim=1)
        if self.kernel is not None:
            step = step + self.believed * self.kernel(states).mean
        return anchor, step

    def weights(self, states: Tensor) -> Tensor:
        """Shares in the anchor, which sum to one and may be negative."""  # [T, N]
        return self.trend.means.weights(states)

    def contributions(self, states: Tensor) -> Tensor:
        """What each memory adds, through anchor and step."""  # [T, N, d_v]
        trend, design = self.trend, self.trend.design
        features = design.basis(states) - design.centre
        anchor = trend.means.shares(features, 1.0)[:, :, None] * trend.means.values
        step = self._step_shares(states, features)[:, :, None] * trend.step.values
        return (anchor + self.scale * step).to(states.dtype)

    def _step_shares(self, states: Tensor, features: Tensor) -> Tensor:  # [T, N]
        step, design = self.trend.step, self.trend.design
        if self.kernel is None:
            return step.shares(features, 1.0)
        assert self._rows is not None
        weights = self.believed * self.kernel.weights(states)  # [T, n]
        left = features - weights @ design.features[self._rows]
        shares = step.shares(left, 1.0 - weights.sum(dim=1, keepdim=True))
        return shares.index_add_(1, self._rows, weights.to(shares.dtype))
