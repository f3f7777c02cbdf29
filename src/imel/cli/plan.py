"""What `imel train` is asked to do: the policy's defaults, a preset, a file and flags, in one plan.

Each layer beats the one before: the policy's recommendation, the file's preset, the file's
settings, `--preset`, the other flags. An update named without a preset brings the one of its name,
as it does in `IMeL`. Every flag comes from a dataclass: those of
`imel.settings`, the policy's own options, and the two below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any

import tyro

from imel.cli.arguments import parse, peek
from imel.cli.config_file import read_config, settings_in
from imel.errors import SettingsError, nearest_name
from imel.policy import POLICIES, ImelPolicy
from imel.presets import PRESETS
from imel.settings import Settings, defaults, preset
from imel.trackers import TRACKERS, check_tracker

POLICY_NAMES: dict[str, type[ImelPolicy]] = {
    name.removesuffix("Policy").lower(): policy for name, policy in POLICIES.items()
}

_DESCRIPTION = """\
Learn a policy on a Gymnasium environment, evaluate it and draw it.

examples:
  imel train Pendulum-v1
  imel train MountainCarContinuous-v0 --total-timesteps 60000
  imel train HalfCheetah-v5 --policy np --seed 1 --run-dir runs/cheetah-np
  imel train --config runs/cheetah-np/config.json --run-dir runs/again

The file given by --config is JSON or TOML. Its keys are the names below with underscores
(env, total_timesteps, kl_budget, ...); the policy's own options stand in a table policy_kwargs.
Defaults depend on the policy: --policy np --help shows those of np."""


@dataclass(frozen=True)
class RunArguments:
    """What learns, for how long, and how it is evaluated."""

    policy: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(POLICY_NAMES) + "}")] = "mki"
    """How memories are interpolated."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(PRESETS) + "}")] = None
    """A named set of settings; flags given beside it win."""
    total_timesteps: int = 100_000
    """Environment steps to learn for, over all environments together."""
    seed: int = 0
    """Seed of everything random."""
    warm_start: Annotated[str | None, tyro.conf.arg(metavar="FILE|ID")] = None
    """Begin with the memories of a Parquet file of `imel export`, or of a local Minari dataset."""
    eval_episodes: int = 20
    """Episodes of the deterministic evaluation at the end; 0 for none."""
    checkpoint_every: int = 20
    """Iterations between checkpoints. Environments are reset there, so it is part of the run."""
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
class FileArguments:
    """Where the run is kept, and what it is made from."""

    run_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the run. By default a new one: runs/ENV-POLICY-seedN."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run in the folder named by --run-dir. Only a run's own files are removed."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue the run in --run-dir from its last checkpoint, bit for bit; start it if there is
    none."""
    allow_differences: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume although settings or library versions differ. The end is then another one."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Take settings from a file, such as another run's config.json. Flags win."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run's outcome; `config.json` is its written form."""

    env: str
    run: RunArguments
    settings: Settings
    policy_kwargs: Mapping[str, Any]

    @property
    def policy_class(self) -> type[ImelPolicy]:
        """The policy behind the short name."""
        return _policy_class(self.run.policy)

    def as_json(self) -> dict[str, Any]:
        """A document that `--config` reads back as this plan."""
        return {
            "env": self.env,
            **asdict(self.run),
            **self.settings.as_json(),
            "policy_kwargs": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.policy_kwargs.items()
            },
        }


def plan_from_arguments(argv: Sequence[str]) -> tuple[Plan, FileArguments]:
    """The plan behind a command line, checked, and where it is to be carried out."""
    flag_policy, flag_preset = peek(argv, "--policy"), peek(argv, "--preset")
    path = peek(argv, "--config")
    document = {} if path is None else read_config(Path(path), RunArguments)
    policy = flag_policy or document.get("policy", RunArguments.policy)
    policy_class = _policy_class(policy)
    given = settings_in(document)
    update = peek(argv, "--update") if flag_preset is None else None
    if update is not None:
        given = {**given, "update": update}
    settings = Settings().updated(
        {
            **defaults(policy_class.recommended, document.get("preset"), given),
            **settings_in(document),
            **preset(flag_preset),
        }
    )
    options = policy_class.make_options(document.get("policy_kwargs", {}))
    arguments = parse(
        _argument_class(document, settings, policy, options), argv, "imel train", _DESCRIPTION
    )
    chosen = {f.name: getattr(arguments, f.name) for f in fields(arguments)}
    changes: dict[str, Any] = {}
    for part in _settings_parts():
        changes |= vars(chosen[part])
    plan = Plan(
        env=chosen["env"],
        run=_checked(chosen["run"]),
        settings=Settings().updated(changes),
        policy_kwargs=asdict(chosen[policy]),
    )
    plan.policy_class.make_options(plan.policy_kwargs)
    return plan, chosen["files"]


def _argument_class(
    document: Mapping[str, Any], settings: Settings, policy: str, options: Any
) -> type[Any]:
    """The dataclass whose fields are the command line, with the defaults that hold here."""
    known = {f.name for f in fields(RunArguments)}
    run = {name: value for name, value in document.items() if name in known}
    environment: Any = Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="ENV", help="Environment id, such as Pendulum-v1."),
    ]
    columns: list[Any] = [
        ("env", environment, document.get("env", tyro.MISSING)),
        ("run", RunArguments, RunArguments(**run)),
        ("files", FileArguments, FileArguments()),
    ]
    for name, part in _settings_parts().items():
        values = {f.name: getattr(settings, f.name) for f in fields(part)}
        columns.append((name, part, part(**values)))
    columns.append((policy, type(options), options))
    return make_dataclass(
        "TrainArguments",
        [(name, kind, dataclass_field(default=value)) for name, kind, value in columns],
        frozen=True,
    )


def _settings_parts() -> dict[str, type[Any]]:
    """The dataclasses that `Settings` gathers, each a group of flags: rollout, advantage, ..."""
    return {
        part.__name__.removesuffix("Settings").lower(): part
        for part in reversed(Settings.__mro__[1:-1])
    }


def _policy_class(name: str) -> type[ImelPolicy]:
    if name not in POLICY_NAMES:
        raise SettingsError(f"unknown policy '{name}'; {nearest_name(name, POLICY_NAMES)}")
    return POLICY_NAMES[name]


def _checked(run: RunArguments) -> RunArguments:
    for name, least in (
        ("total_timesteps", 1),
        ("seed", 0),
        ("eval_episodes", 0),
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
