"""Settings of the baselines as RL Baselines3 Zoo publishes them, as plain data.

From its `hyperparams/trpo.yml` and `hyperparams/ppo.yml`, where the MuJoCo tasks stand as v4 (and
the two pendulums of PPO as v2). What a task does not name is the algorithm's own default.
"""

from __future__ import annotations

from typing import Any

Hyperparameters = dict[str, Any]

# --- TRPO ---

# Ant-v4, Hopper-v4, Walker2d-v4 and Humanoid-v4. The two pendulums are not in the zoo, nor are
# other tasks: they get the same
TRPO_DEFAULT: Hyperparameters = {
    "normalise": True,
    "n_envs": 2,
    "n_steps": 1024,
    "batch_size": 128,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "sub_sampling_factor": 1,
    "cg_max_steps": 25,
    "cg_damping": 0.1,
    "n_critic_updates": 20,
    "learning_rate": 1e-3,
}

TRPO: dict[str, Hyperparameters] = {
    # MountainCarContinuous-v0
    "mountaincar": {"normalise": True, "n_envs": 2, "use_sde": True, "sde_sample_freq": 4},
    # HalfCheetah-v4
    "halfcheetah": TRPO_DEFAULT | {"target_kl": 0.04},
}

# --- PPO ---

# Ant-v4; for tasks that are not in the zoo as well
PPO_DEFAULT: Hyperparameters = {"normalise": True, "n_envs": 1}

_WIDE = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "ReLU",
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}

PPO: dict[str, Hyperparameters] = {
    # MountainCarContinuous-v0
    "mountaincar": PPO_DEFAULT
    | {
        "batch_size": 256,
        "n_steps": 8,
        "gamma": 0.9999,
        "learning_rate": 7.77e-05,
        "ent_coef": 0.00429,
        "clip_range": 0.1,
        "n_epochs": 10,
        "gae_lambda": 0.9,
        "max_grad_norm": 5,
        "vf_coef": 0.19,
        "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    },
    # InvertedPendulum-v2
    "pendulum": PPO_DEFAULT
    | {
        "batch_size": 64,
        "n_steps": 32,
        "gamma": 0.999,
        "learning_rate": 0.000222425,
        "ent_coef": 1.37976e-07,
        "clip_range": 0.4,
        "n_epochs": 5,
        "gae_lambda": 0.9,
        "max_grad_norm": 0.3,
        "vf_coef": 0.19816,
    },
    # InvertedDoublePendulum-v2
    "double-pendulum": PPO_DEFAULT
    | {
        "batch_size": 512,
        "n_steps": 128,
        "gamma": 0.98,
        "learning_rate": 0.000155454,
        "ent_coef": 1.05057e-06,
        "clip_range": 0.4,
        "n_epochs": 10,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
        "vf_coef": 0.695929,
    },
    # Hopper-v4
    "hopper": PPO_DEFAULT
    | {
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": _WIDE,
    },
    # Walker2d-v4
    "walker2d": PPO_DEFAULT
    | {
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.95,
        "max_grad_norm": 1,
        "vf_coef": 0.871923,
    },
    # HalfCheetah-v4
    "halfcheetah": PPO_DEFAULT
    | {
        "batch_size": 64,
        "n_steps": 512,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": _WIDE,
    },
    # Humanoid-v4
    "humanoid": PPO_DEFAULT
    | {
        "batch_size": 256,
        "n_steps": 512,
        "gamma": 0.95,
        "learning_rate": 3.56987e-05,
        "ent_coef": 0.00238306,
        "clip_range": 0.3,
        "n_epochs": 5,
        "gae_lambda": 0.9,
        "max_grad_norm": 2,
        "vf_coef": 0.431892,
        "policy_kwargs": _WIDE,
    },
}
