"""`imel plot`: a run's learning curve and policy, one of its updates, or its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from imel.cli.arguments import StoredRunArguments, parse
from imel.errors import SettingsError
from imel.pictures.policy_figures import save_animation, update_figure
from imel.pictures.run_pictures import draw_run, training_surfaces, update_step
from imel.runs import layout


@dataclass(frozen=True)
class PlotArguments(StoredRunArguments):
    """Draw a run's learning curve (curve.png) and its policy with the memories (policy.png) again.

    `imel plot update RUN` draws one update step as in the paper's Figure 1: the old policy, what
    each new experience asked for, and the new policy, over the first principal component of the
    states. `imel plot animation RUN` draws the policy at each checkpoint, as a GIF; a run keeps as
    many as `imel train --checkpoints-kept` says. Nothing is played or trained again.

    examples:
      imel plot runs/mountaincar
      imel plot runs/cheetah --action 3
      imel plot update runs/cheetah --iteration 40
      imel plot animation runs/mountaincar --out training.gif
    """

    action: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """The action dimension to show, from 0. By default the one that varies most in memory."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file of an update or animation. By default update.png or policy.gif in the run."""
    iteration: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """Of the update, from 1; the nearest that a checkpoint knows is drawn. By default the last."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    kinds = {"update": layout.UPDATE, "animation": layout.ANIMATION}
    kind = argv[0] if argv and argv[0] in kinds else ""
    name, words = kinds.get(kind, ""), argv[1:] if kind else argv
    given: PlotArguments = parse(PlotArguments, words, f"imel plot {kind}".rstrip())
    stored = given.open()
    if (given.out and not kind) or (given.iteration is not None and kind != "update"):
        raise SettingsError("--out is for update and animation, --iteration for update alone")
    if given.out and given.out.suffix.lower() != Path(name).suffix:  # before anything is computed
        raise SettingsError(f"{given.out} is not the name of a {Path(name).suffix} file")
    written = [given.out or stored.folder / name]
    if kind == "update":
        update_figure(update_step(stored, given.iteration, given.action)).savefig(written[0])
    elif kind == "animation":
        save_animation(training_surfaces(stored, given.action), written[0])
    else:
        written = draw_run(stored.folder, stored.load(), stored.config, given.action)
    print("\n".join(map(str, written)))
    return 0
