"""What a model says of itself in a few lines: its `repr`."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.utils import safe_mean


def summary(model: Any) -> str:
    """Return a model's environment and spaces, what it has learned and what it remembers."""
    name, policy = model.policy_class.__name__, getattr(model, "policy", None)
    if policy is None:
        return f"<IMeL with {name}, not set up>"
    env, memory, where = model.get_env(), policy.memory, "no environment"
    if env is not None:
        (spec,) = env.get_attr("spec", [0])
        where = getattr(spec, "id", None) or "an unregistered environment"
    learned = f"learned {model.num_timesteps:,} steps in {model.iteration:,} iterations"
    if model.ep_info_buffer:
        returns = [episode["r"] for episode in model.ep_info_buffer]
        learned += f"; mean return of the last {len(returns)} episodes {safe_mean(returns):.1f}"
    held = f"{0 if memory.holds_prior else len(memory):,} of {memory.capacity:,} memories"
    if getattr(policy, "lessons", None) is not None:
        held += f", {len(policy.lessons):,} lessons"
    if policy.distribution.scaled:
        held += f", sigma {float(policy.std.mean()):.2f}"
    spaces = f"observations {model.observation_space}, actions {model.action_space}"
    title = f"IMeL with {name} on {where}, {model.n_envs} environments"
    return "\n  ".join([title, spaces, learned, held])
