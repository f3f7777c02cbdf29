"""`imel resume`: go on with a run from its last checkpoint, as if it had never stopped."""

from imel.cli.train import resume as run

__all__ = ["run"]
