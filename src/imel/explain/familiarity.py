"""How much a state is like what is remembered: a percentile that means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.policies import Policy

NEIGHBOURS = 5
"""A distance to memory is the mean over this many nearest ones: one alone may be a stray."""
_COMPARED = 512
"""Memories whose own distances a state's is compared with."""
_SEARCHED = 1 << 15
"""Memories among which the nearest are searched: a sample of them, if there are more."""
_ROUNDING = 1e-3
"""Distances between equal states may be as large, in deviations; where observations are discrete
many states are equal."""
_AT_ONCE = 1 << 22
"""Distances held at a time: 16 MiB of float32."""

Familiarity = Callable[[Tensor], NDArray[Any]]
"""The share of memories that are at least as unusual as each raw state: [T, d_s] -> [T]."""


def familiarity_of(policy: Policy) -> Familiarity:
    """Return the scores of a policy as it stands; made once, and again after it has changed.

    They rank a state's distance to memory among the memories' leave-one-episode-out distances, in
    the learned kernel's features in MKI, between normalised states otherwise. A state like those
    remembered, from an episode that is not, gets any score with the same probability; one that is
    far from all of them gets zero.
    """
    return policy.cached("familiarity", lambda: _scores(policy))


def _scores(policy: Policy) -> Familiarity:
    memory, generator = policy.memory, torch.Generator().manual_seed(0)
    some = torch.randperm(len(memory), generator=generator)[:_SEARCHED].to(policy.device)
    episodes, keys = memory.column("episodes")[some], policy.embed(memory.column("states")[some])
    _, sizes = torch.unique(episodes, return_counts=True)
    # At most as many as there are outside the longest episode
    neighbours = min(NEIGHBOURS, len(keys) - max(sizes.tolist(), default=0))
    if neighbours <= 0:
        return lambda states: np.full(len(states), np.nan)

    def nearest(places: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the mean distance to the nearest memories, `own` episodes left out."""  # [T]
        size, means = max(1, _AT_ONCE // len(keys)), []
        for start in range(0, len(places), size):
            distances = torch.cdist(places[start : start + size], keys)  # [.., N]
            if own is not None:
                distances.masked_fill_(own[start : start + size, None] == episodes, torch.inf)
            closest = distances.topk(neighbours, dim=1, largest=False, sorted=False)
            means.append(closest.values.mean(dim=1))
        return torch.cat(means)

    reference = nearest(keys[:_COMPARED], episodes[:_COMPARED]).sort().values  # [R] ascending
    # The policy keeps these scores in its cache: holding it in turn would keep both alive
    method = WeakMethod(policy.embed)

    def scores(states: Tensor) -> NDArray[Any]:
        embed = method()
        assert embed is not None, "scores are asked of a policy that is gone"
        nearer = torch.searchsorted(reference, nearest(embed(states)) - _ROUNDING)
        return np.asarray(1.0 - nearer.cpu().numpy() / len(reference))

    return scores
