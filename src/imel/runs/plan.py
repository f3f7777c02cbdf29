"""A run's plan: everything that decides its outcome, and its written form, `config.json`."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from imel.errors import SettingsError, nearest_name
from imel.policies import Policy
from imel.registry import find_policy, policies, policy_names
from imel.runs.trackers import TRACKERS, check_tracker
from imel.settings import Settings


def _whole(text: str) -> int:
    """Parse a whole number, also one written as 1e5."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is no whole number") from None
        return int(number)


Steps = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _whole(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A number of environment steps on a command line: 100000 or 1e5."""

_SETTINGS = {f.name for policy in policies().values() for f in fields(policy.Settings)}


@dataclass(frozen=True)
class RunArguments:
    """What learns, for how long, and how it is evaluated."""

    policy: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(policy_names()) + "}")] = "ridge"
    """What learns: `ridge`, or one of the paper's policies."""
    total_timesteps: Steps = 100_000
    """Environment steps to learn for, over all environments together."""
    seed: int = 0
    """Seed of everything random."""
    warm_start: Annotated[str | None, tyro.conf.arg(metavar="FILE|ID")] = None
    """Begin with the memories of a Parquet file of `imel export`, or of a local Minari dataset."""
    eval_episodes: int = 20
    """Episodes of the deterministic evaluation at the end; 0 for none."""
    evaluations: int = 10
    """Deterministic evaluations of 5 episodes during training, evenly spaced; 0 for none. They
    change nothing about what is learned. The best model is kept as best.safetensors."""
    checkpoint_every: int = 20
    """Iterations between checkpoints. Episodes under way go on."""
    checkpoints_kept: int = 2
    """Checkpoints that are kept, the newest ones."""
    go_on_if_full: tyro.conf.FlagCreatePairsOff[bool] = False
    """If a checkpoint cannot be written, say so and go on without it instead of ending the run."""
    progress_json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also write progress.json: what progress.csv holds, a JSON object a line."""
    track: Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(TRACKERS) + "}")] = None
    """Send what is logged to an experiment tracker as well."""
    track_project: Annotated[str, tyro.conf.arg(metavar="NAME")] = "imel"
    """The tracker's project."""
    threads: int = 1
    """Threads of the linear algebra. One is fastest for networks and memories of this size."""
    device: str = "cpu"
    """Where the networks and the memory live."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run's outcome; `config.json` is its written form."""

    env: str
    run: RunArguments
    settings: Settings

    @property
    def policy_class(self) -> type[Policy]:
        """The policy behind the short name."""
        return find_policy(self.run.policy)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `--config` reads back as this plan."""
        return {
            "env": self.env,
            **asdict(self.run),
            **self.settings.as_json(),
        }


def checked(run: RunArguments) -> RunArguments:
    """Refuse numbers out of range, and a tracker that cannot be used."""
    for name, least in (
        ("total_timesteps", 1),
        ("seed", 0),
        ("eval_episodes", 0),
        ("evaluations", 0),
        ("checkpoint_every", 1),
        ("checkpoints_kept", 1),
        ("threads", 1),
    ):
        value = getattr(run, name)
        if not least <= value < 2**31:
            raise SettingsError(f"{name}={value} is not between {least} and {2**31 - 1}")
    if run.track is not None:
        check_tracker(run.track)
    return run


# --- files for `imel train --config`: JSON or TOML, every key checked ---


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON or TOML file; refuse unknown keys, wrong types and bad values by name."""
    document = _parse(path)
    steps = document.get("total_timesteps")
    if isinstance(steps, float) and steps.is_integer():  # 1e5
        document["total_timesteps"] = int(steps)
    try:
        _check_document(document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return document


def settings_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm's settings among a document's keys."""
    return {name: value for name, value in document.items() if name in _SETTINGS}


def _check_document(document: Mapping[str, Any]) -> None:
    """Refuse unknown keys and values of the wrong type."""
    hints = {"env": str, **typing.get_type_hints(RunArguments)}
    for name, value in document.items():
        if name in _SETTINGS:
            continue
        if name not in hints:
            raise SettingsError(
                f"unknown key '{name}'; {nearest_name(name, _SETTINGS | set(hints))}"
            )
        hint = hints[name]
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            expected = getattr(hint, "__name__", str(hint))
            raise SettingsError(f"{name}={value!r} is not of type {expected}")


def _parse(path: Path) -> dict[str, Any]:
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    except (ValueError, RecursionError) as error:  # also numbers of many digits, endless nesting
        raise SettingsError(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError(f"{path} holds no table of settings")
    return document
