"""IMeL in RL Baselines3 Zoo: `python -m imel.zoo train --algo imel --env Pendulum-v1`.

The zoo's scripts know the algorithms of one dictionary. They look at it before they import what
`--gym-packages` names, so IMeL is put there first and the script is run then; nothing else of the
zoo is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from imel import algorithm
from imel.checkpoints.checkpoint import path_for

HYPERPARAMETERS = Path(__file__).with_name("imel.yml")
"""What the zoo reads of IMeL's settings, for `--conf-file`."""


class IMeL(algorithm.IMeL):
    """Improved Memories Learning, with the zoo's schedules, its file names and its way to load."""

    def __init__(self, policy: Any, env: Any, **arguments: Any):
        super().__init__(policy, env, **_with_plain_schedule(arguments))

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
        cls, path: Any, env: Any = None, device: Any = "auto", **arguments: Any
    ) -> Self:
        """Read a model written by `save`; there are no pickled objects to replace."""
        arguments.pop("custom_objects", None)
        return super().load(path, env, device, **_with_plain_schedule(arguments))


def _with_plain_schedule(arguments: dict[str, Any]) -> dict[str, Any]:
    """The zoo makes a function of the learning rate it reads; only plain data can be saved."""
    rate = arguments.get("learning_rate")
    if not callable(rate):
        return arguments
    start, end = rate(1.0), max(rate(0.0), 1e-6 * rate(1.0))  # IMeL has no rate of 0
    return {**arguments, "learning_rate": f"{start}:{end}"}
