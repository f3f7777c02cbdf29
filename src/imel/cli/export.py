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

from imel import datasets
from imel.algorithm import IMeL
from imel.cli.arguments import StoredRunArguments, parse
from imel.datasets.columns import action_bounds
from imel.datasets.minari_files import minari_path
from imel.deploy import write_numpy, write_onnx
from imel.errors import ImelError
from imel.pictures.run_pictures import principal_plane
from imel.registry import name_of
from imel.runs import layout
from imel.runs.evaluation import EVALUATION_SEED
from imel.runs.stored import StoredRun, provenance

_ACTING = {"onnx": ("policy.onnx", write_onnx), "numpy": ("policy.npz", write_numpy)}
"""Formats of the policy itself: name of the file, and what writes it."""


@dataclass(frozen=True)
class ExportArguments(StoredRunArguments):
    """Write a run's policy to act without torch, or its memory and some episodes for other tools.

      onnx       policy.onnx: observation in, deterministic action out, for ONNX Runtime
      numpy      policy.npz: the arrays of a ridge policy; docs/deploy.md has a reader
      parquet    memory.parquet and evaluation.parquet: pandas, DuckDB, Embedding Atlas
      minari     two Minari datasets, .../memory-v0 and .../evaluation-v0: offline learning
      projector  the memories' features for TensorBoard's embedding projector

    Of the last three, each transition carries mean, improved mean, sigma and advantage.
    `imel train --warm-start` reads Parquet and Minari. Nothing is overwritten.

    examples:
      imel export runs/cheetah
      imel export runs/cheetah --format minari --episodes 100 --out imel/cheetah
    """

    format: Literal["onnx", "numpy", "parquet", "minari", "projector"] = "parquet"
    """What the files are made for."""
    episodes: int = 10
    """Episodes to play with the mean action; 0 for the memory alone. Not of onnx and numpy."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FOLDER|ID")] = None
    """A new folder, by default `export-FORMAT` in the run directory; of Minari datasets the part
    of the id before /memory-v0, by default imel/ENV-POLICY-seedN."""
    seed: int = EVALUATION_SEED
    """Seed of the first episode; each further one has the next."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: ExportArguments = parse(ExportArguments, argv, "imel export")
    stored, env = given.open(episodes=0), given.env
    acting = _ACTING.get(given.format)
    seeds = [] if acting else [given.seed + i for i in range(given.episodes)]
    if seeds:
        env = stored.environment(", or export the memory alone by --episodes 0")
    model = stored.load()
    target = _target(given, stored, model)  # refused before anything is played
    document = _document(model, stored, env or stored.env)
    if acting:
        path = Path(target, acting[0])
        acting[1](model.policy, path, document)
        print(f"{path}: {path.stat().st_size:,} bytes")
        return 0
    parts = {"memory": datasets.memory_columns(model.policy.memory)}
    if env is not None and seeds:
        parts["evaluation"] = datasets.play_episodes(model, env, seeds)
    embed, states = model.policy.embed, {n: torch.from_numpy(c["states"]) for n, c in parts.items()}
    if given.format == "projector":
        vectors = {source: embed(rows).numpy() for source, rows in states.items()}
        datasets.write_projector(Path(target), vectors, parts)
        print(f"{target}: show it by tensorboard --logdir {target}")
        return 0
    for source, columns in parts.items():
        document["source"] = source
        if given.format == "minari":
            name, played = f"{target}/{source}-v0", seeds if source == "evaluation" else None
            datasets.write_minari(name, columns, model.policy, document["env"], document, played)
            place = f" in {minari_path(name)}"
        else:
            plane = principal_plane(states["memory"], embed)
            x, y = plane.coordinates(states[source]).T
            name, place = f"{target}/{source}.parquet", ""
            document["projection"], extra = plane.labels, {"projection_x": x, "projection_y": y}
            datasets.write_parquet(Path(name), columns, document, extra)
        print(f"{name}: {len(columns['states']):,} transitions{place}")
    return 0


def _target(given: ExportArguments, stored: StoredRun, model: IMeL) -> str:
    """Return the folder, or the part of Minari's ids before the last, with nothing there yet."""
    target = given.out or str(stored.folder / f"export-{given.format}")
    places = [Path(target)]
    if given.format == "minari":
        parts = [stored.config.get("env"), name_of(type(model.policy)), f"seed{model.seed}"]
        name = re.sub(r"[^-_a-zA-Z0-9]", "-", "-".join(filter(None, parts)))
        target = given.out or f"imel/{name}"
        places = [minari_path(f"{target}/{source}-v0") for source in ("memory", "evaluation")]
    for place in places:
        if place.exists():
            raise ImelError(f"{place} exists already and is not overwritten: give another --out")
    return target


def _document(model: IMeL, stored: StoredRun, env: str | None) -> dict[str, Any]:
    """Return what made the rows."""
    return {
        "env": env,
        "policy": name_of(type(model.policy)),
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
