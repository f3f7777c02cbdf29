"""The environments of an algorithm: made from what is given, and begun anew after a fault."""

from __future__ import annotations

import warnings

import torch
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from imel.checkpoints.saving import SavedAlgorithm
from imel.data.rollout import Sampler
from imel.environments.making import make_environments
from imel.errors import EnvironmentFaultError, SettingsError
from imel.policies import check_spaces
from imel.settings import Settings


def environments_for(
    env: GymEnv | str | None, settings: Settings, sampler: Sampler | None
) -> GymEnv | None:
    """An id becomes copies of that environment; anything else is taken as it is."""
    if sampler is not None and env is not None:
        if not isinstance(env, str):
            raise SettingsError("a sampler makes its own environments: give an environment's id")
        env = sampler.make_environments(env, settings.n_envs)
    elif isinstance(env, str):
        env = make_environments(
            env,
            settings.n_envs,
            settings.workers,
            settings.worker_timeout,
            settings.backend,
            settings.env_threads,
        )
    if env is not None:
        check_spaces(env.observation_space, env.action_space)
    if isinstance(env, VecEnv) and unwrap_vec_normalize(env) is not None:
        warnings.warn(
            "imel normalises observations and rewards itself, and saves how: VecNormalize around "
            "the environment is not needed, and its statistics are not in the model's file",
            stacklevel=4,
        )
    return env


def survive(model: SavedAlgorithm, fault: EnvironmentFaultError) -> None:
    """Drop the batch and what is remembered of the episode, and start the environments again.

    Raises the fault if there have been too many.
    """
    model.faults += 1
    if model.faults > model.settings.max_faults:
        raise fault
    warnings.warn(
        f"{fault}; fault {model.faults} of {model.settings.max_faults} that are survived",
        RuntimeWarning,
        stacklevel=2,
    )
    running = torch.from_numpy(model.clock.episodes)
    spoiled = running if fault.environment is None else running[[fault.environment]]
    model.policy.memory.forget_episodes(spoiled)
    model.policy.invalidate()
    if len(model.policy.memory) == 0:
        model.update.start(model)
    try:
        model.restart_environments()
    except EnvironmentFaultError as another:
        survive(model, another)
