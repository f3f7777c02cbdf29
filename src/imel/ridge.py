"""Ridge regression on random features of the state: what `RidgePolicy` is made of.

    phi(s) = (1, z, tanh(z W + b)),    z the normalised state, W and b drawn once and never fitted

The policy's mean is phi(s)^T theta. Fitting values y at remembered states is the closed form

    theta = (Phi^T Phi + lambda D)^{-1} Phi^T y

with D the identity but for the constant feature, which is not shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from imel.kernels import tanh_
from imel.memory import Memory
from imel.normaliser import Normaliser

_REACH = 5.0
"""Normalised states are clipped here: beyond, a plane would lead the policy anywhere."""


class RandomFeatures(nn.Module):
    """phi: a constant, the normalised state and random tanh features of it."""

    directions: Tensor  # [d_s, m] W
    offsets: Tensor  # [m] b

    def __init__(self, state_dim: int, count: int) -> None:
        super().__init__()
        self.register_buffer("directions", 1.5 * torch.randn(state_dim, count) / state_dim**0.5)
        self.register_buffer("offsets", 2.0 * torch.rand(count) - 1.0)

    @property
    def width(self) -> int:
        """d_phi: the number of features."""
        return 1 + self.directions.shape[0] + self.directions.shape[1]

    def forward(self, states: Tensor) -> Tensor:
        """Return phi at normalised states."""  # [T, d_s] -> [T, d_phi]
        count, inputs = states.shape
        features = states.new_empty(count, self.width)
        features[:, 0] = 1.0
        linear = features[:, 1 : inputs + 1]
        linear.copy_(states).clamp_(-_REACH, _REACH)
        features[:, inputs + 1 :] = tanh_(torch.addmm(self.offsets, linear, self.directions))
        return features

    def gradient(self, states: Tensor, coefficients: Tensor) -> Tensor:
        """Return d phi(z)^T theta / d z at normalised states."""  # [T, d_s] -> [T, d_a, d_s]
        inputs = states.shape[1]
        linear, random = coefficients[1 : inputs + 1], coefficients[inputs + 1 :]
        inside = states.clamp(-_REACH, _REACH)
        slopes = 1.0 - tanh_(torch.addmm(self.offsets, inside, self.directions)).square()  # [T, m]
        bent = torch.einsum("sm,tm,ma->tas", self.directions, slopes, random)
        return (linear.T + bent) * (inside == states)[:, None]  # beyond the reach nothing changes


@dataclass(frozen=True)
class _Block:
    """The features of one rollout and the sum of their products."""

    features: Tensor  # [n, d_phi]
    gram: Tensor  # [d_phi, d_phi] in double precision


class Design:
    """The features of all remembered states: the design matrix Phi and its Gram matrix.

    Kept rollout by rollout: of an iteration's rows only the new ones are computed.
    """

    def __init__(self, features: RandomFeatures, normaliser: Normaliser) -> None:
        self._phi, self._normaliser = features, normaliser
        self._blocks: dict[tuple[int, int], _Block] = {}
        self.features = features.directions.new_empty(0, features.width)  # [N, d_phi]
        self.gram = self.features.new_zeros(features.width, features.width, dtype=torch.float64)

    def update(self, memory: Memory) -> None:
        """Follow the memory: compute rows that are new, drop those that were forgotten."""
        states, blocks = memory.column("states"), {}
        for iteration, rows in memory.rollouts():
            key = (iteration, rows.stop - rows.start)
            blocks[key] = self._blocks.get(key) or self._block(states[rows])
        self._blocks = blocks
        self.features = torch.cat([block.features for block in blocks.values()])
        self.gram = torch.stack([block.gram for block in blocks.values()]).sum(dim=0)

    def _block(self, states: Tensor) -> _Block:
        features = self._phi(self._normaliser(states))
        double = features.double()
        return _Block(features, double.T @ double)

    def inverse(self, penalty: float) -> Tensor:
        """Return (Phi^T Phi + lambda D)^{-1}, lambda in units of the mean eigenvalue."""
        count = self.gram[0, 0]
        variances = self.gram.diagonal()[1:] - self.gram[0, 1:].square() / count
        damped = self.gram.clone()
        # Where no state differs from another, enough for a factorization in double precision
        least = 1e-12 * self.gram.trace()
        damped.diagonal()[1:] += torch.maximum(penalty * variances.mean(), least)
        return torch.cholesky_inverse(torch.linalg.cholesky(damped))
