"""Upside-Down RL, behind the interface of the algorithms the bench runs.

Srivastava et al., "Training Agents using Upside-Down Reinforcement Learning" (arXiv 1912.02877).
A behaviour function maps state, desired return and desired horizon to an action. It is fitted by
maximum likelihood to what the best episodes did: in a state from which an episode went on to
return so much in so many steps, the action was this one. New episodes are commanded to return as
much as the best ones, and more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from torch import Tensor, nn

from imel.distributions import Categorical, distribution_for

Array = NDArray[Any]


@dataclass(frozen=True)
class UdrlSettings:
    """Settings of Upside-Down RL, in the words of its paper."""

    n_envs: int = 8
    warm_up_episodes: int = 10  # of random actions before the first fit
    replay_size: int = 25  # best episodes kept
    last_few: int = 5  # best episodes that commands are made from
    steps_per_iteration: int = 2048  # of all environments together
    updates_per_iteration: int = 200  # gradient steps
    batch_size: int = 256  # segments in a gradient step
    learning_rate: float = 1e-3
    hidden: int = 128  # width of the two layers
    min_std: float = 0.2  # of continuous actions, in units of half of their range


class Commanded(VecEnvWrapper):
    """Appends to observations what is still desired: the return, and the steps it may take."""

    def __init__(self, env: VecEnv, command: Callable[[], Array]) -> None:
        inner = env.observation_space
        assert isinstance(inner, spaces.Box)
        self.state_dim = int(np.prod(inner.shape))
        super().__init__(env, spaces.Box(-np.inf, np.inf, (self.state_dim + 2,), np.float32))
        self.command = command
        self._desired = np.zeros((self.num_envs, 2))

    def reset(self) -> Array:
        """Begin episodes with new commands."""
        observations = self.venv.reset()
        self._desired[:] = [self.command() for _ in range(self.num_envs)]
        return self._joined(observations)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Subtract from the command what was obtained; give new commands to new episodes."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self._desired[:, 0] -= rewards
        self._desired[:, 1] = np.maximum(self._desired[:, 1] - 1.0, 1.0)
        for number in np.flatnonzero(dones):
            self._desired[number] = self.command()
        return self._joined(observations), rewards, dones, infos

    def _joined(self, observations: Any) -> Array:
        flat = np.reshape(observations, (self.num_envs, -1))
        return np.concatenate([flat, self._desired], axis=1).astype(np.float32)


class Behaviour(nn.Module):
    """Parameters of the action's distribution; the command gates the features of the state."""

    def __init__(self, state_dim: int, width: int, hidden: int) -> None:
        super().__init__()
        self.state, self.gate = nn.Linear(state_dim, hidden), nn.Linear(2, hidden)
        self.rest = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.log_std = nn.Parameter(torch.full((width,), -1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return means or logits."""  # [T, d_s + 2] -> [T, d_a]
        features = self.state(inputs[:, :-2]).tanh() * self.gate(inputs[:, -2:]).sigmoid()
        answer: Tensor = self.rest(features)
        return answer


class Episode(NamedTuple):
    """A finished episode; inputs have the command it turned out to fulfil."""

    total: float
    inputs: Array  # [T, d_s + 2]
    actions: Array  # [T, d_a]


class Udrl(BaseAlgorithm):
    """Learns to fulfil commands from the best episodes so far."""

    def __init__(self, env: VecEnv, seed: int, settings: UdrlSettings) -> None:
        commanded = Commanded(env, self.exploratory_command)
        rate = settings.learning_rate
        self.settings, self.best, self._finished = settings, list[Episode](), 0
        self._random = np.random.default_rng(seed)
        self._noise = torch.Generator().manual_seed(seed)
        super().__init__(BasePolicy, commanded, rate, support_multi_env=True, device="cpu")
        self.set_random_seed(seed)
        self._distribution = distribution_for(env.action_space)
        self._moments = RunningMeanStd(shape=(commanded.state_dim + 2,))
        width = self._distribution.width
        self.behaviour = Behaviour(commanded.state_dim, width, settings.hidden)
        self._optimizer = torch.optim.Adam(self.behaviour.parameters(), rate)

    def _setup_model(self) -> None:
        pass

    def evaluation_command(self) -> Array:
        """Return the mean return and length of the best episodes."""
        return np.asarray(np.mean(self._few(), axis=0))

    def exploratory_command(self) -> Array:
        """Return the same, with up to a deviation more to return."""
        more = self._random.random() * np.std(self._few(), axis=0)[0]
        return np.asarray(self.evaluation_command() + np.array((more, 0.0)))

    def _few(self) -> list[tuple[float, int]]:
        few = self.best[: self.settings.last_few]
        return [(each.total, len(each.inputs)) for each in few] or [(0.0, 1)]

    def predict(
        self,
        observation: Array | dict[str, Array],
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """Act on observations with commands."""
        del episode_start
        assert not isinstance(observation, dict)
        return self._emitted(self._act(observation, deterministic)), state

    def _act(self, observations: Array, deterministic: bool) -> Array:
        """Return actions in policy units: at random as long as nothing is fitted."""
        distribution = self._distribution
        means = np.zeros((len(observations), distribution.width), np.float32)
        std = np.ones_like(means)
        if self._n_updates:
            with torch.no_grad():
                means = self.behaviour(self._normalised(observations)).numpy()
                std = self._std().numpy()
        if deterministic:
            return distribution.mode(means)
        noise = distribution.noise(means.shape[:-1], self._noise).numpy()
        return np.clip(distribution.sample(means, std, noise), -1.0, 1.0)

    def _emitted(self, actions: Array) -> Array:
        """Return actions in the environment's units."""
        emitted, space = self._distribution.emit(actions), self.action_space
        if isinstance(space, spaces.Box):
            return np.asarray(space.low + (emitted + 1.0) / 2.0 * (space.high - space.low))
        return emitted

    def _normalised(self, inputs: Array) -> Tensor:
        scaled = (inputs - self._moments.mean) / np.sqrt(self._moments.var + 1e-8)
        return torch.as_tensor(np.clip(scaled, -10.0, 10.0), dtype=torch.float32)

    def _std(self) -> Tensor:
        return self.settings.min_std + self.behaviour.log_std.exp()

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "udrl",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Gather episodes by exploratory commands and fit the behaviour function, in turns."""
        total_timesteps, hooks = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        hooks.on_training_start(locals(), globals())
        running = [list[Any]() for _ in range(self.n_envs)]
        while self.num_timesteps < total_timesteps:
            hooks.on_rollout_start()
            self._gather(running, hooks)
            hooks.on_rollout_end()
            if self._finished >= self.settings.warm_up_episodes:
                self._fit()
        hooks.on_training_end()
        return self

    def _gather(self, running: list[list[Any]], hooks: BaseCallback) -> None:
        """Take the steps of one iteration; `running` are those of episodes under way."""
        before = self._last_obs
        assert self.env is not None
        assert isinstance(before, np.ndarray)
        for _ in range(max(1, self.settings.steps_per_iteration // self.n_envs)):
            actions = self._act(before, deterministic=False)
            after, rewards, dones, infos = self.env.step(self._emitted(actions))
            self.num_timesteps += self.n_envs
            for steps, *step in zip(running, before, actions, rewards, strict=True):
                steps.append(step)
            for number in np.flatnonzero(dones):
                self._remember(running[number])
                running[number] = []
            assert isinstance(after, np.ndarray)
            self._last_obs = before = after
            hooks.update_locals(locals())
            hooks.on_step()

    def _remember(self, steps: list[Any]) -> None:
        """Keep an episode if it is among the best."""
        inputs, actions, rewards = (np.array(column) for column in zip(*steps, strict=True))
        inputs[:, -2] = rewards[::-1].cumsum()[::-1]
        inputs[:, -1] = np.arange(len(rewards), 0, -1)
        self._finished += 1
        self._moments.update(inputs.astype(np.float64))
        self.best.append(Episode(float(rewards.sum()), inputs, actions.astype(np.float32)))
        self.best.sort(key=lambda each: -each.total)
        del self.best[self.settings.replay_size :]

    def _fit(self) -> None:
        """Take gradient steps on segments that end with their episode."""
        lengths = np.array([len(each.inputs) for each in self.best])
        starts = lengths.cumsum() - lengths
        inputs = self._normalised(np.concatenate([each.inputs for each in self.best]))
        actions = torch.as_tensor(np.concatenate([each.actions for each in self.best]))
        for _ in range(self.settings.updates_per_iteration):
            drawn = self._random.integers(len(lengths), size=self.settings.batch_size)
            rows = starts[drawn] + self._random.integers(lengths[drawn])
            loss = self._loss(self.behaviour(inputs[rows]), actions[rows])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        self._n_updates += self.settings.updates_per_iteration

    def _loss(self, answers: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-likelihood of actions."""
        if isinstance(self._distribution, Categorical):
            return -(actions * self._distribution.log_probabilities(answers)).sum(dim=-1).mean()
        std = self._std()
        return (((actions - answers) / std).square() / 2.0 + std.log()).sum(dim=-1).mean()
