"""Playing episodes with a policy: environments, returns, and videos."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import RecordVideo
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import check_for_correct_spaces

from imel.algorithm import IMeL
from imel.environments import make_environments
from imel.errors import ImelError
from imel.runs.layout import VIDEO

EVALUATION_SEED = 10_000
"""Episodes of an evaluation start from here, whatever the run's own seed."""

_SIDE_BY_SIDE = 8


@dataclass(frozen=True)
class Returns:
    """The returns and lengths of some episodes."""

    returns: list[float]
    lengths: list[int]

    def as_json(self) -> dict[str, Any]:
        """Summary and raw numbers."""
        return {
            "mean": float(np.mean(self.returns)),
            "std": float(np.std(self.returns)),
            "min": min(self.returns),
            "max": max(self.returns),
            "returns": self.returns,
            "lengths": self.lengths,
        }

    def __str__(self) -> str:
        values = self.as_json()
        return (
            f"{values['mean']:.2f} ± {values['std']:.2f}  "
            f"(min {values['min']:.2f}, max {values['max']:.2f})"
        )


def evaluate(model: IMeL, env_id: str, episodes: int, seed: int, deterministic: bool) -> Returns:
    """Play episodes; the same seed gives the same episodes."""
    env = make_environments(env_id, min(episodes, _SIDE_BY_SIDE))
    try:
        check_for_correct_spaces(env, model.observation_space, model.action_space)
    except ValueError as error:
        raise ImelError(f"the model was not made for {env_id}: {error}") from None
    env.seed(seed)
    model.policy.generator.manual_seed(seed)
    returns, lengths = evaluate_policy(
        model, env, episodes, deterministic=deterministic, return_episode_rewards=True
    )
    env.close()
    assert isinstance(returns, list)
    assert isinstance(lengths, list)
    return Returns([float(value) for value in returns], [int(value) for value in lengths])


def record_video(model: IMeL, env_id: str, folder: Path, seed: int) -> Path:
    """Play one deterministic episode into a video file in a folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".video-") as place:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what matters among them becomes an error
                _record_episode(model, env_id, place, seed)
            (video,) = Path(place).glob("*.mp4")
        except Exception as error:  # whatever a driver or a renderer may raise
            raise ImelError(
                f"cannot render {env_id}: {error} (MuJoCo needs a display, or MUJOCO_GL=egl or "
                "osmesa; classic control needs pygame)"
            ) from None
        return video.replace(folder / video.name)


def _record_episode(model: IMeL, env_id: str, folder: str, seed: int) -> None:
    env = RecordVideo(
        gymnasium.make(env_id, render_mode="rgb_array"),
        folder,
        name_prefix=VIDEO,
        episode_trigger=lambda _: True,
        disable_logger=True,
    )
    with contextlib.closing(env):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
