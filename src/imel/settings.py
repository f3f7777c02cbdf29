"""Settings: one flat dataclass a policy; default, range and search space stand at each field.

A field's sentence is the docstring below it. What every policy has is in `Settings`; a policy adds
its own in a subclass:

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        trust_region: float = setting(0.02, low=1e-9, search=Range(0.002, 0.2))
        \"""Mean KL between the policies before and after an iteration, at most.\"""
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from imel.errors import SettingsError, nearest_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
Backend = Literal["gymnasium", "envpool"]
_LARGEST = 1e30


# --- what a search may draw for a setting ---


@dataclass(frozen=True)
class Range:
    """A number, whole where the setting is; by its logarithm unless `log` is False."""

    low: float
    high: float
    log: bool = True


@dataclass(frozen=True, init=False)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)


Search = Range | Choice


def setting(
    default: Any,
    low: float | None = None,
    high: float = _LARGEST,
    search: Search | None = None,
    scheduled: bool = False,
    of_sigma: bool = False,
) -> Any:
    """Declare a setting.

    :param low: the least value; 1 for whole numbers and 0 for others if not given
    :param search: what `imel tune` may draw; nothing if not given
    :param scheduled: whether it may be `start:end`, or a function of the remaining progress
    :param of_sigma: whether it has no meaning where actions are discrete
    """
    metadata = {"low": low, "high": high, "search": search}
    return field(default=default, metadata=metadata | {"scheduled": scheduled, "sigma": of_sigma})


@dataclass(frozen=True)
class Settings:
    """Settings of every policy: how experience is gathered, judged and valued."""

    rollout_size: int = setting(1024, low=2, high=2**31, search=Choice(512, 1024, 2048))
    """Transitions gathered per iteration, over all environments together."""
    n_envs: int = 8
    """Copies made of an environment given by its id. An environment object is used as it is."""
    workers: bool = False
    """Run each copy in a process of its own. It pays where a step takes long."""
    worker_timeout: float = setting(60.0, low=0.01, high=1e6)
    """Seconds after which a process that does not answer counts as hung."""
    backend: Backend = "gymnasium"
    """What steps the copies of an environment given by its id. `envpool` is an extra."""
    env_threads: int = setting(0, low=0, high=2**16)
    """Threads of EnvPool; 0 for one a core."""
    max_faults: int = setting(0, low=0, high=2**31)
    """Faults of environments that a run survives: an exception, a dead or hung process, a NaN.
    Each costs the rollout under way and what is remembered of the episode."""
    memory_size: int = setting(
        8192, low=2, high=2**40, search=Choice(2048, 4096, 8192, 16384, 32768)
    )
    """Capacity of the memory in transitions. The oldest rollouts are forgotten first."""
    gamma: float = setting(0.99, high=1.0, search=Choice(0.95, 0.98, 0.99, 0.995, 0.999))
    """Discount factor."""
    gae_lambda: float = setting(0.97, high=1.0, search=Range(0.8, 0.99, log=False))
    """Trace decay of GAE: 0 trusts the critic, 1 trusts the sampled return."""
    advantage_clip: float = setting(10.0, low=1e-6)
    """Advantages are centred, scaled to unit deviation and clipped at this many deviations."""
    min_std: float = setting(0.05, low=1e-6, high=10.0, of_sigma=True)
    """sigma never falls below this."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the critic."""
    critic_learning_rate: float = setting(1e-3, low=1e-12, high=10.0, search=Range(3e-4, 1e-2))
    """Adam's rate for the critic."""
    critic_epochs: int = setting(4, search=Range(1, 20))
    """Passes over the data of each fit of the critic."""
    batch_size: int = 256
    """Minibatch of the critic's gradient steps."""

    def updated(
        self, changes: Mapping[str, Any], of: str = "IMeL", also: Iterable[str] = ()
    ) -> Self:
        """Return these settings with some changed: see the function of this name."""
        return updated(self, changes, of, also)

    def as_json(self) -> dict[str, Any]:
        """Return plain data; refuse callable schedules, which could only be pickled."""
        document = {}
        for name in setting_names(self):
            value = getattr(self, name)
            if callable(value):
                raise SettingsError(
                    f"{name} is a function and cannot be saved; "
                    "give a number or 'start:end' instead"
                )
            document[name] = list(value) if isinstance(value, tuple) else value
        return document


def updated(
    instance: D, changes: Mapping[str, Any], of: str = "IMeL", also: Iterable[str] = ()
) -> D:
    """Return a dataclass with some fields changed; refuse unknown names and bad values.

    :param of: whose fields they are, for the refusal
    :param also: names of something else that a misspelt one may have meant
    """
    hints = typing.get_type_hints(type(instance))
    declared = {f.name: f.metadata for f in fields(instance)}
    for name, value in changes.items():
        if name not in declared:
            raise SettingsError(f"{of} has no '{name}'; {nearest_name(name, [*declared, *also])}")
        if declared[name].get("scheduled"):
            parse_schedule(name, value)
        else:
            _check(name, value, hints[name], declared[name])
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()
    }
    return replace(instance, **plain)


def setting_names(settings: DataclassInstance | type[DataclassInstance]) -> list[str]:
    """Return the names of all settings."""
    return [f.name for f in fields(settings)]


def marked(settings: Settings | type[Settings], mark: str) -> list[str]:
    """Return the names of the settings that are `scheduled`, or of `sigma`."""
    return [f.name for f in fields(settings) if f.metadata.get(mark)]


def _check(name: str, value: Any, hint: Any, declared: Mapping[str, Any]) -> None:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise SettingsError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
    elif typing.get_origin(hint) is tuple:
        sizes = value if isinstance(value, tuple | list) else ()
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise SettingsError(f"{name}={value!r} is not a list of layer sizes")
    elif hint in (int, float):
        accepted = int if hint is int else (int, float)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise SettingsError(f"{name}={value!r} is not of type {hint.__name__}")
        low, high = declared.get("low"), declared.get("high", _LARGEST)
        low = (1 if hint is int else 0.0) if low is None else low
        if not low <= value <= high:
            raise SettingsError(f"{name}={value!r} is not between {low} and {high}")
    elif isinstance(hint, type | UnionType) and not isinstance(value, hint):
        expected = getattr(hint, "__name__", str(hint))
        raise SettingsError(f"{name}={value!r} is not of type {expected}")


# --- schedules: of Stable-Baselines3's remaining progress, 1 at the start and 0 at the end ---

Schedule = float | str | Callable[[float], float]
"""A number, `start:end`, or a function of the remaining progress, which cannot be saved."""


@dataclass(frozen=True)
class Linear:
    """Goes from `start` to `end` in proportion to the steps taken; constant if they are equal."""

    start: float
    end: float

    def __call__(self, progress_remaining: float) -> float:
        """Return the value when this share of the run is still to come."""
        remaining = min(max(progress_remaining, 0.0), 1.0)
        return self.end + (self.start - self.end) * remaining


def parse_schedule(name: str, value: Schedule) -> Callable[[float], float]:
    """Return the schedule behind a setting; refuse what is not positive throughout."""
    if callable(value):
        return value
    start, colon, end = str(value).partition(":")
    try:
        schedule = Linear(float(start), float(end if colon else start))
    except ValueError:
        raise SettingsError(
            f"{name}={value!r} is neither a number nor 'start:end' (such as '0.4:0.1')"
        ) from None
    if not (0.0 < schedule.start < float("inf") and 0.0 < schedule.end < float("inf")):
        raise SettingsError(f"{name}={value!r} must be positive and finite throughout")
    return schedule


# --- settings in words ---


def field_docs(settings_class: type[Any]) -> dict[str, str]:
    """Return what the docstring under each field says."""
    docs: dict[str, str] = {}
    for part in reversed(settings_class.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for declared, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(declared, ast.AnnAssign)
                and isinstance(declared.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[declared.target.id] = " ".join(str(text.value.value).split())
    return docs


def settings_table(classes: Iterable[tuple[str, type[Settings]]]) -> str:
    """Return every setting with its defaults, as text for `help(IMeL)`.

    :param classes: names of policies with their settings; what all share is said once
    """
    lines: list[str] = []
    said: dict[str, Any] = {}
    for name, settings_class in [("every policy", Settings), *classes]:
        docs = field_docs(settings_class)
        lines += [f"    Settings of {name}, with their defaults:", ""]
        for declared in fields(settings_class):
            if said.get(declared.name, said) != declared.default:
                text = f"{declared.name} = {declared.default!r}: {docs[declared.name]}"
                wrapped = textwrap.wrap(text, 86)
                lines += [" " * 6 + wrapped[0], *(" " * 10 + line for line in wrapped[1:])]
            if settings_class is Settings:
                said[declared.name] = declared.default
        lines.append("")
    return "\n".join(lines)
