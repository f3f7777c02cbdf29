"""IMeL as the zoo's scripts make, save and load an algorithm."""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import ConstantSchedule

from imel import algorithm
from imel.checkpoints.checkpoint import path_for
from imel.policies import Policy

_ALMOST_NOTHING = 1e-6
"""Where the zoo's linear schedule ends, as a share of its start; IMeL has no rate of 0."""


class IMeL(algorithm.IMeL):
    """Improved Memories Learning, with the zoo's schedules, its file names and its way to load."""

    def __init__(self, policy: str | type[Policy], env: GymEnv | None, **arguments: Any):
        super().__init__(policy, env, **_with_plain_schedules(arguments))

    def save(  # type: ignore[override]
        self, path: str | os.PathLike[str], exclude: Any = None, include: Any = None
    ) -> None:
        """Write the checkpoint, and a link to it under the `.zip` that the zoo looks for."""
        super().save(path, exclude, include)
        saved = path_for(path)
        link = saved.with_suffix(".zip")
        if not os.path.lexists(link):
            link.symlink_to(saved.name)

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | os.PathLike[str],
        env: GymEnv | str | None = None,
        device: torch.device | str = "auto",
        *,
        custom_objects: Any = None,
        **arguments: Any,
    ) -> Self:
        """Read a model written by `save`."""
        del custom_objects  # in place of what cannot be unpickled; nothing is pickled here
        return super().load(path, env, device, **_with_plain_schedules(arguments))


def _with_plain_schedules(arguments: dict[str, Any]) -> dict[str, Any]:
    """The zoo makes an object of the learning rate it reads; only plain data can be saved."""
    rate = arguments.get("learning_rate")
    if isinstance(rate, ConstantSchedule):
        return {**arguments, "learning_rate": rate.val}
    if isinstance(rate, SimpleLinearSchedule):
        last = _ALMOST_NOTHING * rate.initial_value
        return {**arguments, "learning_rate": f"{rate.initial_value}:{last}"}
    return arguments
