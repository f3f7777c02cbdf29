"""Ridge regression on a fixed basis: the smoother of what is noisy, the improvements.

A kernel average cannot extrapolate and follows noise; a few hundred fixed functions of the state,
their coefficients shrunk as far as the data ask, do neither. It is a linear smoother like the
kernel, sum_i l_i(s) y_i, so each memory's share in the answer is exact here too.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from imel.experience import Context
from imel.interpolators.base import Prediction, Weighted

PENALTIES = tuple(10.0**power for power in range(-4, 4))
"""Candidates for the penalty, in units of the basis' mean eigenvalue."""
_REACH = 5.0
"""Normalised states are clipped here: beyond, a plane would lead the policy anywhere."""


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


class Ridge(Weighted):
    """y(s) = mean(y) + (phi(s) - mean(phi)) B, the penalty by generalised cross-validation."""

    exact: ClassVar[bool] = True

    def __init__(self, basis: Basis, context: Context) -> None:
        self._basis = basis
        self.values = context.values
        features = basis(context.states)  # [N, d_phi]
        count = max(1, len(context))  # of nothing the mean is zero, and so is the answer
        self._centre, self._offset = features.sum(dim=0) / count, context.values.sum(dim=0) / count
        # In double precision: eigenvalues of a memory range over many orders of magnitude
        centred, values = (features - self._centre).double(), context.values.double()
        eigenvalues, axes = torch.linalg.eigh(centred.T @ centred)
        eigenvalues = eigenvalues.clamp_min(0.0)
        projected = axes.T @ (centred.T @ (values - self._offset))  # [d_phi, d_v]
        self.penalty = best_penalty(eigenvalues, projected, values - self._offset)
        shrunk = axes / (eigenvalues + self.penalty)
        self._slope = (shrunk @ projected).to(features.dtype)  # [d_phi, d_v]
        self._inverse = (shrunk @ axes.T).to(features.dtype)  # [d_phi, d_phi]
        self._centred = features - self._centre

    def __call__(self, states: Tensor) -> Prediction:
        """The fitted surface."""
        features = self._basis(states) - self._centre
        return Prediction(torch.addmm(self._offset, features, self._slope))

    def weights(self, states: Tensor) -> Tensor:
        """Shares, which sum to one over memories and may be negative."""  # [T, N]
        along = (self._basis(states) - self._centre) @ self._inverse
        shares: Tensor = along @ self._centred.T
        return shares + 1.0 / max(1, shares.shape[1])


def best_penalty(eigenvalues: Tensor, projected: Tensor, values: Tensor) -> float:
    """The penalty with the least N |y - Sy|^2 / (N - tr S)^2, S being the smoother.

    `eigenvalues` are those of X^T X, `projected` is X^T y in their axes; X and y are centred.
    """
    count, unit = values.shape[0], float(eigenvalues.mean().clamp_min(1e-12))
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
