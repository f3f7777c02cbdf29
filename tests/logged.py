"""A trained run on disk, with bounds of its own for actions and episodes that end by chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from imel import IMeL
from imel.data.memory import Memory
from small import BATCH, small_model
from toy import FloatArray, PointEnv

ENV = "ImelWidePoint-v0"


class WidePointEnv(PointEnv):
    """A `PointEnv` with actions from -2 to 6 that terminates after 5 to 40 steps."""

    def __init__(self) -> None:
        super().__init__(episode_length=1000)
        self.action_space = spaces.Box(-2.0, 6.0, (1,), np.float32)

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step((action - 2.0) / 4.0)
        over = self._step >= 5 and bool(self.np_random.uniform() < 0.1)
        return observation, reward, over, self._step == 40, info


def register() -> None:
    """Make the environment known by its id."""
    gym.register(ENV, entry_point="logged:WidePointEnv", disable_env_checker=True)


def wide_model(seed: int = 0, policy: str = "MkiPolicy", **arguments: Any) -> IMeL:
    """A small model on four such environments."""
    env = make_vec_env(WidePointEnv, n_envs=4, seed=seed)
    return small_model(policy, env, seed=seed, **arguments)


def write_run(folder: Path, model: IMeL) -> Path:
    """A folder with what `imel export` needs of a run."""
    folder.mkdir()
    model.save(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"env": ENV, "seed": model.seed}))
    return folder


def trained_run(folder: Path, **arguments: Any) -> tuple[IMeL, Path]:
    """A model that has learned from four rollouts, and its folder."""
    model = wide_model(**arguments).learn(4 * BATCH)
    return model, write_run(folder, model)


def columns_in_time(memory: Memory) -> dict[str, torch.Tensor]:
    """All columns by episode and step; iterations counted back from the newest."""
    order, _ = memory.in_time()
    columns = {name: memory.column(name)[order] for name in memory.column_names}
    columns["iterations"] = columns["iterations"] - columns["iterations"].max()
    return columns
