"""Settings with a name, as plain data: what `preset` stands for."""

from __future__ import annotations

from typing import Any

ANCHORED: dict[str, Any] = {
    "update": "anchored",
    "memory_size": 8192,
    "gae_lambda": 0.97,
    "std": 0.5,
    "std_mode": "adaptive",
    "min_std": 0.05,
    "gradient_steps": 10,
    "targets_per_step": 128,
    "critic_epochs": 2,
    "critic_batch_size": 256,
}

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's text, with schedules of epsilon and sigma that let it learn
    "paper": {"update": "plain", "std": "0.4:0.1", "std_mode": "schedule", "min_std": 0.02},
    # All memories improved again at every iteration: learns faster at first
    "anchored": ANCHORED,
    # Where a policy that does nothing is a local optimum: explore with the whole action range
    # first, and fit slowly, lest noise about the cost of acting make the policy stand still
    "exploration": {**ANCHORED, "std": "1:0.1", "learning_rate": 1e-3},
}
