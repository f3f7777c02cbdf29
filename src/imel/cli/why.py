"""`imel why`: play an episode, and say which memories made one of its actions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from imel.cli.arguments import parse
from imel.cli.why_text import as_document, print_answer
from imel.errors import ImelError, SettingsError
from imel.explain import Explanation, explain, familiarity_of
from imel.pictures.why import Chosen, draw_frames
from imel.playing import make_environment
from imel.policy import ImelPolicy
from imel.runs.evaluation import EVALUATION_SEED
from imel.runs.stored import find_run

_DESCRIPTION = """\
Play an episode with a policy's mean action, and say which memories made the action at one step,
or at its most and at its least familiar one.

examples:
  imel why runs/cheetah
  imel why runs/cheetah --step 100 --frame why.png
  imel why runs/cheetah --step 100 --without-episode 412
  imel why model.safetensors --env Pendulum-v1 --json"""

_LONGEST = 10_000
"""Steps after which an episode is left, whatever the environment says."""


@dataclass(frozen=True)
class WhyArguments:
    """Which action is explained, and how."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, or a model file."""
    step: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The step of the episode, from 0. By default the most and the least familiar one."""
    seed: int = EVALUATION_SEED
    """Seed of the episode. The default is that of the evaluation after training."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Environment id, if not the one the run was trained on."""
    memories: int = 8
    """How many memories are listed."""
    without_episode: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = ()
    """Episodes the policy is to do without; their numbers are in the table. The episode played
    is that of the whole policy, and what it would do instead is shown at the same step."""
    frame: Annotated[Path | None, tyro.conf.arg(metavar="PNG")] = None
    """Also draw the state beside those of the first memories, into this file."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print JSON, with all there is to say about the memories listed."""
    threads: int = 1
    """Threads of the linear algebra."""


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    arguments: WhyArguments = parse(WhyArguments, argv, "imel why", _DESCRIPTION)
    for name in ("memories", "threads"):
        if getattr(arguments, name) < 1:
            raise SettingsError(f"{name}={getattr(arguments, name)} is less than 1")
    if arguments.frame is not None and arguments.frame.suffix.lower() != ".png":
        raise SettingsError(f"{arguments.frame} is not the name of a .png file")
    torch.set_num_threads(arguments.threads)
    stored = find_run(arguments.run)
    env = arguments.env or stored.env
    if env is None:
        raise ImelError(f"no config.json beside {stored.model_path}: name the environment by --env")
    policy = ImelPolicy.load(str(stored.model_path))
    states = play(policy, env, arguments.seed)
    chosen = [
        _explained(policy, name, step, states[step], arguments.without_episode)
        for name, step in choose_steps(policy, states, arguments.step)
    ]
    if arguments.json:
        document = {
            "env": env,
            "model": str(stored.model_path),
            "seed": arguments.seed,
            "steps": len(states),
            "explained": [as_document(each, arguments.memories) for each in chosen],
        }
        print(json.dumps(document, indent=2))
    else:
        title = f"{env}, {type(policy).__name__}, an episode of {len(states)} steps"
        print(f"{title} (seed {arguments.seed})")
        for each in chosen:
            print_answer(each, arguments.memories, arguments.without_episode)
    if arguments.frame is not None:
        note = draw_frames(arguments.frame, policy, env, arguments.seed, chosen)
        where = sys.stderr if arguments.json else sys.stdout
        print(f"picture: {arguments.frame}{'' if note is None else f' ({note})'}", file=where)
    return 0


def play(policy: ImelPolicy, env_id: str, seed: int) -> NDArray[Any]:
    """What is observed in an episode with the mean action."""  # [T, d_s]
    states: list[NDArray[Any]] = []
    with closing(make_environment(env_id, rendered=False)) as env:
        if env.observation_space.shape != policy.observation_space.shape:
            raise ImelError(
                f"the model was not made for {env_id}: it observes "
                f"{policy.observation_space.shape}, not {env.observation_space.shape}"
            )
        observation, _ = env.reset(seed=seed)
        for _ in range(_LONGEST):
            states.append(np.asarray(observation, dtype=np.float32))
            action, _ = policy.predict(states[-1], deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    return np.array(states)


def choose_steps(
    policy: ImelPolicy, states: NDArray[Any], step: int | None
) -> list[tuple[str, int]]:
    """The step asked for, or the first of the most and of the least familiar ones."""
    if step is not None:
        if not 0 <= step < len(states):
            raise SettingsError(
                f"step={step}: the episode has {len(states)} steps, 0 to {len(states) - 1}"
            )
        return [("asked for", step)]
    scores = familiarity_of(policy)(torch.as_tensor(states, device=policy.device))
    if np.isnan(scores).any():
        return [("the first; the memory holds a single episode to compare with", 0)]
    chosen = [("the most familiar", int(scores.argmax()))]
    chosen.append(("the least familiar", int(scores.argmin())))
    return chosen if chosen[0][1] != chosen[1][1] else chosen[:1]


def _explained(
    policy: ImelPolicy, name: str, step: int, state: NDArray[Any], without: tuple[int, ...]
) -> Chosen:
    why: Explanation = explain(policy, state)
    otherwise: Explanation | None = None
    if without:
        otherwise = explain(policy, state, without_episodes=without)
    return Chosen(name, step, why, otherwise)
