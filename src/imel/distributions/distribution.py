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
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

LISTED = 6
"""Numbers or options named at most."""


class Distribution(ABC):
    """How actions are drawn from the policy's parameters, and what moving them means."""

    width: int  # d_a: columns of parameters and of actions
    has_std: bool  # if not, columns of stds hold ones
    sizes: list[int]  # the number of options of each choice; none where actions are continuous
    starts: Array  # the number of the first option of each choice
    span: tuple[float, float]  # the range of what `shown` returns

    # --- acting: arrays, for one step is too little work for torch ---

    @abstractmethod
    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw what `sample` needs, ahead of time."""  # [*shape, d_a]

    @abstractmethod
    def sample(self, means: Array, stds: Array, noise: Array) -> Array:
        """Return the actions that noise makes of parameters."""

    def mode(self, means: Array) -> Array:
        """Return the deterministic actions."""
        return means

    @abstractmethod
    def emit(self, actions: Array) -> Array:
        """Return actions as Stable-Baselines3 has them: within [-1, 1], or numbers of choices."""

    def encode(self, emitted: Array) -> Array:
        """Return the actions behind what `emit` returns; refuse others with a ValueError."""
        return emitted

    def demonstrated(self, actions: Array) -> Array:
        """Return parameters of a policy that does as it is shown."""
        return actions

    @abstractmethod
    def diagnose(self, actions: Tensor, means: Tensor, stds: Tensor) -> dict[str, float]:
        """Return what is logged of a rollout's actions."""

    # --- explaining ---

    @abstractmethod
    def direction(self, means: Array) -> Array:
        """Return the direction in which parameters speak for the deterministic action."""  # [d_a]

    def shown(self, means: Array) -> Array:
        """Return parameters as pictures have them: means, or probabilities."""
        return means

    # --- learning: all [N, d_a] but for weights, which are [N] ---

    @abstractmethod
    def ratios(
        self, actions: Tensor, means: Tensor, stds: Tensor, then_means: Tensor, then_stds: Tensor
    ) -> Tensor:
        """Return pi(a|s) / b(a|s): how much likelier actions are than for whom took them."""  # [N]

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


def listed(words: Sequence[str]) -> str:
    """Return words on one line."""
    return ", ".join(words[:LISTED]) + (" ..." if len(words) > LISTED else "")


def vector(values: Array, longest: int = LISTED, digits: int = 2) -> str:
    """Return a vector on one line."""
    more = " ..." if len(values) > longest else ""
    return "[" + " ".join(f"{value:+.{digits}f}" for value in values[:longest]) + more + "]"
