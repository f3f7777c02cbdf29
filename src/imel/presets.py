"""Settings with a name, as plain data: what `preset` stands for."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "update": "plain",
    "memory_size": 2048,
    "forgetting": "fifo",
    "forgetting_unit": "rollout",
    "newest_kept": 0,
    "improved_size": 0,
    "gamma": 0.99,
    "gae_lambda": 0.9,
    "advantage_clip": 3.0,
    "cooling": 0,
    "easing": 0.0,
    "peak_kl": 0.0,
    "std": "0.5:0.2",
    "std_of": "dimension",
    "std_mode": "adaptive",
    "std_rate": 1.0,
    "entropy_bonus": 0.02,
    "gradient_steps": 20,
    "targets_per_step": 256,
    "critic_epochs": 5,
    "critic_batch_size": 128,
}
"""What a plain update learns with: the general defaults."""

ANCHORED: dict[str, Any] = {
    "update": "anchored",
    "memory_size": 12288,
    "forgetting": "reservoir",
    "forgetting_unit": "episode",
    "newest_kept": 8192,
    "improved_size": 8192,
    "gamma": 0.993,
    "gae_lambda": 0.97,
    "advantage_clip": 10.0,
    "cooling": 50,
    "easing": 2.0,
    "peak_kl": 10.0,
    "std": 3.0,
    "std_of": "action",
    "std_mode": "adaptive",
    "std_rate": 0.5,
    "entropy_bonus": 0.0,
    "gradient_steps": 2,
    "targets_per_step": 128,
    "critic_epochs": 4,
    "critic_batch_size": 256,
}
"""What an anchored one learns with."""

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's text, with schedules of epsilon and sigma that let it learn
    "paper": {**PLAIN, "std": "0.4:0.1", "std_mode": "schedule", "min_std": 0.02},
    # Only the new batch is improved, as in the paper, under a sigma that adapts
    "plain": PLAIN,
    # Memories improved again at every iteration, and a policy that moves by a bounded step
    "anchored": ANCHORED,
    # Where a policy that does nothing is a local optimum: explore with the whole action range
    # first, and fit slowly, lest noise about the cost of acting make the policy stand still
    "exploration": {
        **ANCHORED,
        "memory_size": 8192,
        "forgetting": "fifo",
        "forgetting_unit": "rollout",
        "newest_kept": 0,
        "improved_size": 0,
        "gamma": 0.99,
        "advantage_clip": 3.0,
        "cooling": 0,
        "easing": 0.0,
        "peak_kl": 0.0,
        "std": "1:0.1",
        "std_of": "dimension",
        "std_rate": 1.0,
        "entropy_bonus": 0.02,
        "gradient_steps": 10,
        "learning_rate": 1e-3,
    },
}
