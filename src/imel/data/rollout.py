"""Stepping a vector environment with the acting policy (Alg. 1 l. 4-7)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
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


Collect = Callable[
    [VecEnv, Any, Actor, int, EpisodeClock, torch.Generator, OnStep], tuple[Rollout | None, Any]
]


class Sampler(Protocol):
    """Where experience is gathered, if not in this process alone."""

    def make_environments(self, env_id: str, n_envs: int) -> VecEnv:
        """Copies of an environment."""

    @property
    def collect(self) -> Collect:
        """As the function, in environments that it has made."""


def draw_noise(
    observations: Any, actor: Actor, n_steps: int, clock: EpisodeClock, generator: torch.Generator
) -> Tensor:
    """Draw the noise of a rollout that starts from these observations, which must be numbers."""
    observed, n_envs = actor.observe(observations), len(clock.steps)
    _require_numbers("observation", observed, (n_envs, observed.shape[1]), clock)
    return actor.distribution.noise((n_steps, n_envs), generator)


def collect(
    env: Any,
    observations: Any,
    actor: Actor,
    n_steps: int,
    clock: EpisodeClock,
    generator: torch.Generator,
    on_step: OnStep,
    noise: Tensor | None = None,
) -> tuple[Rollout | None, Any]:
    """Take `n_steps` steps in every environment: the experience, and the observations after it.

    Actions are kept as sampled and clipped for the environment.

    :param env: a vector environment, or what can step like one
    :param on_step: sees the local variables after each step; if it answers False the rollout ends
        and there is no experience to return
    :param noise: [T, E, d_a] as `draw_noise` draws it; drawn here if not given
    """
    if noise is None:
        noise = draw_noise(observations, actor, n_steps, clock, generator)
    observed = actor.observe(observations)  # [E, d_s]
    shape, width = observed.shape, observed.shape[1]
    rollout = _empty_rollout(n_steps, shape[0], width, noise.shape[2])
    # As arrays, for one step is too little work for torch
    at = SimpleNamespace(**{name: column.numpy() for name, column in vars(rollout).items()})
    drawn, distribution = noise.numpy(), actor.distribution
    for t in range(n_steps):
        at.states[t] = observed
        means, stds = (column.numpy(force=True) for column in actor.act(rollout.states[t]))  # l. 5
        at.means[t], at.stds[t] = means, stds
        actions = distribution.sample(means, stds, drawn[t])  # l. 6: a ~ N(mu, sigma)
        at.actions[t] = actions
        try:
            stepped = env.step(actor.to_environment(actions))
        except (EnvironmentFaultError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may raise anything
            raise _raised(error, clock) from error
        # What overflows the memory's precision is as bad as infinity, so convert before checking
        with np.errstate(over="ignore"):
            observed, rewards = actor.observe(stepped[0]), np.asarray(stepped[1], dtype=np.float32)
        observations, _, dones, infos = stepped
        _require_numbers("reward", rewards, shape[:1], clock)
        _require_numbers("observation", observed, shape, clock)
        at.rewards[t], at.next_states[t] = rewards, observed
        for i in np.flatnonzero(dones):  # the vector env has moved on to a new episode
            last = actor.observe(infos[i]["terminal_observation"])
            _require_numbers("observation", last, (1, width), clock, int(i))
            at.next_states[t, i] = last[0]
            cut = bool(infos[i].get("TimeLimit.truncated", False))
            at.truncated[t, i], at.terminated[t, i] = cut, not cut
        at.episodes[t], at.steps[t] = clock.episodes, clock.steps
        clock.tick(dones)
        if not on_step(locals()):
            return None, observations
    return rollout, observations  # l. 7


def _empty_rollout(n_steps: int, n_envs: int, state_dim: int, action_dim: int) -> Rollout:
    shape = (n_steps, n_envs)
    widths = dict.fromkeys(("states", "next_states"), state_dim)
    widths |= dict.fromkeys(("actions", "means", "stds"), action_dim)
    types = {"rewards": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
    types |= {"episodes": torch.int64, "steps": torch.int64}
    vectors = {name: torch.zeros(*shape, width) for name, width in widths.items()}
    scalars = {name: torch.zeros(shape, dtype=kind) for name, kind in types.items()}
    return Rollout(**vectors, **scalars)


def _require_numbers(
    what: str,
    values: FloatArray,
    shape: tuple[int, ...],
    clock: EpisodeClock,
    environment: int | None = None,
) -> None:
    """Refuse values of an environment, or of all, whose shape or sums are not as they must be."""
    usable = np.abs(values) <= LARGEST
    if values.shape == shape and usable.all():
        return
    if values.shape != shape:
        who = "the environments" if environment is None else f"environment {environment}"
        raise EnvironmentFaultError(
            f"{who} returned {what}s of shape {values.shape}, not {shape}, at step "
            f"{clock.steps.max()} or before",
            environment,
        )
    row = int(np.flatnonzero(~usable.reshape(len(values), -1).all(axis=1))[0])
    place = row if environment is None else environment
    wrong = "too large" if np.isfinite(values[row]).all() else "non-finite"
    raise NonFiniteError(
        f"environment {place} returned a {wrong} {what} {values[row]} at step "
        f"{clock.steps[place]} of episode {clock.episodes[place]}",
        place,
    )


def _raised(error: BaseException, clock: EpisodeClock) -> EnvironmentFaultError:
    """Return the fault of an environment that was not made here: it may not be known which."""
    count = len(clock.steps)
    which = "environment 0" if count == 1 else f"one of {count} environments"
    return EnvironmentFaultError(
        f"{which} raised at step {clock.steps.max()} or before: {type(error).__name__}: {error}",
        0 if count == 1 else None,
    )
