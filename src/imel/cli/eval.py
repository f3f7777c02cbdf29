"""`imel eval`: play episodes with a trained policy, with and without its exploration noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from imel.cli.arguments import Flag, StoredRunArguments, parse
from imel.runs.evaluation import EVALUATION_SEED, evaluate, record_video

_DESCRIPTION = """\
Play episodes with a trained policy and report their returns.

examples:
  imel eval runs/mountaincar
  imel eval runs/mountaincar --episodes 100 --json
  imel eval model.safetensors --env Pendulum-v1
  MUJOCO_GL=egl imel eval runs/cheetah --video"""


@dataclass(frozen=True)
class EvalArguments(StoredRunArguments):
    """What is played, and how often."""

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
    arguments: EvalArguments = parse(EvalArguments, argv, "imel eval", _DESCRIPTION)
    stored = arguments.open(episodes=1)
    env = stored.environment()
    model = stored.load()
    episodes, seed = arguments.episodes, arguments.seed
    played = {
        "deterministic": evaluate(model.policy, env, episodes, seed),
        "stochastic": evaluate(model.policy, env, episodes, seed, deterministic=False),
    }
    if not arguments.json:
        print(f"{env}, {episodes} episodes, model after {model.num_timesteps:,} steps")
        for kind, returns in played.items():
            print(f"{kind:<13}  return {returns}")
    video = record_video(model.policy, env, stored.folder, seed) if arguments.video else None
    if arguments.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "timesteps": model.num_timesteps,
            "seed": seed,
            "episodes": episodes,
            **{kind: returns.as_json() for kind, returns in played.items()},
            "video": None if video is None else str(video),
        }
        print(json.dumps(document, indent=2))
    elif video is not None:
        print(f"video: {video}")
    return 0
