"""The contract of an interpolator: it learns which states are alike; memories hold the behaviour.

Adding one: subclass `Interpolator`, return a `Conditioned` (or a `Weighted`, if memories have a
share in the answer), and name it in a subclass of `PaperPolicy`, in a file of its own.
`imel.testing` has the contract suite that checks it like the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from imel.data.experience import Context


class Prediction(NamedTuple):
    """What an interpolator answers for some states."""

    mean: Tensor  # [T, d_v]
    std: Tensor | None = None  # [T, d_v], or None if no std is predicted


class Conditioned:
    """An interpolator with its memories in place: a function of normalised states [T, d_s]."""

    def __init__(self, answer: Callable[[Tensor], Prediction]) -> None:
        self._answer = answer

    @torch.no_grad()
    def __call__(self, states: Tensor) -> Prediction:
        """Answer for normalised states."""
        return self._answer(states)


class Weighted(Conditioned):
    """One in which every memory has a share: if `exact`, the mean *is* their sum.

    :param weights: states [T, d_s] -> the share of each memory in the answer [T, N]
    :param values: [N, d_v] of the context
    :param answer: the answer, where it is not (or is not best computed as) weights times values
    """

    def __init__(
        self,
        weights: Callable[[Tensor], Tensor],
        values: Tensor,
        answer: Callable[[Tensor], Prediction] | None = None,
        exact: bool = True,
    ) -> None:
        super().__init__(answer or (lambda states: Prediction(weights(states) @ values)))
        self._weights, self.values, self.exact = weights, values, exact

    @torch.no_grad()
    def weights(self, states: Tensor) -> Tensor:
        """Return the share of each memory in the answer for each state."""  # [T, N]
        return self._weights(states)

    def contributions(self, states: Tensor) -> Tensor:
        """Return what each memory adds; if `exact`, the sum over memories is the mean."""
        return self.weights(states)[:, :, None] * self.values  # [T, N, d_v]


class Interpolator(nn.Module, ABC):
    """Computes values at states from a context of states with values."""

    predicts_std: ClassVar[bool] = False
    """Whether its answers have a sigma of their own."""

    @abstractmethod
    def condition(self, context: Context) -> Conditioned:
        """Precompute what depends only on the context; valid until that or the weights change."""

    @abstractmethod
    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """Answer at each target from the context without that target's whole episode."""

    def loss(self, context: Context, targets: Context, generator: torch.Generator) -> Tensor:
        """What Alg. 4 minimises: the squared error, unless a model has a loss of its own."""
        del generator  # for models whose loss is an expectation
        return (self.leave_one_out(context, targets).mean - targets.values).square().mean()

    def embed(self, states: Tensor) -> Tensor:
        """Return normalised states in the space in which they are compared."""
        return states

    @property
    def learns(self) -> bool:
        """Whether there is anything to fit."""
        return next(self.parameters(), None) is not None


def effective_neighbours(weights: Tensor) -> Tensor:
    """exp of the entropy of the weights: how many memories an answer rests on."""  # [T]
    shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-30)
    entropy: Tensor = torch.special.entr(shares).sum(dim=1)
    return entropy.exp()
