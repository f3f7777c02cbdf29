"""Make the run that `imel explore --demo` opens: `make demo`.

Trains with the settings in force, and keeps of the run what the explorer needs: the policy with all
of its lessons and a few of its memories, the learning curve and the evaluation.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from imel.cli.main import main as imel
from imel.explain import policy_without
from imel.explain.reduced import largest_lessons
from imel.explorer import DEMO
from imel.policies import RidgePolicy
from imel.runs import layout
from imel.runs.evaluation import evaluate

KEPT = (layout.CONFIG, layout.MONITOR, layout.EVALUATION)
"""Without the identity of the run, which a policy alone does not have."""
MEMORIES = 512
LARGEST = 1 << 20
"""Bytes of the whole folder at most."""


def trimmed(policy: RidgePolicy, memories: int) -> RidgePolicy:
    """Return the same policy with its newest memories only, and no unused rows."""
    surplus = max(0, len(policy.memory) - memories)
    policy.memory.forget_rows(torch.arange(surplus))
    rows = {"memory.": len(policy.memory), "lessons.": len(policy.lessons)}

    def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
        count = next((rows[prefix] for prefix in rows if name.startswith(prefix)), None)
        return tensor if count is None or not tensor.ndim else tensor[:count].clone()

    settings = policy.settings.updated({"memory_size": rows["memory."]})
    smaller = RidgePolicy(policy.observation_space, policy.action_space, settings)
    smaller.load_state_dict({name: cut(name, each) for name, each in policy.state_dict().items()})
    return smaller


def make(env: str, steps: int, seed: int, target: Path) -> None:
    """Train, trim, and put the run into a folder."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place, "run")
        length = ("--total-timesteps", str(steps), "--seed", str(seed))
        if imel(["train", env, *length, "--run-dir", str(run)]):
            raise SystemExit("training failed")
        policy = RidgePolicy.load(run / layout.MODEL)
        states = policy.memory.column("states")[-MEMORIES:].clone()
        means = policy.act(states)[0]
        largest = largest_lessons(policy, 5)
        smaller = trimmed(policy, MEMORIES)
        torch.testing.assert_close(smaller.act(states)[0], means)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in KEPT:
            shutil.copy(run / name, target)
        smaller.save(target / layout.MODEL)
    size = sum(path.stat().st_size for path in target.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{target} has {size:,} bytes, more than {LARGEST:,}: train fewer steps")
    whole, without = (
        np.mean(evaluate(each, env, 8).returns)
        for each in (smaller, policy_without(smaller, lessons=largest))
    )
    print(f"{target}: {size:,} bytes, {len(smaller.lessons)} lessons")
    print(f"return {whole:,.0f}; without the five largest lessons {without:,.0f}")


def main() -> None:
    """Make the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--target", type=Path, default=DEMO)
    arguments = parser.parse_args()
    make(arguments.env, arguments.steps, arguments.seed, arguments.target)


if __name__ == "__main__":
    main()
