"""`imel push`: publish a run with a model card on the Hugging Face hub, or into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from imel.cli.arguments import Flag, RunPath, parse
from imel.hub import push_to_hub

Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="REPO")]


@dataclass(frozen=True)
class PushArguments:
    """Publish a run: its model, settings, logs and pictures, with a model card made from them.

    Nothing else in the folder is sent. You are who `hf auth login` or HF_TOKEN says.

    examples:
      imel push runs/cheetah me/imel-cheetah                private, for you alone
      imel push runs/cheetah me/imel-cheetah --public --license mit
      imel push runs/cheetah ./shared/imel-cheetah          into a folder instead
    """

    run: RunPath
    """The run directory."""
    repo: Repository
    """USER/NAME on the hub; or a folder, if it begins with a dot, a slash or a tilde."""
    public: Flag = False
    """Make a new repository public. One that exists stays as it is."""
    license: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The licence of the model as the hub calls it, such as mit. By default none is given."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given: PushArguments = parse(PushArguments, argv, "imel push")
    print(push_to_hub(given.run, given.repo, private=not given.public, licence=given.license))
    return 0
