"""`imel train --track`: the tracked run beside a run directory, found again on resume."""

from __future__ import annotations

from pathlib import Path

from imel.cli import run_directory
from imel.cli.plan import Plan
from imel.trackers import TrackerOutput, new_identity, track


def tracker_output(plan: Plan, folder: Path) -> TrackerOutput | None:
    """The tracked run of a folder, a new one or that of before; None if it is not tracked."""
    if plan.run.track is None:
        return None
    path = folder / run_directory.TRACKING
    wanted = {"track": plan.run.track, "track_project": plan.run.track_project}
    stored = run_directory.read_json(path) if path.is_file() else {}
    if any(stored.get(key) != value for key, value in wanted.items()):
        stored = {**wanted, "identity": new_identity()}
        run_directory.write_json(path, stored)
    return track(
        plan.run.track, plan.run.track_project, folder.name, plan.as_json(), stored["identity"]
    )
