"""Stepping a vector environment with the acting policy (Alg. 1 l. 4-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from imel.errors import EnvironmentFaultError, NonFiniteError
from imel.experience import Rollout

FloatArray = NDArray[np.floating[Any]]
OnStep = Callable[[dict[str, Any]], bool]

LARGEST = 1e32
"""Rewards and observations beyond this overflow single precision in sums and squares."""


class Actor(Protocol):
    """What a rollout needs of a policy."""

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """mu and sigma at raw states, in policy units."""

    def to_environment(self, actions: FloatArray) -> FloatArray:
        """Policy units to the environment's, clipped to its bounds."""


class EpisodeClock:
    """Which episode each environment is in, and at which of its steps."""

    def __init__(self, n_envs: int) -> None:
        self.next_episode = n_envs
        self.episodes = np.arange(n_envs)
        self.steps = np.zeros(n_envs, dtype=np.int64)

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
    observations: FloatArray,
    actor: Actor,
    n_steps: int,
    clock: EpisodeClock,
    generator: torch.Generator,
    on_step: OnStep,
) -> tuple[Rollout | None, FloatArray]:
    """Take `n_steps` steps in every environment: the experience, and the observations after it.

    `on_step` sees the local variables after each step; if it answers False the rollout ends and
    there is no experience to return. Actions are kept as sampled and clipped for the environment.
    """
    noise = draw_noise(env, observations, n_steps, clock, generator)
    return roll_out(env, observations, actor, noise, clock, on_step)


class Sampler(Protocol):
    """Where experience is gathered, if not in this process alone."""

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Copies of an environment."""

    def collect(
        self,
        env: VecEnv,
        observations: FloatArray,
        actor: Actor,
        n_steps: int,
        clock: EpisodeClock,
        generator: torch.Generator,
        on_step: OnStep,
    ) -> tuple[Rollout | None, FloatArray]:
        """As `collect`, in environments that it has made."""


class Steppable(Protocol):
    """What a rollout needs of a vector environment."""

    num_envs: int
    action_space: spaces.Space[Any]

    def step(self, actions: Any) -> Any:
        """Observations, rewards, dones and infos."""


def draw_noise(
    env: Steppable,
    observations: FloatArray,
    n_steps: int,
    clock: EpisodeClock,
    generator: torch.Generator,
) -> Tensor:
    """The noise of a rollout that starts from these observations, which must be numbers."""
    _require_numbers(observations, np.zeros(env.num_envs), observations.shape, clock)
    return torch.randn(n_steps, env.num_envs, _action_dim(env), generator=generator)


def roll_out(
    env: Steppable,
    observations: FloatArray,
    actor: Actor,
    noise: Tensor,
    clock: EpisodeClock,
    on_step: OnStep,
) -> tuple[Rollout | None, FloatArray]:
    """`collect` with its noise drawn, one row of it for each step."""  # noise [T, E, d_a]
    n_steps = noise.shape[0]
    columns = _Columns(n_steps, env.num_envs, observations.shape[1], _action_dim(env))
    drawn = noise.numpy()
    states = torch.from_numpy(columns.states)
    for t in range(n_steps):
        columns.states[t] = observations
        with torch.inference_mode():
            means, stds = (column.numpy(force=True) for column in actor.act(states[t]))  # l. 5
        columns.means[t], columns.stds[t] = means, stds
        actions = np.add(means, stds * drawn[t], out=columns.actions[t])  # l. 6: a ~ N(mu, sigma)
        try:
            stepped = env.step(actor.to_environment(actions))
        except (EnvironmentFaultError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may raise anything
            raise _raised(error, env, clock) from error
        # What overflows the memory's precision is as bad as infinity, so convert before checking
        with np.errstate(over="ignore"):
            observations, rewards = (np.asarray(x, dtype=np.float32) for x in stepped[:2])
        dones, infos = stepped[2:]
        _require_numbers(observations, rewards, columns.states[t].shape, clock)
        columns.rewards[t], columns.next_states[t] = rewards, observations
        for i in np.flatnonzero(dones):  # the vector env has moved on to a new episode
            columns.next_states[t, i] = _last_seen(infos[i], int(i), observations[i].shape, clock)
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


def _action_dim(env: Steppable) -> int:
    assert env.action_space.shape is not None
    return int(env.action_space.shape[0])


def _usable(values: FloatArray) -> bool:
    """Return whether all values are numbers whose sums over an episode are numbers as well."""
    return bool((np.abs(values) <= LARGEST).all())


def _require_numbers(
    observations: FloatArray, rewards: FloatArray, shape: tuple[int, ...], clock: EpisodeClock
) -> None:
    if observations.shape != shape or rewards.shape != shape[:1]:
        raise EnvironmentFaultError(
            f"the environments returned observations {observations.shape} and rewards "
            f"{rewards.shape}, not {shape} and {shape[:1]}, at step {clock.steps.max()} or before"
        )
    if _usable(rewards) and _usable(observations):
        return
    for i, (observation, reward) in enumerate(zip(observations, rewards, strict=True)):
        if not _usable(reward):
            _refuse("reward", reward, i, clock)
        if not _usable(observation):
            _refuse("observation", observation, i, clock)


def _last_seen(
    info: dict[str, Any], environment: int, shape: tuple[int, ...], clock: EpisodeClock
) -> FloatArray:
    """Return the observation in which an episode ended."""
    with np.errstate(over="ignore"):
        last = np.asarray(info["terminal_observation"], dtype=np.float32)
    if last.shape != shape:
        raise EnvironmentFaultError(
            f"environment {environment} returned a last observation of shape {last.shape}, not "
            f"{shape}, at step {clock.steps[environment]} of episode {clock.episodes[environment]}",
            environment,
        )
    if not _usable(last):
        _refuse("observation", last, environment, clock)
    return last


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
