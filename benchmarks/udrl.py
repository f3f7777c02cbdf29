"""Train Upside-Down RL, and put its runs into a store beside those of `imel bench`.

    python -m benchmarks.udrl --tasks hopper halfcheetah --seeds 30 31 32 --store results/mine
    imel report results/mine

Srivastava et al., "Training Agents using Upside-Down Reinforcement Learning" (arXiv 1912.02877).
A behaviour function maps state, desired return and desired horizon to an action. It is fitted by
maximum likelihood to what the best episodes did: in a state from which an episode went on to
return so much in so many steps, the action was this one. New episodes are commanded to return as
much as the best ones, and more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from torch import Tensor, nn

from benchmarks.common import add_runs, flags, run
from imel.bench.algorithms import settings_hash
from imel.bench.run import EPISODES, EVALUATIONS, FINAL_EPISODES, POINTS
from imel.bench.store import Row, Store
from imel.bench.tasks import Task, find_task
from imel.distributions import Categorical, distribution_for
from imel.runs.stored import provenance

Array = NDArray[Any]

_EVALUATION_ENVS, _EVALUATION_SEED = 5, 1_000_000
"""As in the bench: no evaluation starts where training did."""


@dataclass(frozen=True)
class Settings:
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


class Udrl:
    """Learns to fulfil commands from the best episodes so far."""

    def __init__(self, env: VecEnv, seed: int, settings: Settings) -> None:
        self.settings, self.env = settings, Commanded(env, self.exploratory_command)
        self.best: list[Episode] = []
        self.returns: list[float] = []  # of all finished episodes
        self.steps = self.updates = 0
        self._random = np.random.default_rng(seed)
        self._noise = torch.Generator().manual_seed(seed)
        self._action_space = env.action_space
        self._distribution = distribution_for(env.action_space)
        self._moments = RunningMeanStd(shape=(self.env.state_dim + 2,))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = self._distribution.width
            self.behaviour = Behaviour(self.env.state_dim, width, settings.hidden)
        self._optimizer = torch.optim.Adam(self.behaviour.parameters(), settings.learning_rate)
        env.seed(seed)
        self._observations = self.env.reset()
        self._running: list[list[Any]] = [[] for _ in range(env.num_envs)]

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
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: Any = 0
    ) -> tuple[Array, Any]:
        """Act on observations with commands, as models of Stable-Baselines3 do."""
        del episode_start
        return self._emitted(self._act(observation, bool(deterministic))), state

    def _act(self, observations: Array, deterministic: bool) -> Array:
        """Return actions in policy units: at random as long as nothing is fitted."""
        distribution = self._distribution
        means = np.zeros((len(observations), distribution.width), np.float32)
        std = np.ones_like(means)
        if self.updates:
            with torch.no_grad():
                means = self.behaviour(self._normalised(observations)).numpy()
                std = self._std().numpy()
        if deterministic:
            return distribution.mode(means)
        noise = distribution.noise(means.shape[:-1], self._noise).numpy()
        return np.clip(distribution.sample(means, std, noise), -1.0, 1.0)

    def _emitted(self, actions: Array) -> Array:
        """Return actions in the environment's units."""
        emitted, space = self._distribution.emit(actions), self._action_space
        if isinstance(space, spaces.Box):
            return np.asarray(space.low + (emitted + 1.0) / 2.0 * (space.high - space.low))
        return emitted

    def _normalised(self, inputs: Array) -> Tensor:
        scaled = (inputs - self._moments.mean) / np.sqrt(self._moments.var + 1e-8)
        return torch.as_tensor(np.clip(scaled, -10.0, 10.0), dtype=torch.float32)

    def _std(self) -> Tensor:
        return self.settings.min_std + self.behaviour.log_std.exp()

    def iterate(self) -> None:
        """Gather steps by exploratory commands, then fit the behaviour function."""
        for _ in range(max(1, self.settings.steps_per_iteration // self.env.num_envs)):
            before, actions = self._observations, self._act(self._observations, False)
            stepped: Any = self.env.step(self._emitted(actions))
            self._observations, rewards, dones, _ = stepped
            self.steps += self.env.num_envs
            for steps, *step in zip(self._running, before, actions, rewards, strict=True):
                steps.append(step)
            for number in np.flatnonzero(dones):
                self.remember(self._running[number])
                self._running[number] = []
        if len(self.returns) >= self.settings.warm_up_episodes:
            self._fit()

    def remember(self, steps: list[Any]) -> None:
        """Keep an episode if it is among the best."""
        inputs, actions, rewards = (np.array(column) for column in zip(*steps, strict=True))
        inputs[:, -2] = rewards[::-1].cumsum()[::-1]
        inputs[:, -1] = np.arange(len(rewards), 0, -1)
        self.returns.append(float(rewards.sum()))
        self._moments.update(inputs.astype(np.float64))
        self.best.append(Episode(self.returns[-1], inputs, actions.astype(np.float32)))
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
        self.updates += self.settings.updates_per_iteration

    def _loss(self, answers: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-likelihood of actions."""
        if isinstance(self._distribution, Categorical):
            return -(actions * self._distribution.log_probabilities(answers)).sum(dim=-1).mean()
        std = self._std()
        return (((actions - answers) / std).square() / 2.0 + std.log()).sum(dim=-1).mean()


def identity(task: Task, seed: int, steps: int, settings: Settings) -> Row:
    """Return the columns that tell a run from any other."""
    return {
        "task": task.name,
        "algorithm": "udrl",
        "settings_hash": settings_hash(task, asdict(settings)),
        "seed": seed,
        "steps": steps,
    }


def train(task: Task, seed: int, steps: int, settings: Settings) -> list[Row]:
    """Learn, and return rows such as those of the bench: the last of them has `final` set."""
    torch.set_num_threads(1)
    constant = {
        **identity(task, seed, steps, settings),
        "overrides": {},
        "settings": asdict(settings),
        "environment": task.as_json(),
        **provenance(),
    }
    rows: list[Row] = []
    seconds, seen = np.zeros(2), 0
    with (
        closing(task.make_vector(settings.n_envs, seed)) as env,
        closing(task.make_vector(_EVALUATION_ENVS, seed + _EVALUATION_SEED)) as others,
    ):
        model = Udrl(env, seed, settings)
        while model.steps < steps:
            before, begun = model.steps, _clocks()
            model.iterate()
            seconds += _clocks() - begun
            final = model.steps >= steps
            point, evaluation = (
                model.steps * parts // steps > before * parts // steps
                for parts in (POINTS, EVALUATIONS)
            )
            if not (final or point):
                continue
            finished, seen = model.returns[seen:], len(model.returns)
            others.seed(seed + _EVALUATION_SEED)  # from the same starts every time
            episodes = FINAL_EPISODES if final else EPISODES if evaluation else 0
            returns = evaluate(model, others, episodes) if episodes else None
            rows.append(
                {
                    "step": model.steps,
                    "train_return": float(np.mean(finished)) if finished else None,
                    "train_episodes": len(finished),
                    "eval_return": float(np.mean(returns)) if returns else None,
                    "eval_returns": returns,
                    "seconds": float(seconds[0]),
                    "cpu_seconds": float(seconds[1]),
                    "final": final,
                }
            )
    return [constant | row for row in rows]


def evaluate(model: Udrl, env: VecEnv, episodes: int) -> list[float]:
    """Return the deterministic returns of episodes that ask for what the best ones had."""
    commanded: Any = Commanded(env, model.evaluation_command)
    returns, _ = evaluate_policy(
        model, commanded, episodes, deterministic=True, return_episode_rewards=True
    )
    assert isinstance(returns, list)
    return [float(value) for value in returns]


def _clocks() -> Array:
    return np.array([time.perf_counter(), time.process_time()])


def main(argv: Sequence[str] | None = None) -> None:
    """Train what the store has not, run by run."""
    parser = flags(__doc__)
    add_runs(parser, steps=None)
    parser.add_argument("--store", type=Path, required=True, help="folder of results")
    arguments = parser.parse_args(argv)
    store, settings = Store(arguments.store), Settings()
    for task in map(find_task, arguments.tasks):
        steps = arguments.steps or task.steps
        for seed in arguments.seeds:
            if store.final_row(identity(task, seed, steps, settings)) is not None:
                continue
            rows = train(task, seed, steps, settings)
            store.add(rows)
            print(f"{task.name}, seed {seed}: {rows[-1]['eval_return']:.1f}", flush=True)


if __name__ == "__main__":
    run(main)
