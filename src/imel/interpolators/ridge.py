"""Ridge regression on a fixed basis: a smoother of what is noisy, and an interpolator in itself.

A kernel average cannot extrapolate and follows noise; a few hundred fixed functions of the state,
their coefficients shrunk, do neither. It is a linear smoother like the kernel, sum_i l_i(s) y_i,
so each memory's share in the answer is exact here too. And what is in the span of the basis it
gives back as it was, which no average of neighbours does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from imel.experience import Context
from imel.interpolators.base import Interpolator, Prediction, Weighted
from imel.interpolators.frozen import FrozenNetwork

PENALTIES = tuple(10.0**power for power in range(-4, 4))
"""Candidates for the penalty, in units of the basis' mean eigenvalue."""
_REACH = 5.0
"""Normalised states are clipped here: beyond, a plane would lead the policy anywhere."""
_BLOCK = 192
"""Columns of a Gram matrix computed at once."""


class Basis(nn.Module):
    """The state itself and random tanh waves of it, drawn once and never fitted."""

    directions: Tensor  # [d_s, waves]
    offsets: Tensor  # [waves]

    def __init__(self, state_dim: int, waves: int) -> None:
        super().__init__()
        self.register_buffer("directions", 1.5 * torch.randn(state_dim, waves) / state_dim**0.5)
        self.register_buffer("offsets", 2.0 * torch.rand(waves) - 1.0)

    def forward(self, states: Tensor) -> Tensor:
        """phi(s)."""  # [T, d_s] -> [T, d_s + waves]
        states = states.clamp(-_REACH, _REACH)
        waves = torch.addmm(self.offsets, states, self.directions).tanh_()
        return torch.cat([states, waves], dim=1)

    def frozen(self, slope: Tensor, offset: Tensor) -> Callable[[Tensor], Tensor]:
        """s -> phi(s)^T slope + offset, for acting: the basis is a network of one hidden layer."""
        inputs = self.directions.shape[0]
        layers = [(self.directions, self.offsets), (slope[inputs:], offset)]
        network = FrozenNetwork(layers, slope[:inputs])
        return lambda states: network(states.clamp(-_REACH, _REACH))


class Design:
    """The basis at the memories' states, and what solving for coefficients needs of it."""

    def __init__(self, basis: Basis, states: Tensor) -> None:
        self.basis, self.states = basis, states
        features = basis(states)  # [N, d_phi]
        self.centre = features.sum(dim=0) / max(1, features.shape[0])
        self.features = features.sub_(self.centre)  # nobody else has them
        # In double precision: eigenvalues of a memory range over many orders of magnitude
        self.double = self.features.double()
        self.gram = gram(self.double)  # [d_phi, d_phi]
        self._factors: dict[float, Tensor] = {}

    @property
    def unit(self) -> float:
        """The mean eigenvalue, in which penalties are counted."""
        return float(self.gram.diagonal().mean().clamp_min(1e-12))

    def factor(self, penalty: float) -> Tensor:
        """Cholesky's of the Gram matrix with this on its diagonal; several trends share it."""
        if penalty not in self._factors:
            shrinking = torch.full_like(self.gram.diagonal(), penalty).diag()
            self._factors[penalty] = torch.linalg.cholesky(self.gram + shrinking)
        return self._factors[penalty]


class Ridge(Weighted):
    """y(s) = mean(y) + (phi(s) - mean(phi)) B.

    The penalty is in units of the design's mean eigenvalue, or by generalised cross-validation if
    none is given.
    """

    exact: ClassVar[bool] = True

    def __init__(self, design: Design, values: Tensor, penalty: float | None = None) -> None:
        self._design, self.values = design, values
        count = max(1, values.shape[0])  # of nothing the mean is zero, and so is the answer
        self.offset = values.sum(dim=0) / count
        centred = (values - self.offset).double()
        projected = design.double.T @ centred  # [d_phi, d_v]
        self.penalty = (
            _best_penalty(design, projected, centred) if penalty is None else penalty * design.unit
        )
        self._factor = design.factor(self.penalty)
        self.slope = torch.cholesky_solve(projected, self._factor).to(values.dtype)
        self._fitted: Tensor | None = None

    def __call__(self, states: Tensor) -> Prediction:
        """The fitted surface."""
        features = self._design.basis(states) - self._design.centre
        return Prediction(torch.addmm(self.offset, features, self.slope))

    def fitted(self) -> Tensor:
        """The surface at the memories it was fitted to, which an update asks for many times."""
        if self._fitted is None:
            self._fitted = torch.addmm(self.offset, self._design.features, self.slope)
        return self._fitted  # [N, d_v]

    def left(self) -> Tensor:
        """What it leaves of their values."""  # [N, d_v]
        return self.values - self.fitted()

    def weights(self, states: Tensor) -> Tensor:
        """Shares, which sum to one over memories and may be negative."""  # [T, N]
        return self.shares(self._design.basis(states) - self._design.centre, 1.0).to(states.dtype)

    def shares(self, features: Tensor, total: Tensor | float) -> Tensor:
        """Shares where the basis differs from its centre by this much; they sum to `total`.

        In double precision, for large ones of opposite signs cancel.
        """
        along = torch.cholesky_solve(features.double().T, self._factor).T
        shares: Tensor = along @ self._design.double.T  # [T, N]
        # Rounded features do not sum to zero, and a small penalty makes much of what they sum to
        shares = shares - shares.sum(dim=1, keepdim=True) / max(1, shares.shape[1])
        return shares + total / max(1, shares.shape[1])


@dataclass(frozen=True)
class RidgeOptions:
    """The basis, and how much is believed of noisy values."""

    waves: int = 256
    """Random functions of the state in the basis, beside the state itself."""
    penalty: float = 1.0
    """How far coefficients are shrunk where values are noisy, as improvements are; in units of
    the basis' mean eigenvalue."""


class RidgeRegression(Interpolator):
    """y(s) by ridge regression of all memories on a fixed basis. Nothing is learned."""

    def __init__(self, state_dim: int, value_dim: int, options: RidgeOptions) -> None:
        super().__init__()
        del value_dim  # as many columns as there are
        self.options = options
        self.basis = Basis(state_dim, options.waves)

    def condition(self, context: Context) -> Ridge:
        """Solve for the coefficients."""
        return Ridge(Design(self.basis, context.states), context.values, self.options.penalty)

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The regression without each target's episode: its rows are taken out of the sums."""
        rows = _with_constant(self.basis(context.states)).double()
        values = context.values.double()
        moments, products = gram(rows), rows.T @ values
        mean = torch.zeros_like(targets.values)
        for episode in torch.unique(targets.episodes):
            wanted, own = targets.episodes == episode, context.episodes == episode
            slope = _solve(
                moments - rows[own].T @ rows[own],
                products - rows[own].T @ values[own],
                self.options.penalty,
            )
            answer = _with_constant(self.basis(targets.states[wanted])).double() @ slope
            mean[wanted] = answer.to(mean.dtype)
        return Prediction(mean)


def gram(rows: Tensor) -> Tensor:
    """X^T X by blocks on and below its diagonal: what is above is the same again."""
    size = rows.shape[1]  # rows [N, size]
    product = rows.new_empty(size, size)
    for start in range(0, size, _BLOCK):
        end = min(size, start + _BLOCK)
        below = rows[:, start:end].T @ rows[:, :end]
        product[start:end, :end] = below
        product[:start, start:end] = below[:, :start].T
        # Not every processor rounds the two halves of a block on the diagonal alike
        own = below[:, start:].tril()
        product[start:end, start:end] = own + own.tril(-1).T
    return product


def _with_constant(features: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(features[:, :1]), features], dim=1)


def _solve(moments: Tensor, products: Tensor, penalty: float) -> Tensor:
    """Coefficients of a constant, which is not shrunk, and of the basis, from sums over rows."""
    count, sums = moments[0, 0].clamp_min(1.0), moments[0, 1:]
    squares = moments[1:, 1:] - torch.outer(sums, sums) / count
    centred = products[1:] - torch.outer(sums, products[0]) / count
    unit = squares.diagonal().mean().clamp_min(1e-12)
    ridge = penalty * unit * torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    slope = torch.linalg.solve(squares + ridge, centred)
    offset = (products[0] - sums @ slope) / count
    return torch.cat([offset[None], slope])


def _best_penalty(design: Design, projected: Tensor, values: Tensor) -> float:
    """The penalty with the least N |y - Sy|^2 / (N - tr S)^2, S being the smoother.

    `projected` is X^T y; X and y are centred.
    """
    eigenvalues, axes = torch.linalg.eigh(design.gram)
    eigenvalues, projected = eigenvalues.clamp_min(0.0), axes.T @ projected
    count, unit = values.shape[0], design.unit
    total = values.square().sum()
    energy = projected.square().sum(dim=1)  # [d_phi]
    best, least = PENALTIES[-1] * unit, float("inf")
    for penalty in (multiple * unit for multiple in PENALTIES):
        shrunk = eigenvalues + penalty
        error = float(total - (energy * (2.0 / shrunk - eigenvalues / shrunk.square())).sum())
        freedom = 1.0 + float((eigenvalues / shrunk).sum())
        if freedom < count and error * count / (count - freedom) ** 2 < least:
            best, least = penalty, error * count / (count - freedom) ** 2
    return best
