"""What learning changes, as one object: policy, critic, optimizers, generators, clock, counters.

It is what a checkpoint holds, what a snapshot is taken of and what a resumed run begins with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel.data.critic import Critic
from imel.data.normaliser import ReturnScale
from imel.data.rollout import EpisodeClock
from imel.policies.base import Policy, Update

MODULES = ("policy", "critic", "return_scale")
COUNTERS = (
    *("num_timesteps", "learned_timesteps", "total_timesteps"),
    *("iteration", "n_updates", "faults"),
)


class LearnerState:
    """Everything that learning changes, but for the environments."""

    policy: Policy
    critic: Critic
    return_scale: ReturnScale
    update: Update
    """How the policy learns; it owns the optimizers."""
    generator: torch.Generator
    clock: EpisodeClock

    def __init__(self) -> None:
        self.num_timesteps = 0
        self.learned_timesteps = 0
        """Environment steps learned from: fewer than taken if a rollout was cut short."""
        self.total_timesteps = 0
        """Environment steps at which the last call of `learn` was to end."""
        self.iteration = 0
        self.n_updates = 0
        self.faults = 0
        """Faults of environments survived so far."""
        self.progress_remaining = 1.0
        self.episodes: deque[dict[str, Any]] | None = None
        """Return and length of the last episodes."""
        self.successes: deque[float] | None = None

    def set_up(
        self, policy_class: type[Policy], spaces: tuple[Any, Any], settings: Any, seed: int
    ) -> None:
        """Make the parts from a seed, on the CPU."""
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # torch's layers draw their initial weights from the global one
            self.policy = policy_class(*spaces, settings)
            self.critic = Critic(self.policy.state_dim, settings.critic_hidden)
        self.policy.generator.manual_seed(seed)
        self.return_scale = ReturnScale(settings.gamma)

    def begin(self, device: torch.device, n_envs: int) -> None:
        """Move the parts to a device, make the optimizers and what the first step needs."""
        self.policy, self.critic = self.policy.to(device), self.critic.to(device)
        self.update = self.policy.make_update(self)
        self.update.start()
        self.clock = EpisodeClock(n_envs)

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The optimizers by name."""
        return self.update.optimizers

    def environments_were_reset(self, n_envs: int) -> None:
        """Begin new episodes."""
        self.clock.restart(n_envs)
        self.return_scale.restart()

    # --- as tensors and JSON ---

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, memory, normaliser, optimizers and random states, by flat name."""
        parts = {module: getattr(self, module).state_dict() for module in MODULES}
        for name, optimizer in self.optimizers.items():
            state = optimizer.state_dict()["state"]  # Adam's moments and steps, by parameter
            parts[name] = {f"{i}/{key}": t for i, held in state.items() for key, t in held.items()}
        return _flat(parts) | self.generators()

    def generators(self) -> dict[str, Tensor]:
        """Return the random states, by flat name."""
        return {
            "generators/algorithm": self.generator.get_state(),
            "generators/policy": self.policy.generator.get_state(),
        }

    def shapes_for(self, parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors of the shapes that `load` accepts in place of some parts of a file."""
        expected = {module: getattr(self, module).state_dict() for module in MODULES}
        expected["policy"] = self.policy.shapes_for(parts["policy"])
        for name, optimizer in self.optimizers.items():  # Adam's moments, if it took a step
            expected[name] = _adam_state(optimizer) if parts[name] else {}
        return _flat(expected) | self.generators()

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what `tensors` gave: the parts of a file by the first half of their names."""
        for module in MODULES:
            getattr(self, module).load_state_dict(parts[module])
        for name, optimizer in self.optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for place, tensor in parts[name].items():
                number, key = place.split("/")
                state.setdefault(int(number), {})[key] = tensor
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.generator.set_state(parts["generators"]["algorithm"])
        self.policy.generator.set_state(parts["generators"]["policy"])

    def progress(self) -> dict[str, Any]:
        """Return counters and episode statistics, as JSON."""
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "next_episode": self.clock.next_episode,
            "progress_remaining": self.progress_remaining,
            "episodes": [
                {key: float(value) for key, value in episode.items()}
                for episode in self.episodes or ()
            ],
            "successes": [float(success) for success in self.successes or ()],
        }

    def restore_progress(self, progress: Mapping[str, Any], window: int) -> None:
        """Take over counters and episode statistics as `progress` gave them."""
        for name in COUNTERS:
            setattr(self, name, progress[name])
        self.clock.next_episode = progress["next_episode"]
        self.progress_remaining = progress["progress_remaining"]
        self.episodes = deque(progress["episodes"], maxlen=window)
        self.successes = deque(progress["successes"], maxlen=window)


def _adam_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return tensors with the names, shapes and types of Adam's state after a step."""
    return {
        f"{i}/{name}": torch.zeros(()) if name == "step" else parameter
        for i, parameter in enumerate(optimizer.param_groups[0]["params"])
        for name in ("step", "exp_avg", "exp_avg_sq")
    }


def _flat(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{name}/{key}": tensor for name, part in parts.items() for key, tensor in part.items()}
