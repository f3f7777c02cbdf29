"""Making one environment: the one place that calls `gymnasium.make`.

MuJoCo would write its warnings to the terminal once per model, and to a file MUJOCO_LOG.TXT in the
user's folder. Here each is said once, and no file is written.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import gymnasium

_said: set[str] = set()


def make(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment by its id."""
    if is_mujoco(env_id):
        import mujoco  # which takes a while to import, and not every task needs it

        mujoco.set_mju_user_warning(_say_once)
    return gymnasium.make(env_id, **options)


def is_mujoco(env_id: str) -> bool:
    """Return whether an id stands for one of Gymnasium's MuJoCo tasks."""
    spec = gymnasium.registry.get(env_id)
    entry = None if spec is None else spec.entry_point
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.mujoco")


def _say_once(text: str) -> None:
    key = text.split(" at ")[0]  # what follows are numbers: a joint, a time
    # Models are compiled in the main process first, so workers have nothing new to say of them
    known = "deprecated" in text and multiprocessing.parent_process() is not None
    if key not in _said and not known:
        _said.add(key)
        print(f"MuJoCo: {text}", file=sys.stderr)
