"""A run's plan: everything that decides its outcome, and its written form, `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from imel.errors import SettingsError
from imel.registry import find_policy, loaded_policy, policy_names
from imel.runs.layout import read_table
from imel.runs.trackers import TRACKERS, check_tracker
from imel.settings import Settings, setting, setting_names, updated


def _whole(text: str) -> int:
    """Parse a whole number, also one written as 1e5."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is no whole number")
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


_MOST = 2**31 - 1


@dataclass(frozen=True)
class RunArguments:
    """What learns, for how long, and how it is evaluated."""

    policy: Annotated[
        str, tyro.conf.arg(metavar="{" + ",".join(policy_names()) + "}|MODULE:CLASS")
    ] = "ridge"
    """What learns: `ridge`, one of the paper's policies, or a class of your own."""
    total_timesteps: Steps = setting(100_000, high=_MOST)
    """Environment steps to learn for, over all environments together."""
    seed: int = setting(0, low=0, high=_MOST)
    """Seed of everything random."""
    warm_start: Annotated[str | None, tyro.conf.arg(metavar="FILE|ID")] = None
    """Begin with the memories of a Parquet file of `imel export`, or of a local Minari dataset."""
    eval_episodes: int = setting(20, low=0, high=_MOST)
    """Episodes of the deterministic evaluation at the end; 0 for none."""
    evaluations: int = setting(10, low=0, high=_MOST)
    """Deterministic evaluations of 5 episodes during training, evenly spaced; 0 for none. They
    change nothing about what is learned. The best model is kept as best.safetensors."""
    checkpoint_every: int = setting(20, high=_MOST)
    """Iterations between checkpoints. Episodes under way go on."""
    checkpoints_kept: int = setting(2, high=_MOST)
    """Checkpoints that are kept, the newest ones."""
    go_on_if_full: tyro.conf.FlagCreatePairsOff[bool] = False
    """If a checkpoint cannot be written, say so and go on without it instead of ending the run."""
    progress_json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also write progress.json: what progress.csv holds, a JSON object a line."""
    track: Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(TRACKERS) + "}")] = None
    """Send what is logged to an experiment tracker as well."""
    track_project: Annotated[str, tyro.conf.arg(metavar="NAME")] = "imel"
    """The tracker's project."""
    threads: int = setting(1, high=_MOST)
    """Threads of the linear algebra. One is fastest for networks and memories of this size."""
    device: str = "cpu"
    """Where the networks and the memory live."""


_RUN = setting_names(RunArguments)
_NO_SETTINGS = ("env", *_RUN)
_NOT_OF_THE_OUTCOME = (
    *("checkpoints_kept", "eval_episodes", "evaluations", "go_on_if_full"),
    *("progress_json", "track", "track_project"),
)


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run's outcome; `config.json` is its written form."""

    env: str
    run: RunArguments
    settings: Settings

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the plan that a document describes; refuse unknown keys and bad values by name."""
        env = document.get("env", "")
        if not isinstance(env, str):
            raise SettingsError(f"env={env!r} is not the id of an environment")
        settings = {n: value for n, value in document.items() if n not in _NO_SETTINGS}
        run = updated(RunArguments(), {n: document[n] for n in _RUN if n in document})
        if run.track is not None:
            check_tracker(run.track)
        return cls(env, run, find_policy(run.policy).make_settings(settings, _NO_SETTINGS))

    def as_json(self) -> dict[str, Any]:
        """Return the document that `--config` reads back as this plan."""
        return {"env": self.env, **asdict(self.run), **self.settings.as_json()}


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plan's document decides the outcome of the run.

    Where on a machine a dataset lay does not, and is nobody's business.
    """
    chosen = {name: value for name, value in document.items() if name not in _NOT_OF_THE_OUTCOME}
    start = chosen.get("warm_start")
    if isinstance(start, str) and start.endswith(".parquet"):
        chosen["warm_start"] = Path(start).name
    return chosen


def read_plan(path: Path | None, policy: str | None = None) -> Plan:
    """Return the plan in a file, JSON or TOML, or the default one; `policy` replaces its policy.

    A class of its user's own is imported only if `policy` names it: a file runs no code.
    """
    if path is not None and not path.is_file():
        raise SettingsError(f"there is no file {path}")
    document = {} if path is None else read_table(path)
    steps, held = document.get("total_timesteps"), document.get("policy", "ridge")
    if isinstance(steps, float) and steps.is_integer():  # 1e5
        document["total_timesteps"] = int(steps)
    if policy is None and isinstance(held, str) and loaded_policy(held) is None and ":" in held:
        raise SettingsError(f"{path} names a policy of its user's own: add --policy {held}")
    try:
        return Plan.of(document if policy is None else document | {"policy": policy})
    except SettingsError as error:
        raise SettingsError(str(error) if path is None else f"{path}: {error}") from None
