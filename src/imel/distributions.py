"""Distributions of actions: what is sampled, improved and bounded, once for each kind of space.

A distribution has `width` parameters for a state, in the columns that are called means: the means
of a `Gaussian`, the logits of a `Categorical`. Actions have as many columns: a vector in policy
units, or the indicators of what was chosen (one column for each choice). With these columns

    d log pi(a|s) / d mean = (a - mu) / sigma^2        Gaussian
    d log pi(a|s) / d logit = a - softmax(logits)      Categorical

so that memory, regression and lessons need not know which of them it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from imel import improvement

Array = NDArray[Any]

_ENTROPY = 0.01
"""Weight of the entropy's gradient beside advantages of unit deviation, where choices are discrete:
without it a policy that has become sure of its choices never tries another one."""
_REACHABLE = 0.5
"""The KL to an improved categorical has a least upper bound; no more than this share is used."""


class Distribution(ABC):
    """How actions are drawn from the policy's parameters, and what moving them means."""

    width: int
    """d_a: columns of parameters and of actions."""
    scaled: bool
    """Whether sigma is a part of it; if not, stds are one and mean nothing."""

    # --- acting: arrays, for one step is too little work for torch ---

    @abstractmethod
    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw what `sample` needs, ahead of time."""  # [*shape, d_a]

    @abstractmethod
    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return the actions that noise makes of parameters."""

    @abstractmethod
    def mode(self, means: Array) -> Array:
        """Return the deterministic actions."""

    @abstractmethod
    def emit(self, actions: Array) -> Array:
        """Return actions as Stable-Baselines3 has them: within [-1, 1], or numbers of choices."""

    @abstractmethod
    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return what is logged of a rollout's actions."""

    # --- learning: all [N, d_a] but for weights, which are [N] ---

    @abstractmethod
    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return pi(a|s) / b(a|s), the importance of actions taken by another policy."""  # [N]

    @abstractmethod
    def improve(
        self, weights: Tensor, actions: Tensor, means: Tensor, stds: Tensor, budget: float
    ) -> tuple[Tensor, float]:
        """Return improved parameters, whose mean KL from the given ones is the budget, and eta."""

    @abstractmethod
    def kls(self, shifts: Tensor, means: Tensor, stds: Tensor) -> Tensor:
        """Return the KL between the policies before and after a shift of parameters."""  # [N]

    @abstractmethod
    def step_length(
        self, shifts: Tensor, means: Tensor, stds: Tensor, new: int, mean_kl: float, peak_kl: float
    ) -> float:
        """Return beta: beta times the shifts has this mean KL on the last `new` rows, or this peak.

        Whichever is reached first. Zero where there is nothing to scale.
        """


class Gaussian(Distribution):
    """Continuous actions around a mean; policy units map the bounds to [-1, 1]."""

    scaled = True

    def __init__(self, width: int) -> None:
        self.width = width

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn(*shape, self.width, generator=generator)

    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return mu + sigma noise."""
        return means + stds * noise

    def mode(self, means: Array) -> Array:
        """Return the means."""
        return means

    def emit(self, actions: Array) -> Array:
        """Clip actions to [-1, 1]."""
        return np.clip(actions, -1.0, 1.0)

    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return the share of clipped actions, and sigma."""
        outside = (actions.abs() > 1.0).any(dim=-1)
        return {"clipped_actions": float(outside.float().mean()), "std": float(stds.mean())}

    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return `improvement.importance_ratios`."""
        return improvement.importance_ratios(actions, means, stds, then_means, then_stds)

    def improve(
        self, weights: Tensor, actions: Tensor, means: Tensor, stds: Tensor, budget: float
    ) -> tuple[Tensor, float]:
        """Return improved means (Alg. 1 l. 9 and 11)."""
        eta = improvement.step_size(weights, actions, means, stds, budget)
        return improvement.improved_means(weights, actions, means, stds, eta), eta

    def kls(self, shifts: Tensor, means: Tensor, stds: Tensor) -> Tensor:
        """Return |delta|^2 / (2 sigma^2)."""
        return improvement.shift_kls(shifts, stds)

    def step_length(
        self, shifts: Tensor, means: Tensor, stds: Tensor, new: int, mean_kl: float, peak_kl: float
    ) -> float:
        """Return beta in closed form: the KL is quadratic in it."""
        kls = self.kls(shifts, means, stds)
        scale = improvement.step_scale
        return min(scale(float(kls[-new:].mean()), mean_kl), scale(float(kls.max()), peak_kl))


class Categorical(Distribution):
    """One choice of several, or several such choices side by side, by logits.

    :param sizes: the number of options of each choice
    :param starts: the number of the first option of each choice
    :param shape: the shape of an action in the environment: () of a single choice
    """

    scaled = False

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], shape: tuple[int, ...]) -> None:
        self.sizes, self.starts, self._shape = list(sizes), np.array(starts), shape
        self.width = sum(self.sizes)
        self._edges = np.cumsum(self.sizes)[:-1]

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw from Gumbel's distribution: the largest sum of logit and noise is a sample."""
        uniform = torch.rand(*shape, self.width, generator=generator)
        return -(-uniform.clamp_min(torch.finfo(uniform.dtype).tiny).log()).log()

    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return the indicators of what is chosen."""
        return self.mode(means + noise)

    def mode(self, means: Array) -> Array:
        """Return the indicators of the likeliest options."""
        chosen = np.zeros_like(means)
        for first, best in zip((0, *self._edges), self._best(means), strict=True):
            np.put_along_axis(chosen, first + best[..., None], 1.0, axis=-1)
        return chosen

    def _best(self, values: Array) -> list[Array]:
        """Return the place of the largest value in each choice."""
        return [part.argmax(axis=-1) for part in np.split(values, self._edges, axis=-1)]

    def emit(self, actions: Array) -> Array:
        """Return the numbers of what is chosen."""
        chosen = np.stack(self._best(actions), axis=-1) + self.starts  # [..., choices]
        return chosen.reshape(*actions.shape[:-1], *self._shape)

    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return the entropy in units of that of equal probabilities."""
        logs = self.log_probabilities(means)
        most = float(np.log(self.sizes).sum()) or 1.0
        return {"entropy": float(-(logs.exp() * logs).sum(dim=-1).mean()) / most}

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the logarithm of each option's probability, in double precision."""
        parts = logits.double().split(self.sizes, dim=-1)
        return torch.cat([part.log_softmax(dim=-1) for part in parts], dim=-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return each option's probability."""
        return self.log_probabilities(logits).exp()

    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return the ratio of the probabilities of what was chosen."""
        now, then = self.log_probabilities(means), self.log_probabilities(then_means)
        logarithm = (actions * (now - then)).sum(dim=-1)
        return logarithm.clamp(-60.0, 60.0).exp().to(actions.dtype)

    def gradients(self, weights: Tensor, actions: Tensor, logits: Tensor) -> Tensor:
        """Return the gradient of w log pi(a|s) + c H by the logits, H the entropy of the policy.

            w (a - p) - c p (log p + H)
        """
        logs = self.log_probabilities(logits)
        p = logs.exp()
        surprise = p * logs  # [N, d_a]
        entropies = [-part.sum(dim=-1, keepdim=True) for part in surprise.split(self.sizes, -1)]
        spread = torch.cat(
            [h.expand(-1, n) for h, n in zip(entropies, self.sizes, strict=True)], dim=-1
        )
        return weights.double()[:, None] * (actions - p) - _ENTROPY * (surprise + p * spread)

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
            for part, p in zip(
                gradients.split(self.sizes, -1), logs.split(self.sizes, -1), strict=True
            )
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


def distribution_for(space: spaces.Space[Any]) -> Distribution:
    """Return the distribution of an action space's actions."""
    if isinstance(space, spaces.Discrete):
        return Categorical([int(space.n)], [int(space.start)], ())
    if isinstance(space, spaces.MultiDiscrete):
        return Categorical(space.nvec.ravel().tolist(), space.start.ravel().tolist(), space.shape)
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return Categorical([2] * count, [0] * count, space.shape)
    assert isinstance(space, spaces.Box)
    return Gaussian(space.shape[0])
