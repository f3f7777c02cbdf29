"""`imel probe`: interpolators judged apart from returns, on the memories of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from imel.cli.arguments import StoredRunArguments, parse, refuse_repeated_flags, wide_console
from imel.errors import SettingsError
from imel.pictures.probe import probe_figure
from imel.pictures.style import DOTS_PER_INCH
from imel.policies import Policy
from imel.probe.contestants import CONTESTANTS, find_contestant
from imel.probe.measures import KL, Judgement, acting_error, folds_of, judge, memories_of
from imel.runs.layout import PROBE, PROBE_PICTURE, write_json

_DESCRIPTION = f"""\
Judge interpolators on the memories of a run, apart from returns: leave episodes out, predict their
improved means and improvements from the others, and see how far the predictions go along the policy
gradient of the episodes left out.

  gain   E[A (a - mu) / sigma^2 . delta], delta being the predicted improvement scaled to a mean KL
         of {KL:g}: what the return gains to first order, in deviations of the advantage. Noise
         gains nothing
  error  squared error of improved means, as a share of their variance

Each has its standard error over episodes. A table is printed; probe.json and probe.png are written
beside the model.

A class of your own takes part by its dotted path. It has the methods fit(states, values) and
predict(states) of scikit-learn's estimators; states are normalised, values have unit deviation.

examples:
  imel probe runs/cheetah
  imel probe runs/cheetah --interpolators ridge mki sklearn.ensemble.ExtraTreesRegressor
  imel probe runs/cheetah --interpolators ridge mymodule.MyInterpolator"""


@dataclass(frozen=True)
class ProbeArguments(StoredRunArguments):
    """Which run, and which interpolators."""

    interpolators: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = tuple(
        CONTESTANTS
    )
    """Interpolators by name, or classes of your own by their dotted paths."""
    folds: int = 4
    """Parts that the episodes are divided into; each is left out once."""
    seed: int = 0
    """Seed of random features, first weights and draws."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    refuse_repeated_flags(argv)
    arguments: ProbeArguments = parse(ProbeArguments, argv, "imel probe", _DESCRIPTION)
    stored = arguments.open(folds=2, seed=0)
    names = tuple(dict.fromkeys(arguments.interpolators))
    if not names:
        raise SettingsError("--interpolators names none")
    sys.path.insert(0, str(Path.cwd()))  # where a user's module is, as for python -m
    fits = {name: find_contestant(name) for name in names}
    policy = Policy.load(str(stored.model_path))
    memories = memories_of(policy)
    folds = folds_of(memories.episodes, arguments.folds)
    judged: list[Judgement] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(fits) * len(folds))
        for name, fit in fits.items():
            bar.update(task, description=name)
            judged.append(
                judge(name, fit, memories, folds, arguments.seed, lambda: bar.advance(task))
            )
    judged.sort(key=lambda each: -each.gain.value)
    count, episodes = len(memories.states), len(torch.unique(memories.episodes))
    extent = f"{count:,} memories of {episodes:,} episodes"
    title = f"{stored.env or stored.title}, {type(policy).__name__}: {extent}"
    acting = acting_error(memories)
    document = {
        "model": str(stored.model_path),
        "memories": count,
        "episodes": episodes,
        "folds": len(folds),
        "seed": arguments.seed,
        "kl": KL,
        "acting_error": acting,
        "interpolators": [asdict(each) for each in judged],
    }
    write_json(stored.folder / PROBE, document)
    picture = stored.folder / PROBE_PICTURE
    probe_figure(title, acting, judged).savefig(picture, dpi=DOTS_PER_INCH)
    _print(title, judged, acting)
    print(f"written: {stored.folder / PROBE}, {picture}")
    return 0


def _print(title: str, judged: Sequence[Judgement], acting: float) -> None:
    """Print the table, the highest gain first."""
    console = wide_console()
    console.print(title, style="bold", highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("interpolator")
    for heading in (f"gain at KL {KL:g}", "error of improved means", "seconds"):
        table.add_column(heading, justify="right")
    for each in judged:
        table.add_row(
            each.name,
            f"{each.gain.value:+.4f} ± {each.gain.error:.4f}",
            f"{each.misfit.value:.3f} ± {each.misfit.error:.3f}",
            f"{each.seconds:.1f}",
        )
    console.print(table)
    console.print(f"error of the acting means, if they were known: {acting:.3f}", highlight=False)
