"""`RidgePolicy`: a mean that is linear in random features, and moves by natural policy gradients.

    mu(s) = phi(s)^T theta,    theta <- theta + beta (Phi^T Phi + lambda D)^{-1} Phi^T (mu* - mu)

The improvements mu* - mu that experiences ask for are smoothed by ridge regression; beta bounds the
KL. Since mu* - mu is a one-sample policy gradient and Phi^T Phi the Fisher matrix of a Gaussian
policy that is linear in phi, a step is a damped natural policy gradient over a replay memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from imel.policies.base import Policy, Update
from imel.policies.ridge.features import Design, Features, RandomFeatures, damped_inverse
from imel.policies.ridge.ledger import Lessons
from imel.policies.ridge.ridge_update import RidgeUpdate
from imel.registry import register
from imel.settings import Choice, Range, setting
from imel.settings import Settings as CommonSettings

if TYPE_CHECKING:
    from imel.learner import LearnerState

_CARRYING = 1e-6
"""Penalty with which coefficients are carried over to features under another normaliser."""
_IMITATION = 1e-3
"""Penalty with which demonstrated actions are fitted."""


@register("ridge", label="IMeL, ridge")
class RidgePolicy(Policy):
    """A natural policy gradient on random features, in closed form, with replay.

    As in the paper, experiences are remembered and improved, and the policy is linear in their
    improvements. Unlike there, the kernel is fixed, all memories are improved again at every
    iteration, and the trust region bounds the step of the policy.
    """

    @dataclass(frozen=True)
    class Settings(CommonSettings):
        """Settings of `RidgePolicy`."""

        gamma: float = setting(0.995, high=1.0, search=Choice(0.95, 0.98, 0.99, 0.995, 0.999))
        features: int = setting(256, search=Choice(64, 128, 256, 512))
        """Random tanh features of the state, beside the state itself and a constant."""
        penalty: float = setting(1.0, search=Range(0.03, 10.0))
        """Damping of the step: lambda in units of the features' mean eigenvalue."""
        trust_region: float = setting(0.02, low=1e-9, search=Range(0.002, 0.2))
        """delta: mean KL between the policies before and after an iteration, at most."""
        peak_kl: float = setting(10.0, low=1.0)
        """The largest KL of a step at any remembered state, in trust regions: the mean over a
        rollout does not see rare states, such as those in which episodes start."""
        full_step_gain: float = setting(0.1, low=1e-9)
        """Deviation of the advantages, in deviations of the return, from which on a step uses the
        whole trust region. Below it the steps of mean and sigma are shorter in proportion: what is
        left to gain is mostly noise."""
        std: float = setting(3.0, search=Range(0.3, 6.0), of_sigma=True)
        """sigma at the start, shared by the dimensions of the action: each gets `std` / d_a, at
        most 1, in policy units (the action range is [-1, 1]). It never rises above that."""
        std_rate: float = setting(0.5, high=10.0, search=Range(0.03, 1.0), of_sigma=True)
        """Step along the natural gradient of log sigma per iteration."""

    settings: Settings
    lessons: Lessons
    coefficients: Tensor  # [d_phi, d_a] theta

    def make_parts(self) -> None:
        """Make features, coefficients and the ledger of lessons."""
        self.features = self.make_features()
        shape = (self.features.width, self.action_dim)
        self.register_buffer("coefficients", torch.zeros(shape, dtype=torch.float64))
        self.lessons = Lessons(self.state_dim, *shape)

    def make_features(self) -> Features:
        """Return the feature map phi; torch's global generator is seeded when it is called."""
        return RandomFeatures(self.state_dim, self.settings.features)

    def make_update(self, learner: LearnerState) -> Update:
        """Return the update: improve all memories again, take a bounded step."""
        return RidgeUpdate(learner)

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.cached("weights", self.coefficients.float)
        mean = self.features.predict(self.normaliser(states), weights)
        return mean, self.std.expand_as(mean)

    @property
    def design(self) -> Design:
        """The features of what is remembered."""
        return self.cached("design", lambda: Design(self.features, self.normaliser, self.memory))

    def step(self, improvements: Tensor) -> tuple[Tensor, Tensor]:
        """Return each episode's part of the step, whose sum over episodes is the step.

        improvements [N, d_a] of all memories -> [E], [E, d_phi, d_a]
        """
        episodes, products = self.design.products(improvements)
        inverse = damped_inverse(self.design.gram, self.settings.penalty).to(products.dtype)
        # Single precision: the damping keeps the condition number below the number of features.
        # The inverse is symmetric, and from the right it is one product for all episodes
        return episodes, (products @ inverse).mT

    def move(self, episodes: Tensor, parts: Tensor, scale: float) -> None:
        """Go along a step and enter what each episode taught."""
        parts = scale * parts
        self.lessons.add(episodes, parts)
        self.coefficients += parts.double().sum(dim=0)
        design = self.design
        self.invalidate()
        self.cache["design"] = design  # of the memories, which have not changed

    def imitate(self) -> None:
        """Fit the coefficients to the improved means in memory, each episode a lesson."""
        episodes, products = self.design.products(self.memory.column("improved_means").double())
        features = self.design.features.double()
        parts = products @ damped_inverse(features.T @ features, _IMITATION)
        self.move(episodes, parts.mT, scale=1.0)

    def refresh_normaliser(self) -> None:
        """Normalise states by all seen so far, and carry the means over by regression.

        theta' = (Phi'^T Phi' + lambda D)^{-1} Phi'^T Phi theta
        """
        self.design.update(self.memory)
        before = self.design.features
        self.normaliser.refresh()
        self.invalidate()
        if not self.coefficients.any():
            return
        after = self.design.features.double()
        matrix = damped_inverse(after.T @ after, _CARRYING) @ (after.T @ before.double())
        self.coefficients.copy_(matrix @ self.coefficients)
        self.lessons.transform(matrix)

    def shapes_for(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the shapes it can load: with as many lessons as a file holds."""
        shapes = super().shapes_for(state)
        episodes = state.get("lessons.episodes")
        if episodes is not None and episodes.ndim == 1:
            with torch.device("meta"):
                sized = Lessons(self.state_dim, self.features.width, self.action_dim, len(episodes))
            shapes |= {f"lessons.{name}": tensor for name, tensor in sized.state_dict().items()}
        return shapes
