"""Categorical distributions: discrete actions by logits (paper note 16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from imel.distributions.distribution import Array, Distribution, listed

_SURE = 4.0
"""The difference of logits between a demonstrated option and the others."""
_REACHABLE = 0.1
"""The KL to an improved categorical has a least upper bound; no more than this share is used."""


class Categorical(Distribution):
    """One choice of several, or several such choices side by side, by logits.

    :param sizes: the number of options of each choice
    :param starts: the number of the first option of each choice
    :param shape: the shape of an action in the environment: () of a single choice
    """

    has_std = False
    span = (0.0, 1.0)

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], shape: tuple[int, ...]) -> None:
        self.sizes, self.starts, self._shape = list(sizes), np.array(starts), shape
        self.width = sum(self.sizes)
        self._firsts = np.cumsum([0, *self.sizes[:-1]])  # columns

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw from Gumbel's distribution: the largest sum of logit and noise is a sample."""
        uniform = torch.rand(*shape, self.width, generator=generator)
        return -(-uniform.clamp_min(torch.finfo(uniform.dtype).tiny).log()).log()

    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return the indicators of what is chosen."""
        return self.mode(means + noise)

    def mode(self, means: Array) -> Array:
        """Return the indicators of the likeliest options."""
        return self._indicators(self._best(means))

    def _indicators(self, chosen: Array) -> Array:
        """Return ones at the options chosen, zeros elsewhere."""  # [..., choices] -> [..., d_a]
        actions = np.zeros((*chosen.shape[:-1], self.width), np.float32)
        np.put_along_axis(actions, self._firsts + chosen, 1.0, axis=-1)
        return actions

    def _best(self, values: Array) -> Array:
        """Return the place of the largest value in each choice."""  # [..., choices]
        parts = np.split(values, self._firsts[1:], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)

    def emit(self, actions: Array) -> Array:
        """Return the numbers of what is chosen."""
        chosen = self._best(actions) + self.starts
        return np.asarray(chosen.reshape((*actions.shape[:-1], *self._shape)))

    def encode(self, emitted: Array) -> Array:
        """Return the indicators of chosen numbers."""
        chosen = np.asarray(emitted, np.float64).reshape(-1, len(self.sizes)) - self.starts
        if ((chosen != chosen.round()) | (chosen < 0) | (chosen >= self.sizes)).any():
            raise ValueError("not the number of an option")
        return self._indicators(chosen.astype(np.int64))

    def demonstrated(self, actions: Array) -> Array:
        """Return logits that prefer what was chosen, by `_SURE` to each other option."""
        shares = np.concatenate([np.full(n, 1.0 / n) for n in self.sizes])
        return np.asarray(_SURE * (actions - shares), dtype=np.float32)

    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return the entropy in units of that of equal probabilities."""
        logs = self.log_probabilities(means)
        most = float(np.log(self.sizes).sum()) or 1.0
        return {"entropy": float(-(logs.exp() * logs).sum(dim=-1).mean()) / most}

    direction = mode
    """The indicators of what is chosen: along them logits speak for it."""

    def shown(self, means: Array) -> Array:
        """Return probabilities."""
        return np.asarray(self.log_probabilities(torch.as_tensor(means)).exp())

    def words(self, mean: Array, names: Sequence[str]) -> str:
        """Name the options of a single choice by probability, of several choices what is chosen."""
        p = self.shown(mean)
        chosen = np.flatnonzero(self.mode(mean))
        order = np.argsort(-p, kind="stable") if len(self.sizes) == 1 else chosen
        return listed([f"{names[i]} ({100 * p[i]:.0f} %)" for i in order])

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the logarithm of each option's probability, in double precision."""
        parts = self._parts(logits.double())
        return torch.cat([part.log_softmax(dim=-1) for part in parts], dim=-1)

    def _parts(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each choice."""
        return torch.split(columns, self.sizes, dim=-1)

    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return the ratio of the probabilities of what was chosen."""
        now, then = self.log_probabilities(means), self.log_probabilities(then_means)
        logarithm = (actions * (now - then)).sum(dim=-1)
        return logarithm.clamp(-60.0, 60.0).exp().to(actions.dtype)

    def gradients(self, weights: Tensor, actions: Tensor, logits: Tensor) -> Tensor:
        """Return the gradient of w log pi(a|s) by the logits: w (a - p)."""
        return weights.double()[:, None] * (actions - self.log_probabilities(logits).exp())

    def improve(
        self, weights: Tensor, actions: Tensor, means: Tensor, stds: Tensor, budget: float
    ) -> tuple[Tensor, float]:
        """Return logits + eta gradient, with eta from the exact KL (paper note 16)."""
        gradients = self.gradients(weights, actions, means)
        budget = min(budget, _REACHABLE * self._most(gradients, means))

        def kl(eta: float) -> float:
            shifts = eta * gradients
            # KL(pi*, pi) as in the paper: from the improved policy back
            return float(self.kls(-shifts, means + shifts, stds).mean())

        eta = _root(kl, budget)
        return (means + eta * gradients).to(means.dtype), eta

    def _most(self, gradients: Tensor, logits: Tensor) -> float:
        """Return the mean KL in the limit of an endless step along gradients."""
        # All probability is then where the gradient is largest
        logs = self.log_probabilities(logits)
        best = [
            torch.where(part == part.amax(dim=-1, keepdim=True), p, -torch.inf).logsumexp(dim=-1)
            for part, p in zip(self._parts(gradients), self._parts(logs), strict=True)
        ]
        return float(-torch.stack(best).sum(dim=0).mean())

    def kls(self, shifts: Tensor, means: Tensor, stds: Tensor) -> Tensor:
        """Return sum_k p_k (log p_k - log q_k), p by the logits and q by the shifted ones."""
        before, after = self.log_probabilities(means), self.log_probabilities(means + shifts)
        return (before.exp() * (before - after)).sum(dim=-1).clamp_min(0.0)

    def step_length(
        self, shifts: Tensor, means: Tensor, stds: Tensor, new: int, mean_kl: float, peak_kl: float
    ) -> float:
        """Return beta as a root of the exact KL, which grows with it."""

        def used(beta: float) -> float:
            kls = self.kls(beta * shifts, means, stds)
            return max(float(kls[-new:].mean()) / mean_kl, float(kls.max()) / peak_kl)

        return _root(used, 1.0)


def _root(grows: Callable[[float], float], target: float) -> float:
    """Return x > 0 at which a function that grows like a square from zero reaches a target."""
    from scipy.optimize import brentq  # half a second that continuous actions do not need

    high = 1.0
    if target <= 0.0:
        return 0.0
    while grows(high) < target:
        high *= 4.0
        if high > 1e12:
            return 0.0  # no step to scale
    while grows(high / 4.0) > target:
        high /= 4.0
        if high < 1e-12:
            return 0.0
    # The square root is nearly a line
    return float(brentq(lambda x: grows(x) ** 0.5 - target**0.5, 0.0, high, rtol=1e-10))
