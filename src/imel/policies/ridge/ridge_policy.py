"""`RidgePolicy`: a mean that is linear in random features, and moves by natural policy gradients.

    mu(s) = phi(s)^T theta,    theta <- theta + beta (Phi^T Phi + lambda D)^{-1} Phi^T (mu* - mu)

The improvements mu* - mu that remembered experiences ask for are smoothed by ridge regression on
the features; beta bounds the KL of the step. Since mu* - mu is a one-sample policy gradient and
Phi^T Phi the Fisher matrix of a Gaussian policy that is linear in phi, a step is a damped natural
policy gradient, solved in closed form over a replay memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from gymnasium import spaces
from torch import Tensor

from imel.errors import ImelError
from imel.policies.base import ImelPolicy
from imel.policies.names import DimensionNames
from imel.policies.ridge.features import Design, RandomFeatures, damped_inverse
from imel.policies.ridge.lessons import Lessons
from imel.settings import RidgeSettings

if TYPE_CHECKING:
    from imel.explain.by_lessons import LessonExplanation
    from imel.explain.reduced import Rows

_FAITHFUL = 1e-6
"""Penalty with which coefficients are carried over to features under another normaliser."""

_IMITATION = 1e-3
"""Penalty with which demonstrated actions are fitted."""


@dataclass(frozen=True)
class RidgeOptions:
    """The random features, and the damping of a step."""

    features: int = 256
    """Random tanh features of the state, beside the state itself and a constant."""
    penalty: float = 1.0
    """Damping of the step: lambda in units of the features' mean eigenvalue."""


class RidgePolicy(ImelPolicy):
    """A natural policy gradient on random features, in closed form, with replay.

    As in the paper, experiences are remembered and improved (Algorithms 1 and 2), and the policy is
    linear in their improvements, like a sum of kernels over memories. Unlike the paper, the kernel
    is fixed, all memories are improved again at every iteration, and the trust region bounds the
    step of the policy, not the improvement of each experience.
    """

    options_class = RidgeOptions
    settings_class = RidgeSettings

    coefficients: Tensor  # [d_phi, d_a] theta

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        **arguments: Any,
    ) -> None:
        super().__init__(observation_space, action_space, **arguments)
        self.features = RandomFeatures(self.state_dim, self.options.features)
        shape = (self.features.width, self.action_dim)
        self.register_buffer("coefficients", torch.zeros(shape, dtype=torch.float64))
        self.lessons = Lessons(self.state_dim, *shape)

    @property
    def design(self) -> Design:
        """The features of what is remembered."""
        return self.cached("design", self._make_design)

    def _make_design(self) -> Design:
        design = Design(self.features, self.normaliser)
        design.update(self.memory)
        return design

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.features.predict(self.normaliser(states), self._weights())
        return mean, self.std.expand_as(mean)

    def _weights(self) -> Tensor:
        return self.cached("weights", self.coefficients.float)

    def prepare(self) -> None:
        """Round the coefficients to single precision."""
        self._weights()

    # --- learning ---

    def step(self, improvements: Tensor) -> tuple[Tensor, Tensor]:
        """Return each episode's part of the step, whose sum over episodes is the step.

        improvements [N, d_a] of all memories -> [E], [E, d_phi, d_a]
        """
        episodes, products = self.design.products(improvements)
        inverse = damped_inverse(self.design.gram, self.options.penalty).to(products.dtype)
        # Single precision: the damping keeps the condition number below the number of features.
        # The inverse is symmetric, and from the right it is one product for all episodes
        return episodes, (products @ inverse).mT

    def move(self, episodes: Tensor, parts: Tensor, scale: float) -> None:
        """Go along a step and enter what each episode taught."""
        parts = scale * parts
        self.lessons.teach(episodes, parts)
        self.coefficients += parts.double().sum(dim=0)
        design = self.design
        self.invalidate()
        self.cache["design"] = design  # of the memories, which have not changed

    def imitate(self) -> None:
        """Fit the coefficients to the improved means in memory, each episode a lesson."""
        improved = self.memory.column("improved_means").double()
        episodes, products = self.design.products(improved)
        features = self.design.features.double()
        parts = products @ damped_inverse(features.T @ features, _IMITATION)
        self.move(episodes, parts.mT, scale=1.0)

    def refresh_normaliser(self) -> None:
        """Normalise states by all seen so far, and carry the coefficients over.

        By regression means stay as they are at remembered states:

            theta' = (Phi'^T Phi' + lambda D)^{-1} Phi'^T Phi theta
        """
        self.design.update(self.memory)
        before = self.design.features
        self.normaliser.refresh()
        self.invalidate()
        if not self.coefficients.any():
            return
        after = self.design.features.double()
        matrix = damped_inverse(after.T @ after, _FAITHFUL) @ (after.T @ before.double())
        self.coefficients.copy_(matrix @ self.coefficients)
        self.lessons.transform(matrix)

    # --- explaining ---

    def explain(self, states: Tensor, names: DimensionNames) -> list[LessonExplanation]:
        """Take the deterministic means at raw states apart into lessons."""
        from imel.explain.by_lessons import explain_lessons

        return explain_lessons(self, states, names)

    def without(
        self,
        lessons: Rows | None = None,
        rows: Rows | None = None,
        episodes: Rows | None = None,
    ) -> Self:
        """Return a copy that lacks some lessons: see `imel.explain.policy_without`."""
        from imel.explain.reduced import without_lessons

        if rows is not None or episodes is not None:
            raise ImelError(
                f"{type(self).__name__} is a sum of lessons, which stay when memories go: leave "
                "lessons out by policy_without(lessons=[...]) or explain(..., without_lessons=...)"
            )
        return without_lessons(self, [] if lessons is None else lessons)

    def shapes_for(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the shapes it can load: with as many lessons as a file holds."""
        shapes = super().shapes_for(state)
        episodes = state.get("lessons.episodes")
        if episodes is not None and episodes.ndim == 1:
            sized = self.lessons.with_rows(episodes.shape[0])
            shapes |= {f"lessons.{name}": tensor for name, tensor in sized.items()}
        return shapes
