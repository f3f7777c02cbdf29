"""Files: models, policies and runs, without pickle."""

from imel.checkpoints.checkpoint import Checkpoint, read_document
from imel.checkpoints.run_checkpoints import RunCheckpoints, checkpoints_in, latest_checkpoint

__all__ = [
    "Checkpoint",
    "RunCheckpoints",
    "checkpoints_in",
    "latest_checkpoint",
    "read_document",
]
