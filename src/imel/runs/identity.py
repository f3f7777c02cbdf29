"""Whose a file is: the run it belongs to, and all that decided its bits.

A run has an id from its birth. Its folder knows it by `provenance.json`, every checkpoint and model
by its manifest, beside policy, settings, versions, threads and device. A file of another run is
refused everywhere; a run that was made otherwise goes on only if that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imel.errors import CheckpointError
from imel.persistence import checkpoint
from imel.persistence.model import require_entries
from imel.persistence.resume import NAME, differences
from imel.runs import layout
from imel.runs.plan import POLICY_NAMES, Plan

_NOT_OF_THE_OUTCOME = (
    *("checkpoints_kept", "eval_episodes", "evaluations", "go_on_if_full"),
    *("progress_json", "track", "track_project"),
)


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plan's document decides the outcome of the run.

    Where on a machine a dataset lay does not, and is nobody's business.
    """
    chosen = {name: value for name, value in document.items() if name not in _NOT_OF_THE_OUTCOME}
    start = chosen.get("warm_start")
    if isinstance(start, str) and start.endswith(".parquet"):
        chosen["warm_start"] = Path(start).name
    return chosen


def run_id_of(folder: Path) -> str | None:
    """Return the id of the run in a folder; None where nothing names it."""
    found = layout.read_table(folder / layout.PROVENANCE).get("run")
    return found if isinstance(found, str) else None


def read_own(path: Path, folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's model or checkpoint; refuse that of another run."""
    _, manifest = checkpoint.read(path)
    require_entries(manifest, path)
    own, other = run_id_of(folder), manifest["run"]["id"]
    if own is not None and own != other:
        raise CheckpointError(f"{path} belongs to another run ({other[:12]}), not to {own[:12]}")
    policy = layout.read_table(folder / layout.CONFIG).get("policy")
    if policy is not None and policy != short_name(manifest["policy"]):
        raise CheckpointError(
            f"{path} holds a {manifest['policy']}, not the {policy} that {folder} is about"
        )
    name, iteration = NAME.fullmatch(path.name), manifest["progress"]["iteration"]
    if name is not None and int(name[1]) != iteration:
        raise CheckpointError(f"{path} is that of iteration {iteration}, not what its name says")
    return manifest


def short_name(policy: str) -> str:
    """Return the command line's name of a policy class."""
    names = {kind.__name__: name for name, kind in POLICY_NAMES.items()}
    return names.get(policy, policy)


def _choices(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for a model: its plan where a command made it, and its settings."""
    return {
        **outcome_of(manifest["run"]["plan"]),
        "policy": short_name(manifest["policy"]),
        "policy_kwargs": manifest["policy_kwargs"],
        "seed": manifest["seed"],
        **manifest["settings"],
    }


def differences_to_resume(manifest: Mapping[str, Any], plan: Plan) -> list[str]:
    """List all that would let a run end otherwise: choices, versions, threads, device."""
    then = {**_choices(manifest), **manifest["versions"], **manifest["circumstances"]}
    now = {
        **outcome_of(plan.as_json()),
        **checkpoint.library_versions(),
        **checkpoint.circumstances(),
        "device": plan.run.device,
    }
    return differences(then, now)


def differences_to_config(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """List where a model is not what the `config.json` beside it says."""
    then, now = _choices(manifest), outcome_of(config)
    known = then.keys() & now.keys()
    return differences(*({name: table[name] for name in known} for table in (then, now)))
