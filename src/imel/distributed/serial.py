"""The sampler without other machines: what a run with `RaySampler` is compared with."""

from __future__ import annotations

from functools import partial

from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from imel.distributed.episodes import make_seeded
from imel.environments import make_environments
from imel.rollout import collect


class SerialSampler:
    """All environments in this process, their episodes seeded as `RaySampler` seeds them."""

    collect = staticmethod(collect)

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Copies of an environment."""
        make_environments(env_id, 1).close()  # what cannot be made is refused in one line
        return DummyVecEnv([partial(make_seeded, env_id, index) for index in range(n_envs)])
