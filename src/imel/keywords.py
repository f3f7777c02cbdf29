"""The keywords of `IMeL(...)`, typed: an editor completes them and mypy refuses a misspelt one.

A test holds this table against the settings of all policies.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from imel.data.advantage import Estimator
from imel.policies.paper.paper_policy import LeaveOut, StdMode
from imel.settings import Backend, Schedule


class Keywords(TypedDict, total=False):
    """Every setting of imel's policies; a policy refuses those it does not use.

    Settings of a policy of your own go into `policy_kwargs`.
    """

    rollout_size: int
    n_envs: int
    workers: bool
    worker_timeout: float
    backend: Backend
    env_threads: int
    max_faults: int
    memory_size: int
    gamma: float
    gae_lambda: float
    advantage_clip: float
    min_std: float
    critic_hidden: tuple[int, ...]
    critic_learning_rate: float
    critic_epochs: int
    batch_size: int
    std: Schedule
    features: int
    # RidgePolicy
    penalty: float
    trust_region: float
    peak_kl: float
    full_step_gain: float
    std_rate: float
    # the paper's policies
    advantage: Estimator
    kl_budget: Schedule
    std_mode: StdMode
    clip_means: bool
    prior_size: int
    prior_std: float
    learning_rate: Schedule
    gradient_steps: int
    targets_per_step: int
    leave_out: LeaveOut
    max_grad_norm: float
    hidden: tuple[int, ...]
    kernel_scale: float
    normalised: bool
    latent: int
    min_value_std: float
    deterministic: Literal["none", "mean"]
    neighbours: int
