"""The keywords of `IMeL(...)`, typed: an editor completes them and mypy refuses a misspelt one.

A test holds this table against the dataclasses of both families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from imel.data.advantage import Estimator
from imel.settings.common import Backend
from imel.settings.paper import LeaveOut, StdMode

Schedule = float | str | Callable[[float], float]
"""A number, `start:end`, or a function of the remaining progress."""


class Keywords(TypedDict, total=False):
    """Every setting of every policy; a policy refuses those it does not use."""

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
    # RidgePolicy
    trust_region: float
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
