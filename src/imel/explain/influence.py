"""The part each memory has in the policy's mean at a state, in the strongest sense there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.experience import Context
from imel.explain.explanation import Explanation, Kind
from imel.explain.familiarity import familiarity_of
from imel.interpolators.base import Weighted, effective_neighbours
from imel.names import DimensionNames
from imel.policy import PaperPolicy


@dataclass(frozen=True)
class Influence:
    """What each memory weighs, and what it adds."""

    kind: Kind
    weights: Tensor  # [N]
    contributions: Tensor  # [N, d_a]
    effective_neighbours: float


def influence_at(policy: PaperPolicy, state: Tensor) -> Influence:
    """The memories' parts in the mean at one normalised state [1, d_s]."""
    conditioned = policy.conditioned
    if not isinstance(conditioned, Weighted):
        return _sensitivity(policy, state)
    with torch.no_grad():
        weights = conditioned.weights(state)  # [1, N]
        contributions = conditioned.contributions(state)[0]
    kind: Kind = "sum" if conditioned.exact else "attention"
    return Influence(kind, weights[0], contributions, _about(weights[0]))


def _sensitivity(policy: PaperPolicy, state: Tensor) -> Influence:
    """d mean / d value_i of every memory: its norm as a weight, its product as what it adds.

    For a linear smoother that product is the exact contribution; here it is the first order's.
    """
    norms, contributions = _first_order(policy, state)
    if not norms.any():
        return Influence("none", norms, contributions, 0.0)
    weights = norms / norms.sum()
    return Influence("sensitivity", weights, contributions, _about(weights))


def _first_order(policy: PaperPolicy, state: Tensor) -> tuple[Tensor, Tensor]:
    """How much the interpolated value changes with each of the context's, and the products."""
    context = policy.context()
    values = context.values.detach().clone().requires_grad_()
    # Leaving out an episode that nobody remembers leaves out nothing, and can be differentiated
    nobody = (context.episodes.max() + 1)[None]
    target = Context(state, torch.zeros_like(values[:1]), nobody)
    with torch.enable_grad():
        answer = policy.interpolator.leave_one_out(
            Context(context.states, values, context.episodes), target
        ).mean[0]
        gradients = [
            torch.autograd.grad(part, values, retain_graph=True, allow_unused=True)[0]
            for part in answer
        ]
    found = [torch.zeros_like(values) if part is None else part for part in gradients]
    jacobian = torch.stack(found)  # [d_a, n, d_v]
    norms = jacobian.square().sum(dim=(0, 2)).sqrt()  # [n]
    return norms, torch.einsum("aiv,iv->ia", jacobian, values.detach())


def _about(weights: Tensor) -> float:
    # Of a smoother with negative weights, how many it rests on is about their sizes
    return float(effective_neighbours(weights.abs()[None]))


def explain_memories(
    policy: PaperPolicy, numbers: NDArray[Any], state: Tensor, names: DimensionNames
) -> Explanation:
    """Explain the mean at one raw state [1, d_s] by the memories it is interpolated from.

    `numbers` are those of the memory's rows before some were left out.
    """
    memory = policy.memory
    mean = policy.act(state)[0][0]
    influence = influence_at(policy, policy.normaliser(state))
    if influence.kind == "none":
        places, place = policy.normaliser(memory.column("states")), policy.normaliser(state)
        nearness = torch.cdist(place, places)[0]
        order = nearness.argsort(stable=True)
    else:
        # Those without a share may still add something: after the others, what adds most first
        added = influence.contributions.abs().sum(dim=1).argsort(descending=True, stable=True)
        order = added[influence.weights[added].abs().argsort(descending=True, stable=True)]

    def array(column: Tensor) -> NDArray[Any]:
        return column[order].cpu().numpy()

    return Explanation(
        observation=state[0].cpu().numpy(),
        mean=mean.cpu().numpy(),
        kind=influence.kind,
        familiarity=float(familiarity_of(policy)(state)[0]),
        effective_neighbours=influence.effective_neighbours,
        weights=array(influence.weights),
        contributions=array(influence.contributions),
        rows=numbers[order.cpu().numpy()],
        distribution=policy.distribution,
        names=names,
        **{name: array(memory.column(name)) for name in Explanation.columns()},
    )
