"""Which files of a run are published or taken in: those of known kinds, none of which holds code.

Everything else, a pickle above all, is neither sent nor fetched.
"""

from __future__ import annotations

import json
from pathlib import Path

from imel.errors import CheckpointError, ImelError
from imel.persistence import checkpoint
from imel.persistence.saving import require_entries
from imel.runs.layout import (
    CONFIG,
    CURVE,
    EVALUATION,
    MODEL,
    MONITOR,
    POLICY,
    PROGRESS,
    PROVENANCE,
    read_table,
)

CARD = "README.md"
KNOWN = (
    *(CARD, MODEL, CONFIG, EVALUATION, PROVENANCE, CURVE, POLICY),
    *(PROGRESS, MONITOR),
)
_PNG = b"\x89PNG\r\n\x1a\n"


def run_files(folder: Path) -> dict[str, bytes]:
    """What is published of a run directory beside the card, checked."""
    if not (folder / MODEL).is_file():
        raise ImelError(f"{folder} holds no model ({MODEL})")
    check_files(folder)
    names = [name for name in KNOWN if name != CARD and (folder / name).is_file()]
    files = {name: (folder / name).read_bytes() for name in names}
    if CONFIG in files:
        files[CONFIG] = _without_paths(files[CONFIG])
    return files


def check_files(folder: Path) -> None:
    """Refuse a damaged model, and files that are not what their names say."""
    _, manifest = checkpoint.read(folder / MODEL)
    if manifest["kind"] != "model":
        raise CheckpointError(f"{folder / MODEL} holds a {manifest['kind']}, not a whole model")
    require_entries(manifest, folder / MODEL)
    for name in (CONFIG, EVALUATION, PROVENANCE):
        read_table(folder / name)
    for name in (CURVE, POLICY):
        path = folder / name
        if path.is_file() and not path.read_bytes().startswith(_PNG):
            raise ImelError(f"{path} is no PNG file")


def _without_paths(config: bytes) -> bytes:
    """Where on this machine a dataset lay is nobody's business."""
    document = json.loads(config)
    start = document.get("warm_start")
    if isinstance(start, str) and start.endswith(".parquet"):
        document["warm_start"] = Path(start).name
    return (json.dumps(document, indent=2) + "\n").encode()
