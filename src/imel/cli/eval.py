"""`imel eval`: play episodes with a trained policy, with and without its exploration noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from imel.cli.arguments import EnvironmentId, Flag, RunPath, parse, require_at_least
from imel.runs.evaluation import EVALUATION_SEED, evaluate, record_video
from imel.runs.stored import find_run

_DESCRIPTION = """\
Play episodes with a trained policy and report their returns.

examples:
  imel eval runs/mountaincar
  imel eval runs/mountaincar --episodes 100 --json
  imel eval model.safetensors --env Pendulum-v1
  MUJOCO_GL=egl imel eval runs/cheetah --video"""


@dataclass(frozen=True)
class EvalArguments:
    """What is played, and how often."""

    run: RunPath
    """A run directory, or a model file."""
    episodes: int = 20
    """Episodes to play with the mean action, and again with sampled ones."""
    seed: int = EVALUATION_SEED
    """Seed of the episodes. The default is that of the evaluation after training."""
    env: EnvironmentId = None
    """Environment id, if not the one the run was trained on."""
    json: Flag = False
    """Print JSON, with every episode's return and length."""
    video: Flag = False
    """Also record one deterministic episode into the run directory."""
    threads: int = 1
    """Threads of the linear algebra."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: EvalArguments = parse(EvalArguments, argv, "imel eval", _DESCRIPTION)
    require_at_least(arguments, episodes=1, threads=1)
    torch.set_num_threads(arguments.threads)
    stored = find_run(arguments.run, arguments.env)
    env = stored.environment()
    model = stored.load()
    played = {
        kind: evaluate(
            model.policy, env, arguments.episodes, arguments.seed, kind == "deterministic"
        )
        for kind in ("deterministic", "stochastic")
    }
    if not arguments.json:
        print(f"{env}, {arguments.episodes} episodes, model after {model.num_timesteps:,} steps")
        for kind, returns in played.items():
            print(f"{kind:<13}  return {returns}")
    video = (
        record_video(model.policy, env, stored.folder, arguments.seed) if arguments.video else None
    )
    if arguments.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "timesteps": model.num_timesteps,
            "seed": arguments.seed,
            "episodes": arguments.episodes,
            **{kind: returns.as_json() for kind, returns in played.items()},
            "video": None if video is None else str(video),
        }
        print(json.dumps(document, indent=2))
    elif video is not None:
        print(f"video: {video}")
    return 0
