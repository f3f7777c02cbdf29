"""`imel export`: a run's policy, or its memory and episodes, as files other tools read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from gymnasium import spaces

from imel.algorithm import IMeL
from imel.cli.arguments import EnvironmentId, RunPath, parse, require_at_least
from imel.datasets import (
    Columns,
    memory_columns,
    play_episodes,
    write_minari,
    write_parquet,
    write_projector,
)
from imel.datasets.columns import action_bounds
from imel.datasets.minari_files import minari_path
from imel.deploy import write_numpy, write_onnx
from imel.errors import ImelError
from imel.explorer.insight import Insight
from imel.explorer.memory_map import make_plane
from imel.runs import layout
from imel.runs.evaluation import EVALUATION_SEED
from imel.runs.provenance import provenance
from imel.runs.stored import StoredRun, find_run

_DESCRIPTION = """\
Write a run's policy to act without torch, or its memory and some episodes for other tools.

  onnx       policy.onnx: observation in, deterministic action out, for ONNX Runtime
  numpy      policy.npz: the arrays of a RidgePolicy; docs/deploy.md has a reader
  parquet    memory.parquet and evaluation.parquet: pandas, DuckDB, Embedding Atlas
  minari     two Minari datasets, .../memory-v0 and .../evaluation-v0: offline learning
  projector  the memories' features for TensorBoard's embedding projector

Of the last three, each transition carries mean, improved mean, sigma and advantage.
`imel train --warm-start` reads Parquet and Minari. Nothing is overwritten.

examples:
  imel export runs/cheetah
  imel export runs/cheetah --format onnx
  imel export runs/cheetah --format minari --episodes 100 --out imel/cheetah
  imel export runs/cheetah --format projector --episodes 0 --out cheetah-projector"""


_ACTING = {"onnx": ("policy.onnx", write_onnx), "numpy": ("policy.npz", write_numpy)}
"""Formats of the policy itself: name of the file, and what writes it."""


@dataclass(frozen=True)
class ExportArguments:
    """What is written, and where."""

    run: RunPath
    """A run directory, or a model file."""
    format: Literal["onnx", "numpy", "parquet", "minari", "projector"] = "parquet"
    """What the files are made for."""
    episodes: int = 10
    """Episodes to play with the mean action; 0 for the memory alone. Not of onnx and numpy."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FOLDER|ID")] = None
    """A new folder, by default `export-FORMAT` in the run directory; of Minari datasets the part
    of the id before /memory-v0, by default imel/ENV-POLICY-seedN."""
    seed: int = EVALUATION_SEED
    """Seed of the first episode; each further one has the next."""
    env: EnvironmentId = None
    """Environment id, if not the one the run was trained on."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments: ExportArguments = parse(ExportArguments, argv, "imel export", _DESCRIPTION)
    require_at_least(arguments, episodes=0)
    torch.set_num_threads(1)
    stored = find_run(arguments.run, arguments.env)
    if arguments.format in _ACTING:
        return _export_policy(arguments, stored)
    env = stored.env
    if arguments.episodes:
        env = stored.environment(", or export the memory alone by --episodes 0")
    model = stored.load()
    parts = {"memory": memory_columns(model.policy.memory)}
    target = _target(arguments, stored, model)  # refused before anything is played
    seeds = [arguments.seed + i for i in range(arguments.episodes)]
    if env is not None and seeds:
        parts["evaluation"] = play_episodes(model, env, seeds)
    document = _document(model, stored, env)
    if arguments.format == "minari":
        for source, columns in parts.items():
            name = f"{target}/{source}-v0"
            about = {**document, "source": source}
            write_minari(
                name, columns, model.policy, env, about, seeds if source == "evaluation" else None
            )
            print(f"{name}: {len(columns['states']):,} transitions in {minari_path(name)}")
    elif arguments.format == "parquet":
        _write_parquet(Path(target), Insight(model.policy, model.dimension_names), parts, document)
    else:
        insight = Insight(model.policy, model.dimension_names)
        space = insight.features if insight.has_features else insight.normalised
        vectors = {source: space(columns["states"]) for source, columns in parts.items()}
        write_projector(Path(target), vectors, parts)
        print(f"{target}: show it by tensorboard --logdir {target}")
    return 0


def _export_policy(arguments: ExportArguments, stored: StoredRun) -> int:
    """Write a file to act with."""
    model = stored.load()
    name, write = _ACTING[arguments.format]
    path = Path(_target(arguments, stored, model)) / name
    write(model.policy, path, _document(model, stored, stored.env))
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def _target(arguments: ExportArguments, stored: StoredRun, model: IMeL) -> str:
    """The folder, or the part of Minari's ids before the last, with nothing there yet."""
    if arguments.format == "minari":
        target = arguments.out or _dataset_name(stored, model)
        for source in ("memory", "evaluation"):
            place = minari_path(f"{target}/{source}-v0")
            if place.exists():
                raise ImelError(f"the Minari dataset in {place} exists: give another --out")
        return target
    folder = Path(arguments.out or stored.folder / f"export-{arguments.format}")
    if folder.exists():
        raise ImelError(f"{folder} exists already and is not overwritten: give another --out")
    return str(folder)


def _dataset_name(stored: StoredRun, model: IMeL) -> str:
    policy = type(model.policy).__name__.removesuffix("Policy").lower()
    env = stored.config.get("env")
    name = "-".join([*([env] if env else []), policy, f"seed{model.seed}"])
    return f"imel/{re.sub(r'[^-_a-zA-Z0-9]', '-', name)}"


def _document(model: IMeL, stored: StoredRun, env: str | None) -> dict[str, Any]:
    """What made the rows."""
    return {
        "env": env,
        "policy": type(model.policy).__name__,
        "timesteps": model.num_timesteps,
        "iteration": model.iteration,
        "seed": model.seed,
        "settings": model.settings.as_json(),
        **action_bounds(model.action_space),
        "units": "actions, means and stds: the action range is [-1, 1]"
        if isinstance(model.action_space, spaces.Box)
        else "actions: indicators of what was chosen; means: logits; stds: one",
        "run": layout.read_table(stored.folder / layout.PROVENANCE) or None,
        "export": provenance(),
    }


def _write_parquet(
    folder: Path, insight: Insight, parts: dict[str, Columns], document: dict[str, Any]
) -> None:
    plane = make_plane(insight, "features" if insight.has_features else "states")
    about = {**document, "projection": list(plane.labels)}
    for source, columns in parts.items():
        points = plane.points(columns["states"])
        extra = {"projection_x": points[:, 0].copy(), "projection_y": points[:, 1].copy()}
        path = folder / f"{source}.parquet"
        write_parquet(path, columns, {**about, "source": source}, extra)
        print(f"{path}: {len(columns['states']):,} transitions")
