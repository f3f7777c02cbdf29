"""Improved Memories Learning in one file: the default policy, from `env.step` to `env.step`.

    python examples/imel_in_one_file.py Pendulum-v1 --steps 30000

Experiences are remembered. Each asks for an improvement: a step of its mean action along its own
policy gradient. Ridge regression on random features spreads the improvements over alike states,
and the policy follows the smoothed step as far as a trust region allows. It is linear throughout,
so the policy is the sum of what each episode has taught it: the lessons theta_e.

"Alg." and "l." are algorithms and lines of the paper (arXiv 2008.10433), "note" is a note of
docs/paper-notes.md. Not the paper's are the fixed features, that all memories are improved again at
every iteration (note 10), and that the trust region bounds the smoothed step (note 13).

With the same seed it acts as `IMeL("RidgePolicy", env, seed=seed)`, up to rounding. The package
adds other spaces and policies, explanations, checkpoints, environments that fail, and speed.

Shapes: E environments, T steps of each, N memories, d_s numbers of a state, d_a of an action,
d_phi features. Actions are in policy units: the bounds of the environment are -1 and 1.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    n_envs: int = 8
    rollout_size: int = 1024  # transitions of an iteration, over all environments together
    memory_size: int = 8192  # transitions; the oldest rollouts are forgotten first
    gamma: float = 0.995  # discount
    gae_lambda: float = 0.97  # decay of the advantage's trace
    advantage_clip: float = 10.0  # in deviations
    trust_region: float = 0.02  # mean KL of a step over the newest rollout, at most
    peak_kl: float = 10.0  # KL at any memory, in trust regions, at most
    full_step_gain: float = 0.1  # deviation of the advantages below which steps are shorter
    features: int = 256  # random ones, beside a constant and the state
    penalty: float = 1.0  # damping of a step, in units of the features' mean variance
    std: float = 3.0  # sigma at first and at most, shared by the dimensions of the action
    min_std: float = 0.05
    std_rate: float = 0.5  # step along the natural gradient of log sigma
    critic_learning_rate: float = 1e-3
    critic_epochs: int = 4
    batch_size: int = 256  # of the critic


class Environments:
    """Copies of an environment, stepped one after the other; one that has ended is reset."""

    def __init__(self, make: Callable[[], gymnasium.Env], count: int, seed: int) -> None:
        self.envs = [make() for _ in range(count)]
        self.space = self.envs[0].action_space
        self.states = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])
        self.episodes, self.steps = np.arange(count), np.zeros(count, np.int64)
        self.next_episode, self.returns = count, np.zeros(count)
        self.finished: list[float] = []  # returns of whole episodes

    def step(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Take a step in each environment; what happened, by column."""  # [E, d_a]
        low, high = self.space.low, self.space.high
        actions = low + 0.5 * (actions.clip(-1.0, 1.0) + 1.0) * (high - low)
        stepped = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        successors, rewards, terminated, truncated, _ = zip(*stepped, strict=True)
        happened = {
            "states": self.states.astype(np.float32),
            "next_states": np.array(successors, np.float32),  # also where an episode ended
            "rewards": np.array(rewards, np.float32),
            "terminated": np.array(terminated),  # the task has ended: no value beyond
            "ended": np.array(terminated) | truncated,  # or the time limit was reached (note 12)
            "episodes": self.episodes.copy(),
            "steps": self.steps.copy(),
        }
        self.states, self.returns = np.array(successors), self.returns + rewards
        self.steps += 1
        for i in happened["ended"].nonzero()[0]:
            self.finished.append(float(self.returns[i]))
            self.states[i] = self.envs[i].reset()[0]
            self.returns[i], self.steps[i], self.episodes[i] = 0.0, 0, self.next_episode
            self.next_episode += 1
        return happened


class Moments:
    """Mean and variance of all rows seen so far."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean, self.variance = torch.zeros(dim).double(), torch.ones(dim).double()

    def update(self, rows: Tensor) -> None:
        rows, known, new = rows.double(), self.count, len(rows)
        self.count += new
        shift = rows.mean(dim=0) - self.mean
        squares = self.variance * known + rows.var(dim=0, unbiased=False) * new
        self.variance = (squares + shift.square() * known * new / self.count) / self.count
        self.mean = self.mean + shift * new / self.count


def damped_inverse(phi: Tensor, penalty: float) -> Tensor:
    """(Phi^T Phi + lambda D)^{-1}, where D is one but for the constant feature."""
    gram = phi.double().T @ phi.double()  # [d_phi, d_phi]
    variances = gram.diagonal()[1:] - gram[0, 1:].square() / len(phi)  # times N
    gram.diagonal()[1:] += max(penalty * variances.mean(), 1e-12 * gram.trace())
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


class Imel:
    """A Gaussian policy with the mean phi(s)^T theta, and all that it learns from."""

    def __init__(self, make: Callable[[], gymnasium.Env], seed: int, settings: Settings) -> None:
        self.settings, self.iteration = settings, 0
        self.envs = Environments(make, settings.n_envs, seed)
        (d_s,), (d_a,) = self.envs.states[0].shape, self.envs.space.shape
        self.generator = torch.Generator().manual_seed(seed)  # of noise and minibatches
        torch.manual_seed(seed)  # of features and first weights
        self.directions = 1.5 * torch.randn(d_s, settings.features) / d_s**0.5
        self.offsets = 2.0 * torch.rand(settings.features) - 1.0
        layers = nn.Linear(d_s, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        self.critic = nn.Sequential(*layers, nn.Flatten(0))  # V^w
        self.optimizer = torch.optim.Adam(self.critic.parameters(), settings.critic_learning_rate)
        self.state_moments, self.return_moments = Moments(d_s), Moments(1)
        self.centre, self.scale = torch.zeros(d_s), torch.ones(d_s)  # what states are normalised by
        self.discounted = np.zeros(settings.n_envs, np.float32)  # running discounted returns
        self.rollouts: list[dict[str, Tensor]] = []  # the replay memory, RM
        self.lessons: dict[int, Tensor] = {}  # theta_e of each episode  # [d_phi, d_a]
        self.theta = torch.zeros(1 + d_s + settings.features, d_a).double()  # their sum
        self.max_std = max(min(1.0, settings.std / d_a), settings.min_std)
        self.std = torch.full((d_a,), self.max_std)  # sigma

    def normalised(self, states: Tensor) -> Tensor:
        return ((states - self.centre) / self.scale).clamp(-10.0, 10.0)

    def phi(self, states: Tensor) -> Tensor:
        """A constant, the normalised state and random features of it."""  # [N, d_s] -> [N, d_phi]
        z = self.normalised(states).clamp(-5.0, 5.0)
        random = torch.tanh(z @ self.directions + self.offsets)
        return torch.cat([torch.ones(len(z), 1), z, random], dim=1)

    def mean(self, states: Tensor) -> Tensor:
        """mu, the deterministic action."""  # [N, d_s] -> [N, d_a]
        return self.phi(states) @ self.theta.float()

    @torch.no_grad()
    def iterate(self) -> dict[str, Tensor]:
        """Act, remember, improve all memories, and move the policy; the new rollout."""
        rollout = self.collect()  # Alg. 1 l. 4-7
        self.remember(rollout)  # l. 12
        memory = {name: torch.cat([each[name] for each in self.rollouts]) for name in rollout}
        means = self.mean(memory["states"])  # of the present policy  # [N, d_a]
        distances, ratios = memory["actions"] - means, self.ratios(memory, means)
        advantages = self.estimate_advantages(memory, ratios)  # l. 8
        deviation = float(advantages.double().std(unbiased=False))
        standardised = (advantages - advantages.mean()) / max(deviation, 1e-8)
        clip = self.settings.advantage_clip
        weights = ratios * standardised.clamp(-clip, clip)
        # Where little is left to gain, what advantages say is mostly noise
        share = min(1.0, deviation / self.settings.full_step_gain)
        improvements = self.improve(weights, distances)  # l. 9-11
        self.move(memory, improvements, share, len(rollout["states"]))  # in the place of l. 3
        self.adapt_std(weights / ratios.mean(), distances, share)
        self.iteration += 1
        return rollout

    def collect(self) -> dict[str, Tensor]:
        """Act in all environments; a row for each transition."""
        settings, rows = self.settings, []
        n_steps = settings.rollout_size // settings.n_envs
        noise = torch.randn(n_steps, settings.n_envs, len(self.std), generator=self.generator)
        for drawn in noise:
            means = self.mean(torch.from_numpy(self.envs.states.astype(np.float32)))  # l. 5
            actions = means + self.std * drawn  # l. 6: a ~ N(mu, sigma)
            row = self.envs.step(actions.numpy())  # l. 7
            self.discounted = settings.gamma * self.discounted + row["rewards"]
            row |= {"discounted": self.discounted, "actions": actions, "means": means}
            rows.append(row | {"stds": self.std.expand_as(means)})
            self.discounted = self.discounted * ~row["ended"]
        columns = {name: [torch.as_tensor(row[name]) for row in rows] for name in rows[0]}
        # [T, E, ...] -> [E * T, ...], one environment after the other
        return {name: torch.stack(column, dim=1).flatten(0, 1) for name, column in columns.items()}

    def remember(self, rollout: dict[str, Tensor]) -> None:
        """Put a rollout into the memory, with states as they came, and forget the oldest (note 9).

        At iterations 1, 2, 4, 8 ... states are normalised by all seen so far from then on. Lessons
        are carried over by a regression, so that means at remembered states stay as they are.
        """
        self.rollouts.append(rollout)
        del self.rollouts[: -(self.settings.memory_size // len(rollout["states"]))]
        self.state_moments.update(rollout["states"])
        self.return_moments.update(rollout["discounted"][:, None])
        if (self.iteration + 1).bit_count() != 1:
            return
        states = torch.cat([each["states"] for each in self.rollouts])
        before = self.phi(states).double()
        self.centre = self.state_moments.mean.float()
        self.scale = (self.state_moments.variance + 1e-8).sqrt().float()
        after = self.phi(states).double()
        carry = damped_inverse(after, 1e-6) @ (after.T @ before)
        self.lessons = {episode: carry @ lesson for episode, lesson in self.lessons.items()}
        self.theta = carry @ self.theta

    def ratios(self, memory: dict[str, Tensor], means: Tensor) -> Tensor:
        """How likely the present policy is to act as was acted; likelier than then counts once."""
        now = (memory["actions"] - means) / self.std
        then = (memory["actions"] - memory["means"]) / memory["stds"]
        logarithms = (then.square() - now.square()) / 2.0 + (memory["stds"] / self.std).log()
        return logarithms.sum(dim=1).clamp_max(0.0).exp()  # [N]

    def estimate_advantages(self, memory: dict[str, Tensor], ratios: Tensor) -> Tensor:
        """Alg. 3 with the present critic, in deviations of the return; fit the critic.

        GAE of rewards, not of returns (note 4), as far as the present policy would have gone:
        A_t = delta_t + gamma lambda rho_{t+1} A_{t+1}, where rho is the clipped ratio.
        """
        settings, states = self.settings, self.normalised(memory["states"])
        values = self.critic(states)  # v_t = V^w(s_t)  # [N]
        beyond = self.critic(self.normalised(memory["next_states"])) * ~memory["terminated"]
        deviation = float(self.return_moments.variance.sqrt())
        rewards = memory["rewards"] / (deviation if deviation > 1e-8 else 1.0)
        deltas = (rewards + settings.gamma * beyond - values).tolist()
        rhos, advantages = ratios.tolist(), torch.empty_like(values)
        places = list(zip(memory["episodes"].tolist(), memory["steps"].tolist(), strict=True))
        trace, successor = 0.0, None  # rho A of the row before in this loop, and where that is
        for t in sorted(range(len(places)), key=places.__getitem__, reverse=True):
            episode, step = places[t]
            trace = trace if successor == (episode, step + 1) else 0.0  # nothing follows
            advantages[t] = advantage = deltas[t] + settings.gamma * settings.gae_lambda * trace
            trace, successor = rhos[t] * advantage, (episode, step)
        self.fit_critic(states, values + ratios * advantages)
        return advantages

    @torch.enable_grad()
    def fit_critic(self, states: Tensor, returns: Tensor) -> None:
        for _ in range(self.settings.critic_epochs):
            order = torch.randperm(len(states), generator=self.generator)
            for rows in order.split(self.settings.batch_size):
                loss = (self.critic(states[rows]) - returns[rows]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def improve(self, weights: Tensor, distances: Tensor) -> Tensor:
        """mu* - mu: every memory's policy gradient, in steps with the trust region's mean KL."""
        gradients = weights[:, None] * distances / self.std.square()  # A (a - mu) / sigma^2
        total = float((gradients / self.std).double().square().sum())
        budget = len(weights) * self.settings.trust_region
        eta = (2.0 * budget / total) ** 0.5 if total > 0.0 else 0.0  # l. 9 (note 8)
        return eta * gradients  # l. 11  # [N, d_a]

    def move(self, memory: dict[str, Tensor], improvements: Tensor, share: float, new: int) -> None:
        """Smooth the improvements by ridge regression and go along them. Each episode e learns

            theta_e <- theta_e + beta (Phi^T Phi + lambda D)^{-1} Phi_e^T (mu* - mu)_e

        Since mu* - mu is a policy gradient of one sample and Phi^T Phi the Fisher matrix of the
        policy, the sum over episodes is a damped natural policy gradient.
        """
        settings, phi = self.settings, self.phi(memory["states"])
        inverse, parts = damped_inverse(phi, settings.penalty), {}
        for episode in memory["episodes"].unique().tolist():
            rows = memory["episodes"] == episode
            parts[episode] = inverse @ (phi[rows].T @ improvements[rows]).double()
        shifts = phi @ sum(parts.values()).float()  # of the mean at each memory  # [N, d_a]
        kls = (shifts / self.std).square().sum(dim=1) / 2.0  # quadratic in the length of a step
        if not kls[-new:].any():
            return
        bound = settings.trust_region
        longest = min(bound / float(kls[-new:].mean()), settings.peak_kl * bound / float(kls.max()))
        for episode, part in parts.items():
            self.lessons[episode] = self.lessons.get(episode, 0.0) + share * longest**0.5 * part
        self.theta = sum(self.lessons.values())

    def adapt_std(self, weights: Tensor, distances: Tensor, share: float) -> None:
        """Step log sigma along its natural policy gradient (Alg. 2 l. 12-13, note 3)."""
        noise = (distances / self.std).square() - 1.0  # [N, d_a]
        gradient = (weights[:, None] * noise).mean(dim=0) / 2.0
        step = (share * self.settings.std_rate * gradient).clamp(-0.2, 0.2)
        self.std = (self.std * step.exp()).clamp(self.settings.min_std, self.max_std)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", nargs="?", default="Pendulum-v1", help="an id of Gymnasium")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    learner, steps = Imel(lambda: gymnasium.make(arguments.env), arguments.seed, Settings()), 0
    while steps < arguments.steps:
        steps += len(learner.iterate()["states"])
        recent = learner.envs.finished[-20:] or [float("nan")]
        print(f"{steps:>8} steps  return {np.mean(recent):9.1f}  sigma {learner.std.mean():.2f}")


if __name__ == "__main__":
    main()
