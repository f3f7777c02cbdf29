"""Running moments of what is seen: the policy's observation normaliser, and the returns' scale."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen so far, merged batch by batch in float64."""

    mean: Tensor  # [d]
    variance: Tensor  # [d]
    count: Tensor  # []

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, rows: Tensor) -> None:
        """Take rows [n, d] into account (parallel variance formula)."""
        rows = rows.double()
        number = rows.shape[0]
        mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        total = self.count + number
        shift = mean - self.mean
        squares = self.variance * self.count + variance * number
        squares = squares + shift.square() * self.count * number / total
        self.mean.add_(shift * number / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)


class Normaliser(RunningMoments):
    """States in units of their deviation, by moments as they were at the last `refresh`."""

    centre: Tensor  # [d]
    scale: Tensor  # [d]

    def __init__(self, dim: int, clip: float = 10.0) -> None:
        super().__init__(dim)
        self.clip = clip
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def refresh(self) -> None:
        """Normalise by the moments of all rows seen so far from now on."""
        self.centre.copy_(self.mean)
        self.scale.copy_((self.variance + 1e-8).sqrt())

    def forward(self, states: Tensor) -> Tensor:
        """Return (s - centre) / scale, within +-clip."""  # [..., d_s]
        return (states - self.centre).div_(self.scale).clamp_(-self.clip, self.clip)

    def inverse(self, normalised: Tensor) -> Tensor:
        """Return the raw states behind normalised ones."""
        return normalised * self.scale + self.centre


class ReturnScale(RunningMoments):
    """The running deviation of discounted returns, by which rewards are divided.

    The return is accumulated forward, R_t = gamma R_{t-1} + r_t, over each environment's episodes.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__(1)
        self.gamma = gamma
        self.running: Tensor | None = None  # [E]

    def restart(self) -> None:
        """Forget the running returns: the environments were reset."""
        self.running = None

    def update_from(self, rewards: Tensor, done: Tensor) -> None:
        """Take a rollout's rewards [T, E] into account; `done` marks where episodes ended."""
        # Arrays, for one step is too little work for torch
        given, going_on = rewards.numpy(), ~done.numpy()
        running = np.zeros_like(given[0]) if self.running is None else self.running.numpy()
        returns = np.empty_like(given)
        for t, reward in enumerate(given):
            returns[t] = self.gamma * running + reward
            running = returns[t] * going_on[t]
        self.running = torch.from_numpy(running)
        self.update(torch.from_numpy(returns).reshape(-1, 1))

    def scale(self, rewards: Tensor) -> Tensor:
        """Return rewards in units of the returns' deviation; as they are while it is zero."""
        deviation = float(self.variance.sqrt())
        return rewards / (deviation if deviation > 1e-8 else 1.0)
