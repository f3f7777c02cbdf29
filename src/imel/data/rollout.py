"""Stepping a vector environment with the acting policy (Alg. 1 l. 4-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from imel.data.experience import Rollout
from imel.distributions import Distribution
from imel.errors import EnvironmentFaultError, NonFiniteError

FloatArray = NDArray[np.floating[Any]]
OnStep = Callable[[dict[str, Any]], bool]

LARGEST = 1e32
"""Rewards and observations beyond this overflow single precision in sums and squares."""


class Actor(Protocol):
    """What a rollout needs of a policy."""

    distribution: Distribution

    def observe(self, observations: Any) -> FloatArray:
        """Observations as raw states [T, d_s]."""

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """mu and sigma at raw states, in policy units."""

    def to_environment(self, actions: FloatArray) -> FloatArray:
        """Policy units to the environment's, clipped to its bounds."""


class EpisodeClock:
    """Which episode each environment is in, and at which of its steps."""

    def __init__(self, n_envs: int) -> None:
        self.next_episode = 0
        self.restart(n_envs)

    def restart(self, n_envs: int) -> None:
        """All environments were reset."""
        self.episodes = self.next_episode + np.arange(n_envs)
        self.steps = np.zeros(n_envs, dtype=np.int64)
        self.next_episode += n_envs

    def tick(self, dones: NDArray[np.bool_]) -> None:
        """One step was taken; finished episodes give way to new ones."""
        self.steps += 1
        if not dones.any():
            return
        finished = np.flatnonzero(dones)
        self.steps[finished] = 0
        self.episodes[finished] = self.next_episode + np.arange(finished.size)
        self.next_episode += finished.size


def collect(
    env: VecEnv,
    observations: Any,
    actor: Actor,
    n_steps: int,
    clock: EpisodeClock,
    generator: torch.Generator,
    on_step: OnStep,
) -> tuple[Rollout | None, Any]:
    """Take `n_steps` steps in every environment: the experience, and the observations after it.

    `on_step` sees the local variables after each step; if it answers False the rollout ends and
    there is no experience to return. Actions are kept as sampled and clipped for the environment.
    """
    noise = draw_noise(env, observations, actor, n_steps, clock, generator)
    return roll_out(env, observations, actor, noise, clock, on_step)


class Sampler(Protocol):
    """Where experience is gathered, if not in this process alone."""

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Copies of an environment."""

    def collect(
        self,
        env: VecEnv,
        observations: Any,
        actor: Actor,
        n_steps: int,
        clock: EpisodeClock,
        generator: torch.Generator,
        on_step: OnStep,
    ) -> tuple[Rollout | None, Any]:
        """As `collect`, in environments that it has made."""


class Steppable(Protocol):
    """What a rollout needs of a vector environment."""

    num_envs: int

    def step(self, actions: Any) -> Any:
        """Observations, rewards, dones and infos."""


def draw_noise(
    env: Steppable,
    observations: Any,
    actor: Actor,
    n_steps: int,
    clock: EpisodeClock,
    generator: torch.Generator,
) -> Tensor:
    """The noise of a rollout that starts from these observations, which must be numbers."""
    _require_numbers(actor.observe(observations), np.zeros(env.num_envs), clock)
    return actor.distribution.noise((n_steps, env.num_envs), generator)


def roll_out(
    env: Steppable,
    observations: Any,
    actor: Actor,
    noise: Tensor,
    clock: EpisodeClock,
    on_step: OnStep,
) -> tuple[Rollout | None, Any]:
    """`collect` with its noise drawn, one row of it for each step."""  # noise [T, E, d_a]
    n_steps = noise.shape[0]
    observed = actor.observe(observations)  # [E, d_s]
    columns = _Columns(n_steps, env.num_envs, observed.shape[1], noise.shape[2])
    drawn, distribution = noise.numpy(), actor.distribution
    states = torch.from_numpy(columns.states)
    for t in range(n_steps):
        columns.states[t] = observed
        means, stds = (column.numpy(force=True) for column in actor.act(states[t]))  # l. 5
        columns.means[t], columns.stds[t] = means, stds
        actions = distribution.sample(means, stds, drawn[t])  # l. 6: a ~ N(mu, sigma)
        columns.actions[t] = actions
        try:
            stepped = env.step(actor.to_environment(actions))
        except (EnvironmentFaultError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may raise anything
            raise _raised(error, env, clock) from error
        # What overflows the memory's precision is as bad as infinity, so convert before checking
        with np.errstate(over="ignore"):
            observed, rewards = actor.observe(stepped[0]), np.asarray(stepped[1], dtype=np.float32)
        observations, _, dones, infos = stepped
        _require_numbers(observed, rewards, clock)
        columns.rewards[t], columns.next_states[t] = rewards, observed
        for i in np.flatnonzero(dones):  # the vector env has moved on to a new episode
            columns.next_states[t, i] = _last_seen(actor, infos[i], int(i), clock)
            cut = bool(infos[i].get("TimeLimit.truncated", False))
            columns.truncated[t, i], columns.terminated[t, i] = cut, not cut
        columns.episodes[t], columns.steps[t] = clock.episodes, clock.steps
        clock.tick(dones)
        if not on_step(locals()):
            return None, observations
    return columns.rollout(), observations  # l. 7


class _Columns:
    """The rollout's preallocated columns: arrays, for one step is too little work for torch."""

    def __init__(self, n_steps: int, n_envs: int, state_dim: int, action_dim: int) -> None:
        shape, single = (n_steps, n_envs), np.float32
        self.states = np.empty((*shape, state_dim), single)
        self.actions = np.empty((*shape, action_dim), single)
        self.means = np.empty((*shape, action_dim), single)
        self.stds = np.empty((*shape, action_dim), single)
        self.rewards = np.empty(shape, single)
        self.next_states = np.empty((*shape, state_dim), single)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.episodes = np.empty(shape, np.int64)
        self.steps = np.empty(shape, np.int64)

    def rollout(self) -> Rollout:
        """The same memory as tensors."""
        return Rollout(**{name: torch.from_numpy(column) for name, column in vars(self).items()})


def _usable(values: FloatArray) -> bool:
    """Return whether all values are numbers whose sums over an episode are numbers as well."""
    return bool((np.abs(values) <= LARGEST).all())


def _require_numbers(observed: FloatArray, rewards: FloatArray, clock: EpisodeClock) -> None:
    count = len(clock.steps)
    if len(observed) != count or rewards.shape != (count,):
        raise EnvironmentFaultError(
            f"{count} environments returned {len(observed)} observations and rewards of shape "
            f"{rewards.shape} at step {clock.steps.max()} or before"
        )
    if _usable(rewards) and _usable(observed):
        return
    for i, (observation, reward) in enumerate(zip(observed, rewards, strict=True)):
        if not _usable(reward):
            _refuse("reward", reward, i, clock)
        if not _usable(observation):
            _refuse("observation", observation, i, clock)


def _last_seen(
    actor: Actor, info: dict[str, Any], environment: int, clock: EpisodeClock
) -> FloatArray:
    """Return the observation in which an episode ended."""
    last = actor.observe(info["terminal_observation"])
    if len(last) != 1:
        raise EnvironmentFaultError(
            f"environment {environment} returned a last observation of the wrong shape at step "
            f"{clock.steps[environment]} of episode {clock.episodes[environment]}",
            environment,
        )
    if not _usable(last):
        _refuse("observation", last, environment, clock)
    return np.asarray(last[0])


def _refuse(what: str, values: FloatArray, environment: int, clock: EpisodeClock) -> None:
    wrong = "too large" if np.isfinite(values).all() else "non-finite"
    raise NonFiniteError(
        f"environment {environment} returned a {wrong} {what} {values} at step "
        f"{clock.steps[environment]} of episode {clock.episodes[environment]}",
        environment,
    )


def _raised(error: BaseException, env: Steppable, clock: EpisodeClock) -> EnvironmentFaultError:
    """An exception of an environment that was not made here, so that it may not be known which."""
    which = "environment 0" if env.num_envs == 1 else f"one of {env.num_envs} environments"
    return EnvironmentFaultError(
        f"{which} raised at step {clock.steps.max()} or before: {type(error).__name__}: {error}",
        0 if env.num_envs == 1 else None,
    )
