"""`imel plot`: a run's learning curve and policy, one of its updates, or its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from imel.cli.arguments import StoredRunArguments, parse
from imel.errors import ImelError
from imel.pictures.policy_figures import save_animation, update_figure
from imel.pictures.run_pictures import draw_run, training_surfaces, update_step
from imel.runs import layout


@dataclass(frozen=True)
class PlotArguments(StoredRunArguments):
    """Draw a run's learning curve (curve.png) and its policy with the memories (policy.png) again.

    `imel plot update RUN` draws one update step as in the paper's Figure 1, `imel plot animation
    RUN` the policy from checkpoint to checkpoint; see `imel plot update --help`.

    examples:
      imel plot runs/mountaincar
      imel plot runs/cheetah --action 3
      imel plot update runs/cheetah --iteration 40
      imel plot animation runs/mountaincar --out training.gif
    """

    action: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The action dimension to show, from 0. By default the one that varies most in memory."""


@dataclass(frozen=True)
class AnimationArguments(PlotArguments):
    """Draw the policy's mean over the state, and the memories, at each checkpoint as a GIF.

    Of a state with more than two dimensions the plane of the last model's principal components is
    shown. A run keeps as many checkpoints as `imel train --checkpoints-kept` says.

    examples:
      imel plot animation runs/mountaincar
    """

    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write. By default one in the run directory."""

    def target(self, name: str) -> Path:
        """Return the file to write; refuse one of another kind before anything is computed."""
        if self.out is None:
            return (self.run if self.run.is_dir() else self.run.parent) / name
        if self.out.suffix.lower() != Path(name).suffix:
            raise ImelError(f"{self.out} is not the name of a {Path(name).suffix} file")
        return self.out


@dataclass(frozen=True)
class UpdateArguments(AnimationArguments):
    """Draw one update step as in the paper's Figure 1.

    Against the first principal component of the states: the old policy, the improved mean of each
    new experience, and the new policy. A run keeps some checkpoints; the one nearest to --iteration
    is drawn. Its memory holds the last batch it learned from, with the means of the policy that
    acted: nothing is played or trained again.

    examples:
      imel plot update runs/cheetah
      imel plot update runs/cheetah --iteration 40 --action 3
    """

    iteration: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The number of the update, from 1; the nearest that a checkpoint knows is drawn. By default
    the last."""


_KINDS = {"update": UpdateArguments, "animation": AnimationArguments}


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    kind = argv[0] if argv and argv[0] in _KINDS else ""
    kind_arguments = _KINDS.get(kind, PlotArguments), argv[1:] if kind else argv
    given: Any = parse(*kind_arguments, f"imel plot {kind}".rstrip())
    stored = given.open()
    if kind == "update":
        written = [given.target(layout.UPDATE)]
        update_figure(update_step(stored, given.iteration, given.action)).savefig(written[0])
    elif kind == "animation":
        written = [given.target(layout.ANIMATION)]
        save_animation(training_surfaces(stored, given.action), written[0])
    else:
        written = draw_run(stored.folder, stored.load(), stored.config, given.action)
    print("\n".join(map(str, written)))
    return 0
