"""The part each memory has in the policy's mean at a state, in the strongest sense there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.data.experience import Context
from imel.explain.explanation import COLUMNS, Explanation, Kind
from imel.explain.familiarity import familiarity_of
from imel.policies import PaperPolicy, Policy
from imel.policies.names import DimensionNames
from imel.policies.paper.interpolator import Weighted, effective_neighbours


def _first_order(policy: PaperPolicy, state: Tensor) -> tuple[Tensor, Tensor]:
    """How much the mean changes with each memory's value, and that times the value.

    For a linear smoother that product is the exact contribution; here it is the first order's.
    """
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


def explain_interpolation(
    policy: PaperPolicy, states: Tensor, names: DimensionNames
) -> list[Explanation]:
    """Explain the means at raw states by the memories they are interpolated from."""
    numbers = np.arange(len(policy.memory))
    return [_explain(policy, numbers, state[None], names) for state in states]


def explain_memories(policy: Policy, states: Tensor, names: DimensionNames) -> list[Explanation]:
    """Explain the means of any policy with a memory."""
    raise NotImplementedError


def _explain(
    policy: PaperPolicy, numbers: NDArray[Any], state: Tensor, names: DimensionNames
) -> Explanation:
    """Explain the mean at one raw state [1, d_s] by the memories it is interpolated from.

    `numbers` are those of the memory's rows before some were left out.
    """
    memory, conditioned = policy.memory, policy.conditioned
    mean, place = policy.act(state)[0][0], policy.normaliser(state)
    kind: Kind = "sensitivity"
    if isinstance(conditioned, Weighted):
        kind = "sum" if conditioned.exact else "attention"
        with torch.no_grad():
            weights, added = conditioned.weights(place)[0], conditioned.contributions(place)[0]
    else:
        norms, added = _first_order(policy, place)
        kind = "sensitivity" if norms.any() else "none"
        weights = norms / norms.sum() if norms.any() else norms
    if kind == "none":
        about = 0.0
        nearness = torch.cdist(place, policy.normaliser(memory.column("states")))[0]
        order = nearness.argsort(stable=True)
    else:
        # Of a smoother with negative weights, how many it rests on is about their sizes
        about = float(effective_neighbours(weights.abs()[None]))
        # Those without a share may still add something: after the others, what adds most first
        order = added.abs().sum(dim=1).argsort(descending=True, stable=True)
        order = order[weights[order].abs().argsort(descending=True, stable=True)]

    def array(column: Tensor) -> NDArray[Any]:
        return column[order].cpu().numpy()

    return Explanation(
        observation=state[0].cpu().numpy(),
        mean=mean.cpu().numpy(),
        kind=kind,
        familiarity=float(familiarity_of(policy)(state)[0]),
        effective_neighbours=about,
        weights=array(weights),
        contributions=array(added),
        rows=numbers[order.cpu().numpy()],
        distribution=policy.distribution,
        names=names,
        **{name: array(memory.column(name)) for name in COLUMNS},
    )
