"""Judge interpolators on the memories of a run, apart from returns.

    python -m benchmarks.probe runs/cheetah
    python -m benchmarks.probe runs/cheetah --interpolators ridge mki mymodule.MyInterpolator

Whole episodes are left out, fold by fold, so that every memory is predicted by an interpolator that
has seen nothing of its episode. Two things are interpolated, each by a fit of its own:

- the improved means mu*, as the paper's policies do. Their squared error is the `error`, as a share
  of their variance;
- the improvements mu* - mu, as `RidgePolicy` does. The prediction delta is scaled to a fixed mean
  KL and judged by the policy gradient of the episode that was left out:

      gain = E[A (a - mu) / sigma^2 . delta]

  It is the change of the return to first order, in deviations of the advantage; zero for a
  prediction that has nothing to do with advantages.

Both have standard errors over episodes. A table is printed; probe.json and probe.png are written
beside the model. A class of your own takes part by its dotted path. It has the methods
fit(states, values) and predict(states) of scikit-learn's estimators.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.common import flags, run
from benchmarks.interpolators import INTERPOLATORS, Fit, find_interpolator
from imel.cli.arguments import wide_console
from imel.data.experience import Context
from imel.distributions import Distribution
from imel.errors import ImelError
from imel.policies import Policy, RidgePolicy
from imel.runs.layout import BEST, write_json
from imel.runs.stored import find_run

KL = RidgePolicy.Settings().trust_region
"""Mean KL that predicted improvements are scaled to."""


class Estimate(NamedTuple):
    """A mean over memories and its standard error over episodes."""

    value: float
    error: float

    def text(self, digits: int, sign: str = "") -> str:
        """Return both with so many digits."""
        return f"{self.value:{sign}.{digits}f} ± {self.error:.{digits}f}"


@dataclass(frozen=True)
class Judgement:
    """What an interpolator came to on held-out episodes."""

    name: str
    misfit: Estimate
    """Squared error of improved means, as a share of their variance."""
    gain: Estimate
    """Held-out improvement at the fixed KL."""
    seconds: float


@dataclass(frozen=True)
class Memories:
    """The memories of a run, and what each asks for."""

    states: Tensor  # [N, d_s] normalised
    means: Tensor  # [N, d_a] mu
    improved_means: Tensor  # [N, d_a] mu*
    stds: Tensor  # [N, d_a] sigma
    gradients: Tensor  # [N, d_a] A (a - mu) / sigma^2
    episodes: Tensor  # [N]
    distribution: Distribution


def memories_of(policy: Policy) -> Memories:
    """Return the memories of a policy, each improved once, from the policy that acted.

    A `RidgePolicy` improves memories again from where it stands. That is no fair judge: it has been
    taught by the very episodes that are left out here.
    """
    memory, distribution = policy.memory, policy.distribution
    if not len(memory) or memory.holds_prior:
        raise ImelError("the policy remembers no experience yet: there is nothing to probe")
    column = memory.column
    means, stds = column("behaviour_means"), column("stds")
    asked = column("improved_means") - column("means")
    budget = float(distribution.kls(asked, column("means"), stds).mean())
    improved, eta = distribution.improve(
        column("advantages"), column("actions"), means, stds, budget
    )  # Alg. 1 l. 9 and 11
    if eta == 0.0:
        raise ImelError("no memory asks for an improvement: there is nothing to probe")
    return Memories(
        policy.normaliser(column("states")),
        means,
        improved,
        stds,
        (improved.double() - means) / eta,
        column("episodes"),
        distribution,
    )


def folds_of(episodes: Tensor, count: int) -> list[Tensor]:
    """Return the rows of each fold: whole episodes, the longest first into the emptiest fold."""
    names, sizes = torch.unique(episodes, return_counts=True)
    if len(names) < 2:
        raise ImelError("the memories are of one episode: there is none to leave out")
    held = [list[int]() for _ in range(min(count, len(names)))]
    filled = [0] * len(held)
    for place in sizes.argsort(descending=True, stable=True).tolist():
        emptiest = filled.index(min(filled))
        held[emptiest].append(int(names[place]))
        filled[emptiest] += int(sizes[place])
    return [torch.isin(episodes, torch.tensor(each)).nonzero().flatten() for each in held]


def judge(name: str, fit: Fit, memories: Memories, folds: Sequence[Tensor], seed: int) -> Judgement:
    """Predict every memory without its episode, and judge the predictions."""
    started = time.perf_counter()
    means, steps = torch.empty_like(memories.means), torch.empty_like(memories.means)
    improvements = memories.improved_means - memories.means
    for number, rows in enumerate(folds):
        for values, predictions in ((memories.improved_means, means), (improvements, steps)):
            generator = torch.Generator().manual_seed(seed + number)
            try:
                predictions[rows] = _predicted(fit, memories, values, rows, generator)
            except Exception as error:  # of a user's class
                raise ImelError(f"'{name}' failed: {type(error).__name__}: {error}") from error
    if not (means.isfinite().all() and steps.isfinite().all()):
        raise ImelError(f"'{name}' predicts what is not finite")
    centre = memories.improved_means.mean(dim=0)
    variance = (memories.improved_means - centre).double().square().sum(dim=1).mean()
    errors = (means - memories.improved_means).double().square().sum(dim=1)
    return Judgement(
        name,
        _estimate(errors / variance.clamp_min(1e-30), memories.episodes),
        gain(memories, steps),
        time.perf_counter() - started,
    )


def gain(memories: Memories, shifts: Tensor) -> Estimate:
    """Return E[gradient . shift], with shifts scaled to the fixed mean KL."""
    scale = memories.distribution.step_length(
        shifts, memories.means, memories.stds, len(shifts), KL, float("inf")
    )
    return _estimate((memories.gradients * shifts.double()).sum(dim=1) * scale, memories.episodes)


def acting_error(memories: Memories) -> float:
    """Return the error of whoever knows the acting means: what improvements add to them."""
    improvements = (memories.improved_means - memories.means).double().square().sum(dim=1).mean()
    variance = memories.improved_means.double().var(dim=0, unbiased=False).sum()
    return float(improvements / variance.clamp_min(1e-30))


def _predicted(
    fit: Fit, memories: Memories, values: Tensor, held: Tensor, generator: torch.Generator
) -> Tensor:
    """Return predictions at held-out rows from all others; values are fitted in deviations."""
    others = torch.ones(len(values), dtype=torch.bool)
    others[held] = False
    seen = values[others]
    centre, scale = seen.mean(dim=0), seen.std(dim=0).clamp_min(1e-9)
    context = Context(memories.states[others], (seen - centre) / scale, memories.episodes[others])
    return fit(context, generator)(memories.states[held]) * scale + centre


def _estimate(values: Tensor, episodes: Tensor) -> Estimate:
    """Return the mean of rows, and its standard error with episodes as what is independent."""
    names, member = torch.unique(episodes, return_inverse=True)
    mean = values.mean()
    deviations = values.new_zeros(len(names)).index_add(0, member, values - mean)
    variance = deviations.square().sum() * len(names) / (len(names) - 1)
    return Estimate(float(mean), float(variance.sqrt()) / len(values))


def draw(title: str, acting: float, judged: Sequence[Judgement]) -> Figure:
    """Draw gains on the left and errors on the right, a line for each interpolator."""
    figure = Figure(figsize=(11, 1.8 + 0.36 * len(judged)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title, fontsize=13)
    places = np.arange(len(judged))[::-1]
    for axes, kind, colour in ((left, "gain", "#2166ac"), (right, "misfit", "#e08214")):
        values, errors = np.array([getattr(each, kind) for each in judged]).T
        axes.errorbar(values, places, xerr=errors, fmt="o", capsize=4, linewidth=2, color=colour)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.axvline(0.0, color="#8a8a8a", linewidth=1)
    left.set_yticks(places, [each.name for each in judged])
    left.set_ylim(-0.6, len(judged) - 0.4)
    left.set_title("more is better", fontsize=10)
    left.set_xlabel(f"gain: held-out improvement at a mean KL of {KL:g}\n(± standard error)")
    right.axvline(acting, color="#8a8a8a", linestyle="--", linewidth=1, label="acting means, known")
    right.set_xscale("log")
    right.set_title("less is better", fontsize=10)
    right.set_xlabel("held-out error of improved means\n(share of their variance)")
    figure.legend(loc="outside lower center", fontsize=9)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Judge the interpolators, the highest gain first."""
    parser = flags(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a model file")
    parser.add_argument("--env", help="environment id, if not the one of the run")
    parser.add_argument("--best", action="store_true", help="the best model, not the last one")
    parser.add_argument("--threads", type=int, default=1, help="of the linear algebra")
    parser.add_argument("--interpolators", nargs="+", default=list(INTERPOLATORS), metavar="NAME")
    parser.add_argument("--folds", type=int, default=4, help="each is left out once")
    parser.add_argument("--seed", type=int, default=0, help="of features, first weights and draws")
    arguments = parser.parse_args(argv)
    if arguments.folds < 2:
        parser.error("--folds must be at least 2")
    torch.set_num_threads(arguments.threads)
    stored = find_run(arguments.run / BEST if arguments.best else arguments.run, arguments.env)
    sys.path.insert(0, str(Path.cwd()))  # where a user's module is
    fits = {name: find_interpolator(name) for name in arguments.interpolators}
    policy = Policy.load(stored.model_path)
    memories = memories_of(policy)
    folds = folds_of(memories.episodes, arguments.folds)
    shown = track(fits.items(), "judging", console=Console(stderr=True), transient=True)
    judged = [judge(name, fit, memories, folds, arguments.seed) for name, fit in shown]
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
    write_json(stored.folder / "probe.json", document)
    draw(title, acting, judged).savefig(stored.folder / "probe.png", dpi=130)
    table = Table("interpolator", box=None, pad_edge=False)
    for heading in (f"gain at KL {KL:g}", "error of improved means", "seconds"):
        table.add_column(heading, justify="right")
    for each in judged:
        numbers = each.gain.text(4, "+"), each.misfit.text(3), f"{each.seconds:.1f}"
        table.add_row(each.name, *numbers)
    console = wide_console()
    console.print(title, style="bold", highlight=False)
    console.print(table)
    console.print(f"error of the acting means, if they were known: {acting:.3f}", highlight=False)
    print(f"written: {stored.folder / 'probe.json'}, {stored.folder / 'probe.png'}")


if __name__ == "__main__":
    run(main)
