"""Which spaces a policy can have, and how observations that are no vectors become such.

Observations other than vectors go through one of Stable-Baselines3's features extractors, frozen as
it was drawn: one-hot encodings and flat arrays as they are, images through a random `NatureCNN`.
What it returns is remembered and learned from. It is never trained, so that nothing ages.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from torch import nn

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
            # Sequences and graphs have no fixed size: only a function of the user's gives them one
            wrapper = "Flatten" if part.is_np_flattenable else "Transform"
            raise SpaceError(
                f"{name} must be a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, "
                f"not {part}; gymnasium.wrappers.{wrapper}Observation makes a Box of them"
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
            "actions must be a vector (a Box of one dimension), Discrete, MultiDiscrete or "
            f"MultiBinary, not {action_space}; gymnasium.wrappers.TransformAction makes a vector"
        )
    if not action_space.is_bounded():
        raise SpaceError(
            f"action bounds must be finite, not {action_space}; "
            "gymnasium.wrappers.TransformAction with a bounded Box gives them"
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


def state_names(space: spaces.Space[Any], extractor: nn.Module | None) -> list[str]:
    """Return what the numbers of a state are, by the observation space; none of a vector."""
    if isinstance(extractor, CombinedExtractor):
        assert isinstance(space, spaces.Dict)
        parts = ((key, space[key], part) for key, part in extractor.extractors.items())
        return [name for key, inside, part in parts for name in _part_names(key, inside, part)]
    return [] if extractor is None else _part_names("state", space, extractor)


def _part_names(name: str, space: spaces.Space[Any], extractor: nn.Module) -> list[str]:
    if isinstance(space, spaces.Discrete):
        return [f"{name} = {space.start + k}" for k in range(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        options = zip(space.start.ravel(), space.nvec.ravel(), strict=True)
        return [
            f"{name} {i} = {first + k}" for i, (first, n) in enumerate(options) for k in range(n)
        ]
    if isinstance(extractor, NatureCNN):
        return [f"{name} feature {i}" for i in range(extractor.features_dim)]
    width = get_flattened_obs_dim(space)
    return [name] if width == 1 else [f"{name} {i}" for i in range(width)]


def _fits(space: spaces.Space[Any]) -> bool:
    """Whether an image is large enough for `NatureCNN`, wherever its channels are."""
    assert space.shape is not None
    return sorted(space.shape)[1] >= _LEAST
