"""`imel pull`: get a published run into a run directory, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.cli.arguments import parse
from imel.cli.push import Repository
from imel.errors import ImelError
from imel.hub import pull_from_hub


@dataclass(frozen=True)
class PullArguments:
    """Get a published run.

    Only files of known kinds are fetched, none of which holds code, and the model's checksums are
    compared.

    examples:
      imel pull me/imel-cheetah                     into runs/imel-cheetah
      imel pull me/imel-cheetah --revision v1 --run-dir runs/first
      imel pull ./shared/imel-cheetah
    """

    repo: Repository
    """USER/NAME on the hub; or a folder, if it begins with a dot, a slash or a tilde."""
    revision: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """A branch, a tag or a commit. By default the newest."""
    run_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """A new folder for the run. By default runs/NAME."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: PullArguments = parse(PullArguments, argv, "imel pull")
    name = Path(given.repo).name
    if given.run_dir is None and name in ("", ".."):
        raise ImelError(f"{given.repo} has no name for a run: give one by --run-dir DIR")
    folder = given.run_dir or Path("runs", name)
    pull_from_hub(given.repo, folder, revision=given.revision)
    print(folder)
    return 0
