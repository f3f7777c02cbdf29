"""`imel plot`: a run's learning curve and policy, one of its updates, or its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from imel.cli.arguments import RunPath, parse
from imel.errors import ImelError
from imel.pictures.run import DOTS_PER_INCH, draw_run, training_surfaces, update_step
from imel.pictures.surface import save_animation
from imel.pictures.update import update_figure
from imel.runs import layout
from imel.runs.stored import find_run

_DESCRIPTION = """\
Draw a run's learning curve (curve.png) and its policy with the memories (policy.png) again.

`imel plot update RUN` draws one update step as in the paper's Figure 1, `imel plot animation RUN`
the policy from checkpoint to checkpoint; see `imel plot update --help`.

examples:
  imel plot runs/mountaincar
  imel plot runs/cheetah --action 3
  imel plot update runs/cheetah --iteration 40
  imel plot animation runs/mountaincar --out training.gif"""

_UPDATE = """\
Draw one update step as in the paper's Figure 1, against the first principal component of the
states: the old policy, the improved mean of each new experience, and the new policy.

A run keeps some checkpoints; the one nearest to --iteration is drawn. Its memory holds the last
batch it learned from, with the means of the policy that acted: nothing is played or trained again.

examples:
  imel plot update runs/cheetah
  imel plot update runs/cheetah --iteration 40 --action 3"""

_ANIMATION = """\
Draw the policy's mean over the state, and the memories, at each checkpoint of a run as a GIF. Of
a state with more than two dimensions the plane of the last model's principal components is shown.

A run keeps as many checkpoints as `imel train --checkpoints-kept` says.

examples:
  imel plot animation runs/mountaincar"""


@dataclass(frozen=True)
class PlotArguments:
    """What is drawn."""

    run: RunPath
    """A run directory, or a model file in one."""
    action: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The action dimension to show, from 0. By default the one that varies most in memory."""


@dataclass(frozen=True)
class AnimationArguments(PlotArguments):
    """Which run, and where the animation is written."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write. By default one in the run directory."""


@dataclass(frozen=True)
class UpdateArguments(AnimationArguments):
    """Which update, and where the picture is written."""

    iteration: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The number of the update, from 1; the nearest that a checkpoint knows is drawn. By default
    the last."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[Sequence[str]], Path]] = {
        "update": _draw_update,
        "animation": _draw_animation,
    }
    if argv and argv[0] in kinds:
        print(kinds[argv[0]](argv[1:]))
        return 0
    arguments: PlotArguments = parse(PlotArguments, argv, "imel plot", _DESCRIPTION)
    stored = find_run(arguments.run)
    for path in draw_run(stored.folder, stored.load(), stored.config, arguments.action):
        print(path)
    return 0


def _draw_update(argv: Sequence[str]) -> Path:
    arguments: UpdateArguments = parse(UpdateArguments, argv, "imel plot update", _UPDATE)
    out = _target(arguments, layout.UPDATE)
    figure = update_figure(update_step(arguments.run, arguments.iteration, arguments.action))
    figure.savefig(out, dpi=DOTS_PER_INCH)
    return out


def _draw_animation(argv: Sequence[str]) -> Path:
    name = "imel plot animation"
    arguments: AnimationArguments = parse(AnimationArguments, argv, name, _ANIMATION)
    out = _target(arguments, layout.ANIMATION)
    save_animation(training_surfaces(arguments.run, arguments.action), out)
    return out


def _target(arguments: AnimationArguments, name: str) -> Path:
    """The file to write, refused before anything is computed if it is of another kind."""
    if arguments.out is None:
        return (arguments.run if arguments.run.is_dir() else arguments.run.parent) / name
    suffix = Path(name).suffix
    if arguments.out.suffix.lower() != suffix:
        raise ImelError(f"{arguments.out} is not the name of a {suffix} file")
    return arguments.out
