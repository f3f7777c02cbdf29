"""What an interpolator makes of memories it has not seen: its error, and what it improves.

Whole episodes are left out, fold by fold, so that every memory is predicted by an interpolator that
has seen nothing of its episode. Two things are interpolated, each by a fit of its own:

- the improved means mu*, as the paper's policies do. Judged by the squared error;
- the improvements mu* - mu, as `RidgePolicy` does. The prediction delta is scaled to a fixed mean
  KL and judged by the policy gradient of the episode that was left out:

      gain = E[A (a - mu) / sigma^2 . delta]

The gain is the change of the return to first order, in deviations of the advantage. It is zero for
a prediction that has nothing to do with advantages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from imel.data.experience import Context
from imel.distributions import Distribution
from imel.errors import ImelError
from imel.policies import Policy, RidgePolicy
from imel.probe.contestants import Fit

KL = RidgePolicy.Settings().trust_region
"""Mean KL that predicted improvements are scaled to."""


class Estimate(NamedTuple):
    """A mean over memories and its standard error over episodes."""

    value: float
    error: float


@dataclass(frozen=True)
class Judgement:
    """What an interpolator came to on held-out episodes."""

    name: str
    misfit: Estimate
    """Squared error of improved means, as a share of their variance."""
    gain: Estimate
    """Held-out improvement at the fixed KL."""
    seconds: float


@dataclass(frozen=True)
class Memories:
    """The memories of a run, and what each asks for."""

    states: Tensor  # [N, d_s] normalised
    means: Tensor  # [N, d_a] mu
    improved_means: Tensor  # [N, d_a] mu*
    stds: Tensor  # [N, d_a] sigma
    gradients: Tensor  # [N, d_a] A (a - mu) / sigma^2
    episodes: Tensor  # [N]
    distribution: Distribution


def memories_of(policy: Policy) -> Memories:
    """Return the memories of a policy, each improved once, from the policy that acted.

    A `RidgePolicy` improves memories again from where it stands. That is no fair judge: it has been
    taught by the very episodes that are left out here.
    """
    memory, distribution = policy.memory, policy.distribution
    if not len(memory) or memory.holds_prior:
        raise ImelError("the policy remembers no experience yet: there is nothing to probe")
    column = memory.column
    means, stds = column("behaviour_means"), column("stds")
    asked = column("improved_means") - column("means")
    budget = float(distribution.kls(asked, column("means"), stds).mean())
    improved, eta = distribution.improve(
        column("advantages"), column("actions"), means, stds, budget
    )  # Alg. 1 l. 9 and 11
    if eta == 0.0:
        raise ImelError("no memory asks for an improvement: there is nothing to probe")
    return Memories(
        policy.normaliser(column("states")),
        means,
        improved,
        stds,
        (improved.double() - means) / eta,
        column("episodes"),
        distribution,
    )


def folds_of(episodes: Tensor, count: int) -> list[Tensor]:
    """Return the rows of each fold: whole episodes, the longest first into the emptiest fold."""
    names, sizes = torch.unique(episodes, return_counts=True)
    if len(names) < 2:
        raise ImelError("the memories are of one episode: there is none to leave out")
    held = [list[int]() for _ in range(min(count, len(names)))]
    filled = [0] * len(held)
    for place in sizes.argsort(descending=True, stable=True).tolist():
        emptiest = filled.index(min(filled))
        held[emptiest].append(int(names[place]))
        filled[emptiest] += int(sizes[place])
    return [torch.isin(episodes, torch.tensor(each)).nonzero().flatten() for each in held]


def judge(
    name: str,
    fit: Fit,
    memories: Memories,
    folds: Sequence[Tensor],
    seed: int,
    on_fold: Callable[[], None] = lambda: None,
) -> Judgement:
    """Predict every memory without its episode, and judge the predictions."""
    started = time.perf_counter()
    means = torch.empty_like(memories.means)
    steps = torch.empty_like(memories.means)
    for number, rows in enumerate(folds):
        for values, predictions in (
            (memories.improved_means, means),
            (memories.improved_means - memories.means, steps),
        ):
            generator = torch.Generator().manual_seed(seed + number)
            try:
                predictions[rows] = _predicted(fit, memories, values, rows, generator)
            except ImelError:
                raise
            except Exception as error:  # of a user's class
                raise ImelError(f"'{name}' failed: {type(error).__name__}: {error}") from error
        on_fold()
    if not (means.isfinite().all() and steps.isfinite().all()):
        raise ImelError(f"'{name}' predicts what is not finite")
    centre = memories.improved_means.mean(dim=0)
    variance = (memories.improved_means - centre).double().square().sum(dim=1).mean()
    errors = (means - memories.improved_means).double().square().sum(dim=1)
    return Judgement(
        name,
        _estimate(errors / variance.clamp_min(1e-30), memories.episodes),
        gain(memories, steps),
        time.perf_counter() - started,
    )


def gain(memories: Memories, shifts: Tensor) -> Estimate:
    """Return E[gradient . shift], with shifts scaled to the fixed mean KL."""
    scale = memories.distribution.step_length(
        shifts, memories.means, memories.stds, len(shifts), KL, float("inf")
    )
    return _estimate((memories.gradients * shifts.double()).sum(dim=1) * scale, memories.episodes)


def acting_error(memories: Memories) -> float:
    """Return the error of whoever knows the acting means: what improvements add to them."""
    improvements = (memories.improved_means - memories.means).double().square().sum(dim=1).mean()
    variance = memories.improved_means.double().var(dim=0, unbiased=False).sum()
    return float(improvements / variance.clamp_min(1e-30))


def _predicted(
    fit: Fit, memories: Memories, values: Tensor, held: Tensor, generator: torch.Generator
) -> Tensor:
    """Return predictions at held-out rows from all others; values are fitted in deviations."""
    others = torch.ones(len(values), dtype=torch.bool)
    others[held] = False
    seen = values[others]
    centre, scale = seen.mean(dim=0), seen.std(dim=0).clamp_min(1e-9)
    context = Context(memories.states[others], (seen - centre) / scale, memories.episodes[others])
    return fit(context, generator)(memories.states[held]) * scale + centre


def _estimate(values: Tensor, episodes: Tensor) -> Estimate:
    """Return the mean of rows, and its standard error with episodes as what is independent."""
    names, member = torch.unique(episodes, return_inverse=True)
    mean = values.mean()
    deviations = values.new_zeros(len(names)).index_add(0, member, values - mean)
    variance = deviations.square().sum() * len(names) / (len(names) - 1)
    return Estimate(float(mean), float(variance.sqrt()) / len(values))
