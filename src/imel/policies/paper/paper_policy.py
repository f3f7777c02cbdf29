"""The paper's policies: an interpolator of the improved means in memory (Alg. 1-2).

mu(s) = interpolator(s; C),    C = {(s, mu*)_i} the memory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from imel.data.advantage import Estimator
from imel.data.experience import Context
from imel.errors import SettingsError
from imel.policies.base import Policy, Update
from imel.policies.paper.interpolator import Conditioned, Interpolator
from imel.policies.paper.paper_update import PaperUpdate
from imel.settings import Choice, Range, Settings, setting

if TYPE_CHECKING:
    from imel.learner import LearnerState

StdMode = Literal["schedule", "constant", "advantage", "paper", "model"]
LeaveOut = Literal["sampled", "each-episode"]
MEMORY_SIZES = Choice(2048, 4096, 8192, 16384)
KL_BUDGETS = Choice("12:2", "6:1", "3:1", "2:1", "1:1", "1:0.3")
_STDS = Choice("2:0.5", "1:1", "1:0.5", "1:0.25", "0.5:0.25", "0.5:0.1")


@dataclass(frozen=True)
class PaperSettings(Settings):
    """Settings of every policy of the paper's family, with their readings (paper notes)."""

    memory_size: int = setting(2048, low=2, high=2**40, search=MEMORY_SIZES)
    gae_lambda: float = setting(0.9, high=1.0, search=Range(0.8, 0.99, log=False))
    advantage_clip: float = setting(3.0, low=1e-6)
    critic_epochs: int = setting(5, search=Range(1, 20))
    batch_size: int = 128
    min_std: float = setting(0.02, low=1e-6, high=10.0, of_sigma=True)
    advantage: Estimator = "gae"
    """`gae`: standard GAE on rewards. `monte-carlo`: return minus value. `paper`: Algorithm 3 to
    the letter, which hands GAE the return in the reward's place (paper note 4)."""
    kl_budget: float | str = setting("6:1", scheduled=True, search=KL_BUDGETS)
    """epsilon: mean KL between improved and acting policy, over all action dimensions together.
    A number, or `start:end` for a linear schedule over the run."""
    std: float | str = setting("1:0.25", scheduled=True, search=_STDS, of_sigma=True)
    """sigma of each action dimension times the square root of their number, in policy units (the
    action range is [-1, 1]). A number, or `start:end`."""
    std_mode: StdMode = setting("schedule", of_sigma=True)
    """`schedule`: follow `std`. `constant`: keep its start (the paper's text). `advantage`: policy
    gradient on sigma. `paper`: Algorithm 2 to the letter, without the advantage. `model`: the
    interpolator's own sigma (Algorithm 1; Neural Processes only). Paper note 3."""
    clip_means: bool = setting(False, of_sigma=True)
    """Keep improved means within the action range, where actions still depend on them."""


@dataclass(frozen=True)
class ContextSettings(PaperSettings):
    """Settings of a policy that is conditioned on its memory from the start."""

    prior_size: int = 64
    """Points of the prior context C^0, which makes the first policy and is then forgotten."""
    prior_std: float = setting(0.1, high=10.0)
    """Deviation of the prior context's means around zero, in policy units (paper note 5)."""


@dataclass(frozen=True)
class FitSettings(PaperSettings):
    """Settings of a policy whose interpolator is learned (Alg. 4)."""

    learning_rate: float | str = setting(3e-3, scheduled=True, search=Range(3e-4, 1e-2))
    """Adam's rate for the interpolator. A number, or `start:end`."""
    gradient_steps: int = setting(20, low=0, high=2**31, search=Range(1, 80))
    """Gradient steps per iteration; passes over all episodes if `leave_out=each-episode`."""
    targets_per_step: int = 256
    """Memories predicted in one gradient step."""
    leave_out: LeaveOut = "sampled"
    """`sampled`: targets of many episodes in one step, each predicted without its own episode.
    `each-episode`: one step for each left-out episode, as Algorithm 4 is written, so that short
    episodes weigh as much as long ones (paper note 11)."""
    max_grad_norm: float = setting(1.0, low=1e-9)
    """Gradients longer than this are shortened to it."""


@dataclass(frozen=True)
class InterpolatorSettings(FitSettings, ContextSettings):
    """Settings of a learned interpolator of memories: MKI and the Neural Processes."""


class PaperPolicy(Policy):
    """A policy whose mean interpolates the improved means of its memory."""

    interpolator_class: ClassVar[type[Any]]
    """Of `Interpolator`: made from the state's and the action's dimensions, and the settings."""

    @classmethod
    def check_settings(cls, settings: PaperSettings) -> None:
        """Refuse the interpolator's own sigma where it has none."""
        if settings.std_mode == "model" and not cls.interpolator_class.predicts_std:
            raise SettingsError(
                f"std_mode='model' needs an interpolator with a sigma of its own (NpPolicy, "
                f"AnpPolicy), which {cls.__name__} is not"
            )

    def make_parts(self) -> None:
        """Make the interpolator; torch's global generator is seeded when it is called."""
        made: Interpolator = self.interpolator_class(self.state_dim, self.action_dim, self.settings)
        self.interpolator = made

    def make_update(self, learner: LearnerState) -> Update:
        """Return the paper's update: improve the rollout, fit the interpolator."""
        return PaperUpdate(learner)

    def context(self) -> Context:
        """Return C: improved means at states normalised as they are at present."""
        states, values, episodes = map(self.memory.column, ("states", "improved_means", "episodes"))
        return Context(self.normaliser(states), values, episodes)

    @property
    @torch.no_grad()
    def conditioned(self) -> Conditioned:
        """The interpolator with the memory in place; made anew after `invalidate`."""
        return self.cached("conditioned", lambda: self.interpolator.condition(self.context()))

    def _act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, own_std = self.conditioned(self.normaliser(states))
        if own_std is None or self.settings.std_mode != "model":
            return mean, self.std.expand_as(mean)
        return mean, own_std.clamp_min(self.settings.min_std)

    def embed(self, states: Tensor) -> Tensor:
        """Return the features that the interpolator compares states by."""
        with torch.no_grad():
            return self.interpolator.embed(self.normaliser(states))

    def mean_by_values(self, state: Tensor, values: Tensor) -> Tensor:
        """Return the mean at a raw state if the improved means in memory were these values."""
        context = self.context()
        varied = Context(context.states, values, context.episodes)
        # Leaving out an episode that nobody remembers leaves out nothing, and can be differentiated
        nobody = (context.episodes.max() + 1)[None]
        target = Context(self.normaliser(state), torch.zeros_like(values[:1]), nobody)
        return self.interpolator.leave_one_out(varied, target).mean[0]
