"""Settings of the paper's policies: Algorithms 1 and 2 with their readings (paper notes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from imel.data.advantage import Estimator
from imel.settings.common import Settings

StdMode = Literal["schedule", "constant", "advantage", "paper", "model"]
LeaveOut = Literal["sampled", "each-episode"]


@dataclass(frozen=True)
class PaperSettings(Settings):
    """Settings of every policy of the paper's family."""

    scheduled: ClassVar[tuple[str, ...]] = ("kl_budget", "std")

    memory_size: int = 2048
    gae_lambda: float = 0.9
    advantage_clip: float = 3.0
    critic_epochs: int = 5
    batch_size: int = 128
    min_std: float = 0.02
    advantage: Estimator = "gae"
    """`gae`: standard GAE on rewards. `monte-carlo`: return minus value. `paper`: Algorithm 3 to
    the letter, which hands GAE the return in the reward's place (paper note 4)."""
    kl_budget: float | str = "6:1"
    """epsilon: mean KL between improved and acting policy, over all action dimensions together.
    A number, or `start:end` for a linear schedule over the run."""
    std: float | str = "1:0.25"
    """sigma of each action dimension times the square root of their number, in policy units (the
    action range is [-1, 1]). A number, or `start:end`."""
    std_mode: StdMode = "schedule"
    """`schedule`: follow `std`. `constant`: keep its start (the paper's text). `advantage`: policy
    gradient on sigma. `paper`: Algorithm 2 to the letter, without the advantage. `model`: the
    interpolator's own sigma (Algorithm 1; Neural Processes only). Paper note 3."""
    clip_means: bool = False
    """Keep improved means within the action range, where actions still depend on them."""


@dataclass(frozen=True)
class ContextSettings(PaperSettings):
    """Settings of a policy that is conditioned on its memory from the start."""

    prior_size: int = 64
    """Points of the prior context C^0, which makes the first policy and is then forgotten."""
    prior_std: float = 0.1
    """Deviation of the prior context's means around zero, in policy units (paper note 5)."""


@dataclass(frozen=True)
class FitSettings(PaperSettings):
    """Settings of a policy whose interpolator is learned (Alg. 4)."""

    scheduled: ClassVar[tuple[str, ...]] = ("kl_budget", "std", "learning_rate")

    learning_rate: float | str = 3e-3
    """Adam's rate for the interpolator. A number, or `start:end`."""
    gradient_steps: int = 20
    """Gradient steps per iteration; passes over all episodes if `leave_out=each-episode`."""
    targets_per_step: int = 256
    """Memories predicted in one gradient step."""
    leave_out: LeaveOut = "sampled"
    """`sampled`: targets of many episodes in one step, each predicted without its own episode.
    `each-episode`: one step for each left-out episode, as Algorithm 4 is written, so that short
    episodes weigh as much as long ones (paper note 11)."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are shortened to it."""


@dataclass(frozen=True)
class InterpolatorSettings(FitSettings, ContextSettings):
    """Settings of a learned interpolator of memories: MKI and the Neural Processes."""


@dataclass(frozen=True)
class MkiSettings(InterpolatorSettings):
    """Settings of MKI: a longer memory, shorter steps at first."""

    memory_size: int = 4096
    kl_budget: float | str = "3:1"


@dataclass(frozen=True)
class NpSettings(InterpolatorSettings):
    """Settings of a Neural Process without attention: shorter steps at first."""

    kl_budget: float | str = "2:1"
