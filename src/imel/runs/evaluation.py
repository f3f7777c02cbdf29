"""Evaluating a policy: returns over episodes side by side, and videos."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordVideo
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import check_for_correct_spaces

from imel.environments.making import make_environments
from imel.environments.playing import LONGEST, play_policy
from imel.environments.simulators import make
from imel.errors import ImelError
from imel.policies import Policy
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
        """Return the summary and the raw numbers."""
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


def evaluate(
    policy: Policy,
    env_id: str,
    episodes: int,
    seed: int = EVALUATION_SEED,
    deterministic: bool = True,
    progress: Callable[[float], None] = lambda share: None,
    workers: bool = False,
) -> Returns:
    """Play episodes; the same seed gives the same episodes. `progress` is told after each step."""

    def tell(played: dict[str, Any], _: dict[str, Any]) -> None:
        steps = played["current_lengths"].sum() / limit
        progress(min(1.0, (len(played["episode_rewards"]) + steps) / episodes))

    made = make_environments(env_id, min(episodes, _SIDE_BY_SIDE), workers)
    with closing(BaseAlgorithm._wrap_env(made, monitor_wrapper=False)) as env:
        try:
            check_for_correct_spaces(env, policy.observation_space, policy.action_space)
        except ValueError as error:
            raise ImelError(f"the model was not made for {env_id}: {error}") from None
        spec = env.get_attr("spec", [0])[0]
        limit = getattr(spec, "max_episode_steps", None) or LONGEST
        env.seed(seed)
        policy.generator.manual_seed(seed)
        returns, lengths = evaluate_policy(
            policy,  # which predicts as its algorithm does
            env,
            episodes,
            deterministic=deterministic,
            callback=tell,
            return_episode_rewards=True,
        )
    assert isinstance(returns, list)
    assert isinstance(lengths, list)
    return Returns([float(value) for value in returns], [int(value) for value in lengths])


def record_video(policy: Policy, env_id: str, folder: Path, seed: int) -> Path:
    """Play one deterministic episode into a video file in a folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".video-") as place:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what matters among them becomes an error
                env = RecordVideo(
                    make(env_id, render_mode="rgb_array"),
                    place,
                    name_prefix=VIDEO,
                    episode_trigger=lambda _: True,
                    disable_logger=True,
                )
                with closing(env):
                    for _ in play_policy(env, policy, seed):
                        pass
            (video,) = Path(place).glob("*.mp4")
        except Exception as error:  # whatever a driver or a renderer may raise
            raise ImelError(
                f"cannot render {env_id}: {error} (MuJoCo needs a display, or MUJOCO_GL=egl or "
                "osmesa; classic control needs pygame)"
            ) from None
        return video.replace(folder / video.name)
