"""Which spaces a policy can have, and how observations that are no vectors become such.

Observations other than vectors go through one of Stable-Baselines3's features extractors, frozen as
it was drawn: one-hot encodings and flat arrays as they are, images through a random `NatureCNN`.
The state that is remembered and learned from is what the extractor returns: it is never trained, so
what it returns does not age, and of an image it is a tenth of the size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)

from imel.errors import SpaceError

_LEAST = 36
"""Pixels to each side below which `NatureCNN` has nothing left; smaller images are flattened."""
_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_spaces(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """Refuse spaces on which no policy can be learned, and name a wrapper that helps."""
    parts = [("observations", observation_space)]
    if isinstance(observation_space, spaces.Dict):
        parts = [(f"observations['{key}']", part) for key, part in observation_space.items()]
    for name, part in parts:
        if not isinstance(part, _PLAIN):
            raise SpaceError(
                f"{name} must be a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, "
                f"not {part}; gymnasium.wrappers.FlattenObservation makes a Box of most spaces"
            )
        small = is_image_space(part) and not _fits(part)
        if small and isinstance(observation_space, spaces.Dict):
            raise SpaceError(
                f"{name} is an image below {_LEAST} x {_LEAST} pixels; "
                "gymnasium.wrappers.ResizeObservation enlarges an image, FlattenObservation makes "
                "a vector of the whole Dict"
            )
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1:
        raise SpaceError(
            f"actions must be a vector (a Box of one dimension), Discrete, MultiDiscrete or "
            f"MultiBinary, not {action_space}; gymnasium.wrappers.TransformAction makes others of "
            "a vector"
        )
    if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
        raise SpaceError(
            f"action bounds must be finite, not {action_space}; "
            "gymnasium.wrappers.RescaleAction or a Box with bounds gives them"
        )


def make_extractor(space: spaces.Space[Any]) -> BaseFeaturesExtractor | None:
    """Return a frozen extractor of vectors; None where observations are vectors already."""
    extractor: BaseFeaturesExtractor
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return None
    if isinstance(space, spaces.Dict):
        extractor = CombinedExtractor(space)
    elif is_image_space(space) and _fits(space):
        assert isinstance(space, spaces.Box)
        extractor = NatureCNN(space)
    else:
        extractor = FlattenExtractor(space)
    return extractor.requires_grad_(False)


def _fits(space: spaces.Space[Any]) -> bool:
    """Whether an image is large enough for `NatureCNN`, wherever its channels are."""
    assert space.shape is not None
    return sorted(space.shape)[1] >= _LEAST
