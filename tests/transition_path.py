"""Count the files of imel that one transition passes, from env.step to the next env.step.

`python tests/transition_path.py` prints them. A run with the default policy and its default
settings is traced from the start of its second iteration to the end of it: by then every part has
been made, and what is called is what experience goes through.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

import imel
from imel import IMeL
from imel.runs.plan import POLICY_NAMES, RunArguments

LIMIT = 14
"""Files that may lie on the way."""

_PACKAGE = Path(imel.__file__).parent


class CalledFiles(BaseCallback):
    """Collects the files of imel whose functions are called in the second iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.files: set[Path] = set()
        self._iterations = 0

    def _on_rollout_start(self) -> None:
        self._iterations += 1
        sys.setprofile(self._note if self._iterations == 2 else None)

    def _on_step(self) -> bool:
        return self._iterations < 3

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            path = Path(code.co_filename)
            if path.is_relative_to(_PACKAGE):
                self.files.add(path.relative_to(_PACKAGE))


def transition_path(env_id: str = "Pendulum-v1") -> list[str]:
    """Return the files of imel, by their path in the package, that a transition passes."""
    called = CalledFiles()
    model = IMeL(POLICY_NAMES[RunArguments.policy], env_id, seed=0)
    try:
        model.learn(1_000_000, called)
    finally:
        sys.setprofile(None)
    return sorted(str(path) for path in called.files)


if __name__ == "__main__":
    found = transition_path()
    print("\n".join(found))
    print(f"{len(found)} files")
