"""What both families of policies are told: how experience is gathered, judged and valued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from imel.errors import SettingsError
from imel.settings.validation import parse_schedule, updated

Backend = Literal["gymnasium", "envpool"]

_RANGES = {
    "rollout_size": (2, 2**31),
    "memory_size": (2, 2**40),
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "advantage_clip": (1e-6, 1e30),
    "min_std": (1e-6, 10.0),
    "std_rate": (0.0, 10.0),
    "trust_region": (1e-9, 1e30),
    "prior_std": (0.0, 10.0),
    "gradient_steps": (0, 2**31),
    "max_grad_norm": (1e-9, 1e30),
    "critic_learning_rate": (1e-12, 10.0),
    "env_threads": (0, 2**16),
    "max_faults": (0, 2**31),
    "worker_timeout": (0.01, 1e6),
}


@dataclass(frozen=True)
class Settings:
    """Settings of every policy."""

    scheduled: ClassVar[tuple[str, ...]] = ()
    """The settings that may be `start:end`."""

    rollout_size: int = 1024
    """Transitions gathered per iteration, over all environments together."""
    n_envs: int = 8
    """Copies made of an environment given by its id. An environment object is used as it is."""
    workers: bool = False
    """Run each copy in a process of its own. It pays where a step takes long."""
    worker_timeout: float = 60.0
    """Seconds after which a process that does not answer counts as hung."""
    backend: Backend = "gymnasium"
    """What steps the copies of an environment given by its id. `envpool` is an extra."""
    env_threads: int = 0
    """Threads of EnvPool; 0 for one a core."""
    max_faults: int = 0
    """Faults of environments that a run survives: an exception, a dead or hung process, a NaN.
    Each costs the rollout under way and what is remembered of the episode."""
    memory_size: int = 8192
    """Capacity of the memory in transitions. The oldest rollouts are forgotten first."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.97
    """Trace decay of GAE: 0 trusts the critic, 1 trusts the sampled return."""
    advantage_clip: float = 10.0
    """Advantages are centred, scaled to unit deviation and clipped at this many deviations."""
    min_std: float = 0.05
    """sigma never falls below this."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the critic."""
    critic_learning_rate: float = 1e-3
    """Adam's rate for the critic."""
    critic_epochs: int = 4
    """Passes over the data of each fit of the critic."""
    batch_size: int = 256
    """Minibatch of the critic's gradient steps."""

    def updated(
        self, changes: Mapping[str, Any], policy: str = "IMeL", also: Iterable[str] = ()
    ) -> Self:
        """Return these settings with some changed; refuse what is unknown or out of range.

        `also` are names that are no settings but may be meant by a misspelt one.
        """
        for name in self.scheduled:
            if name in changes:
                parse_schedule(name, changes[name])
        return updated(self, changes, policy, _RANGES, also)

    def as_json(self) -> dict[str, Any]:
        """Return plain data; refuse callable schedules, which could only be pickled."""
        document = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                raise SettingsError(
                    f"{field.name} is a function and cannot be saved; "
                    "give a number or 'start:end' instead"
                )
            document[field.name] = list(value) if isinstance(value, tuple) else value
        return document
