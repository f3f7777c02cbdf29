"""How much a state is like what is remembered: a percentile that means the same everywhere."""

from __future__ import annotations

from typing import Any

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


class Familiarity:
    """Ranks a state's distance to memory among the memories' leave-one-episode-out distances.

    Distances are those of the learned kernel's features in MKI, of normalised states otherwise.
    A state like those remembered, from an episode that is not, gets any score with the same
    probability; one that is far from all of them gets zero.
    """

    def __init__(self, policy: Policy) -> None:
        memory, generator = policy.memory, torch.Generator().manual_seed(0)
        self._embed = policy.embed
        some = torch.randperm(len(memory), generator=generator)[:_SEARCHED].to(policy.device)
        self._episodes = memory.column("episodes")[some]
        self._keys = self._embed(memory.column("states")[some])  # [N, d]
        _, sizes = torch.unique(self._episodes, return_counts=True)
        others = len(self._keys) - max(sizes.tolist(), default=0)  # outside the longest episode
        self._neighbours = min(NEIGHBOURS, others)
        self._reference: Tensor | None = None  # [R] ascending
        if self._neighbours > 0:
            compared = self._nearest(self._keys[:_COMPARED], self._episodes[:_COMPARED])
            self._reference = compared.sort().values

    def __call__(self, states: Tensor) -> NDArray[Any]:
        """Return the share of memories that are at least as unusual as each raw state."""  # [T]
        if self._reference is None:
            return np.full(len(states), np.nan)
        near = self._nearest(self._embed(states))
        nearer = torch.searchsorted(self._reference, near - _ROUNDING)
        return np.asarray(1.0 - nearer.cpu().numpy() / len(self._reference))

    def _nearest(self, places: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the mean distance to the nearest memories, `own` episodes left out."""  # [T]
        size, means = max(1, _AT_ONCE // len(self._keys)), []
        for start in range(0, len(places), size):
            distances = torch.cdist(places[start : start + size], self._keys)
            if own is not None:
                same = own[start : start + size, None] == self._episodes
                distances.masked_fill_(same, torch.inf)
            nearest = distances.topk(self._neighbours, dim=1, largest=False, sorted=False)
            means.append(nearest.values.mean(dim=1))
        return torch.cat(means)


def familiarity_of(policy: Policy) -> Familiarity:
    """Return the scores of a policy as it stands; made once, and again after it has changed."""
    return policy.cached("familiarity", lambda: Familiarity(policy))
