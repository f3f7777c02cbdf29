"""`imel eval`: play episodes with a trained policy, with and without its exploration noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

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
    env, model = stored.environment(), stored.load()
    played = {
        kind: evaluate(model.policy, env, given.episodes, given.seed, kind == "deterministic")
        for kind in ("deterministic", "stochastic")
    }
    if not given.json:
        print(f"{env}, {given.episodes} episodes, model after {model.num_timesteps:,} steps")
        for kind, returns in played.items():
            print(f"{kind:<13}  return {returns}")
    video = record_video(model.policy, env, stored.folder, given.seed) if given.video else None
    if given.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "timesteps": model.num_timesteps,
            "seed": given.seed,
            "episodes": given.episodes,
            **{kind: returns.as_json() for kind, returns in played.items()},
            "video": None if video is None else str(video),
        }
        print(json.dumps(document, indent=2))
    elif video is not None:
        print(f"video: {video}")
    return 0
