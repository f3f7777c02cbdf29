"""A run's plan, and what is stored of it: a folder, or a single model file.

Whatever decides the outcome is in the plan, whose written form is `config.json`. A run has an id
from its birth, in `provenance.json` and in every file: one of another run is refused everywhere.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from imel.algorithm import IMeL
from imel.checkpoints import Checkpoint, checkpoints_in, read_document
from imel.checkpoints.checkpoint import Source, library_versions, path_for
from imel.checkpoints.model_file import require_model
from imel.checkpoints.run_checkpoints import NAME, differences, iteration_of
from imel.errors import CheckpointError, ImelError, SettingsError, nearest_name
from imel.extras import require
from imel.registry import find_policy, loaded_policy, policy_names
from imel.runs import layout
from imel.settings import Settings, setting, setting_names, updated

_MOST = 2**31 - 1

TRACKERS = {"wandb": "step", "trackio": "_next_step"}
"""Packages that track runs, and the attribute of their runs that is the next step."""


@dataclass(frozen=True)
class RunArguments:
    """What learns, for how long, and how it is evaluated."""

    policy: Annotated[
        str, tyro.conf.arg(metavar="{" + ",".join(policy_names()) + "}|MODULE:CLASS")
    ] = "ridge"
    """What learns: `ridge`, one of the paper's policies, or a class of your own."""
    total_timesteps: int = setting(100_000, high=_MOST)
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
    def of(
        cls, document: Mapping[str, Any], source: str | None = None, policy: str | None = None
    ) -> Self:
        """Return the plan of a document, or its plan for another policy; refuse bad entries.

        A class of its user's own is imported only if `policy` names it: a file runs no code.
        """
        entries = {**document, **({} if policy is None else {"policy": policy})}
        steps, env, held = (entries.get(n) for n in ("total_timesteps", "env", "policy"))
        if isinstance(steps, float) and steps.is_integer():  # 1e5
            entries["total_timesteps"] = int(steps)
        try:
            if policy is None and ":" in str(held) and loaded_policy(str(held)) is None:
                raise SettingsError(f"names a policy of its user's own: add --policy {held}")
            if not isinstance(env, str | None):
                raise SettingsError(f"env={env!r} is not the id of an environment")
            run = updated(RunArguments(), {n: entries.pop(n) for n in _RUN if n in entries})
            if run.track is not None:
                check_tracker(run.track)
            entries.pop("env", None)
            settings = find_policy(run.policy).make_settings(entries, ("env", *_RUN))
        except SettingsError as error:
            raise SettingsError(str(error) if source is None else f"{source}: {error}") from None
        return cls(env or "", run, settings)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `--config` reads back as this plan."""
        return {"env": self.env, **asdict(self.run), **self.settings.as_json()}


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plan's document decides the outcome of the run."""
    chosen = {name: value for name, value in document.items() if name not in _NOT_OF_THE_OUTCOME}
    start = chosen.get("warm_start")
    if isinstance(start, str) and start.endswith(".parquet"):  # where it lay is nobody's business
        chosen["warm_start"] = Path(start).name
    return chosen


def check_tracker(tracker: str) -> Any:
    """Return the package of a tracker; refuse one that is absent or would not take a run."""
    if tracker not in TRACKERS:
        raise SettingsError(f"unknown tracker '{tracker}'; {nearest_name(tracker, TRACKERS)}")
    module = require(tracker, tracker)
    if tracker == "wandb" and module.setup().settings.mode in ("online", "shared"):
        try:
            module.login()
        except module.Error as error:
            raise ImelError(f"wandb: {error} (WANDB_MODE=offline needs no account)") from None
    return module


# --- on disk ---


@dataclass(frozen=True)
class StoredModel:
    """A model file of a run, without its tensors; `problem` is why it cannot be opened, if so."""

    path: Path
    iteration: int | None
    timesteps: int | None
    problem: str | None = None

    @property
    def label(self) -> str:
        """The name that is shown to users."""
        return self.path.stem if self.iteration is None else f"iteration {self.iteration}"


@dataclass(frozen=True)
class StoredRun:
    """A run directory, or a model file; `paths` are its models from the oldest to the newest."""

    place: Path
    folder: Path
    """Where the model is, with what belongs to it."""
    paths: tuple[Path, ...]
    env: str | None
    """The environment it was trained on, or another one that was asked for, if any is known."""
    config: dict[str, Any]
    """What is in config.json; empty for a model without one beside it."""
    run_id: str | None
    """The run's id by its folder; None of a model file, and where nothing names it."""

    @classmethod
    def of(cls, place: Path, env: str | None = None) -> StoredRun:
        """Read what a place says of its run; there may be no model yet."""
        if place.is_dir():
            last, folder = place / layout.MODEL, place
            older = checkpoints_in(folder / layout.CHECKPOINTS)
            run_id = layout.read_table(folder / layout.PROVENANCE).get("run")
        else:
            last = place if place.is_file() else path_for(place)
            folder, older, run_id = last.parent, [], None
        config = layout.read_table(folder / layout.CONFIG)
        if not isinstance(config.get("env"), str | None):
            raise ImelError(f"{place} names no environment in its {layout.CONFIG}")
        paths, known = [*older, last] if last.is_file() else older, env or config.get("env")
        run_id = run_id if isinstance(run_id, str) else None
        return cls(place, folder, tuple(paths), known, config, run_id)

    @property
    def title(self) -> str:
        """A short name."""
        return self.place.resolve().name

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The file of the trained model, read once; one of another run is refused."""
        path = self.paths[-1]
        if self.folder != self.place:
            return Checkpoint.read(path)
        if path.name != layout.MODEL:
            raise ImelError(f"{self.place} holds no model ({layout.MODEL})")
        read = self.own(path)
        if found := differences_to(read.document, {**self.config, **library_versions()}):
            warnings.warn(f"{path} was made otherwise: {'; '.join(found)}", stacklevel=2)
        return read

    @property
    def model_path(self) -> Path:
        """The file of the trained model, verified."""
        return self.checkpoint.path

    @cached_property
    def models(self) -> tuple[StoredModel, ...]:
        """What the manifests of all models say."""
        return tuple(describe(path, self.run_id) for path in self.paths)

    def own(self, file: Source) -> Checkpoint:
        """Read a model or checkpoint of this run; refuse that of another one."""
        read = Checkpoint.read(file)
        require_model(read)
        path, document, place = read.path, read.document, self.place
        run, iteration = document["run"]["id"], document["progress"]["iteration"]
        if self.run_id not in (None, run):
            raise CheckpointError(f"{path} belongs to another run ({run[:12]}), not to {place}")
        held, policy = document["policy"], self.config.get("policy")
        if policy not in (None, held):
            raise CheckpointError(f"{path} holds {held}, not the {policy} that {place} is about")
        if NAME.fullmatch(path.name) and iteration_of(path) != iteration:
            raise CheckpointError(f"{path} is of iteration {iteration}, not what its name says")
        return read

    def load(self) -> IMeL:
        """Return the trained model."""
        return IMeL.load(self.checkpoint)

    def environment(self, otherwise: str = "") -> str:
        """Return the environment, or refuse to go on without one."""
        if self.env is None:
            beside = f"no config.json beside {self.paths[-1]}"
            raise ImelError(f"{beside}: name the environment by --env{otherwise}")
        return self.env


def find_run(place: Path, env: str | None = None) -> StoredRun:
    """Find the models of a run directory, or a single model file."""
    run = StoredRun.of(place, env)
    if not run.paths:
        raise ImelError(f"{place} holds no model: it is neither the folder of a run nor a file")
    return run


def describe(path: Path, own: str | None = None) -> StoredModel:
    """Read how far a model was trained; its tensors are read and checked when it is opened."""
    try:
        document = read_document(path)
        if own is not None and document["run"]["id"] != own:
            return StoredModel(path, None, None, f"{path.name} belongs to another run")
        done = [document.get("progress", {}).get(name) for name in ("iteration", "num_timesteps")]
        if all(number is None or type(number) is int for number in done):
            return StoredModel(path, *done)
    except (AttributeError, LookupError, TypeError, CheckpointError):
        pass
    return StoredModel(path, None, None, f"{path.name} is damaged or no imel checkpoint")


def differences_to(
    document: Mapping[str, Any], now: Mapping[str, Any], known_only: bool = True
) -> list[str]:
    """List where a file was made otherwise than by a plan's document, versions and circumstances.

    :param known_only: whether what is named on one side only does not count
    """
    own = {"policy": document["policy"], "seed": document["seed"], **document["settings"]}
    then = {**outcome_of(document["run"]["plan"]), **own}
    then |= {**document["versions"], **document["circumstances"]}
    names = then.keys() & now.keys() if known_only else then.keys() | now.keys()
    return differences(*({n: table.get(n) for n in names} for table in (then, outcome_of(now))))


def provenance() -> dict[str, Any]:
    """Return what produces a result: commit, changes since, library versions, processor."""
    contrib = next((found.version for found in distributions(name="sb3_contrib")), "absent")
    versions, commit, dirty = {**library_versions(), "sb3_contrib": contrib}, "unknown", None
    # An installed copy may lie inside some other repository, whose commit says nothing of it
    if _git("ls-files", "--error-unmatch", "__init__.py"):
        commit = _git("rev-parse", "HEAD") or commit
        dirty = bool(_git("--no-optional-locks", "status", "--porcelain", "--", "."))
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.is_file() else "")
    name = next(iter(names), platform.processor() or platform.machine())
    processor = f"{name.strip()}, {os.cpu_count()} cores"  # seconds of others do not compare
    return {"commit": commit, "dirty": dirty, "versions": versions, "processor": processor}


def _git(*arguments: str) -> str | None:
    """Return what git says in the package's folder; None if it fails or is not installed."""
    try:
        command = ["git", "-C", str(Path(__file__).resolve().parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
