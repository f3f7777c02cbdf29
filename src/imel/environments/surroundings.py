"""The environments of an algorithm: made from what is given, and begun anew after a fault."""

from __future__ import annotations

import warnings

from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from imel.data.rollout import Sampler
from imel.environments.making import make_environments
from imel.errors import SettingsError
from imel.policies.spaces import check_spaces
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
