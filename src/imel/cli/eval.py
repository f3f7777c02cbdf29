"""`imel eval`: play episodes with a trained policy, with and without its exploration noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.runs.evaluation import EVALUATION_SEED, evaluate, record_video


@dataclass(frozen=True)
class EvalArguments(StoredRunArguments):
    """Play episodes with a trained policy and report their returns.

    examples:
      imel eval runs/mountaincar
      imel eval runs/mountaincar --episodes 100 --json
      imel eval model.safetensors --env Pendulum-v1
      MUJOCO_GL=egl imel eval runs/cheetah --video
    """

    episodes: int = 20
    """Episodes to play with the mean action, and again with sampled ones."""
    seed: int = EVALUATION_SEED
    """Seed of the episodes. The default is that of the evaluation after training."""
    json: Flag = False
    """Print JSON, with every episode's return and length."""
    video: Flag = False
    """Also record one deterministic episode into the run directory."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: EvalArguments = parse(EvalArguments, argv, "imel eval")
    stored = given.open(episodes=1)
    env, model, seed = stored.environment(), stored.load(), given.seed
    said: dict[str, Any] = {"env": env, "model": str(stored.model_path)}
    said |= {"timesteps": model.num_timesteps, "seed": seed, "episodes": given.episodes}
    lines = [f"{env}, {given.episodes} episodes, model after {model.num_timesteps:,} steps"]
    for kind in ("deterministic", "stochastic"):
        played = evaluate(model.policy, env, given.episodes, seed, kind == "deterministic")
        said[kind] = played.as_json()
        lines.append(f"{kind:<13}  return {played}")
    said["video"] = None
    if given.video:
        said["video"] = str(record_video(model.policy, env, stored.folder, seed))
        lines.append(f"video: {said['video']}")
    print(json.dumps(said, indent=2) if given.json else "\n".join(lines))
    return 0
