"""Distributions of actions: a `Gaussian` of continuous ones, a `Categorical` of discrete ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from imel.distributions.categorical import Categorical
from imel.distributions.distribution import Distribution, listed, vector
from imel.distributions.gaussian import Gaussian

__all__ = ["Categorical", "Distribution", "Gaussian", "distribution_for", "listed", "vector"]


def distribution_for(space: spaces.Space[Any]) -> Distribution:
    """Return the distribution of an action space's actions."""
    if isinstance(space, spaces.Discrete):
        return Categorical([int(space.n)], [int(space.start)], ())
    if isinstance(space, spaces.MultiDiscrete):
        return Categorical(space.nvec.ravel().tolist(), space.start.ravel().tolist(), space.shape)
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return Categorical([2] * count, [0] * count, space.shape)
    assert isinstance(space, spaces.Box)
    return Gaussian(space.shape[0])
