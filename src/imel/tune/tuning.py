"""Carrying out `imel tune`: search, summary, pictures, config, confirmation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib import pyplot
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState
from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances
from rich import box
from rich.console import Console
from rich.table import Table

from imel.bench.launch import launch, unfinished
from imel.bench.pool import Pool
from imel.bench.progress import GridProgress, SearchProgress
from imel.bench.run import Run
from imel.bench.store import Store
from imel.bench.tasks import find_task
from imel.errors import ImelError
from imel.report.statistics import difference_of_means, estimate, probability_of_improvement
from imel.runs.layout import write_json
from imel.tune.search import search
from imel.tune.study import Problem, completed, counted, default_trial, opened, value

BEST, HISTORY, IMPORTANCE = "best.json", "history.png", "importance.png"
MEASURE = "mean deterministic return"
_SHOWN = 5
"""Trials and parameters of the summary."""
_EVALUATOR = PedAnovaImportanceEvaluator(target_quantile=0.25)
"""Importance is what sets the best quarter of the trials apart from all of them."""


def tune(
    problem: Problem,
    folder: Path,
    console: Console,
    make_pool: Callable[[], Pool],
    *,
    trials: int,
    confirm_seeds: int,
    seed: int,
) -> int:
    """Search until there are so many trials, write what was found, confirm it; the exit code."""
    _ = problem.default  # refuses what cannot be run before anything is written
    with opened(folder, problem, seed) as (study, last):
        while True:  # twice if some trials were of processes that were killed
            ended, done = len(counted(study)), completed(study)
            console.print(f"{max(0, trials - ended)} of {trials} trials to do")
            best = value(done[0]) if done else None
            with SearchProgress(console, trials, ended, best) as progress:
                search(study, problem, make_pool(), progress, trials)
            if not last():
                console.print("the study goes on in another process; the last one confirms")
                return 0
            if len(counted(study)) >= trials:
                break
        if not completed(study):
            error = counted(study)[0].user_attrs["error"]
            raise ImelError(f"no trial of {trials} was completed; the first to fail: {error}")
        console.print(_summary(study, problem))
        _draw(study, problem, folder)
        settings = problem.overrides(completed(study)[0].params)
        _write_config(problem, settings, folder / BEST)
        for name in (BEST, HISTORY, IMPORTANCE):
            console.out(f"written: {folder / name}", highlight=False)
        if settings == problem.fixed:
            console.print("no better settings than the default ones were found")
        elif not confirm_seeds:
            console.print("not compared with the default settings on new seeds")
        else:
            seeds = new_seeds(problem, confirm_seeds)
            returns = _confirm(problem, settings, seeds, folder, console, make_pool())
            if returns is None:
                return 1
            lines, better = comparison(*returns)
            lines += [f"use it: imel train --config {folder / BEST}"] if better else []
            console.out("\n".join(lines), highlight=False)
    return 0


def _summary(study: optuna.Study, problem: Problem) -> Table:
    """The best trials and the default one, with the parameters that matter most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few trials: then all are equal
        names = list(get_param_importances(study, evaluator=_EVALUATOR))[:_SHOWN]
    done, default = completed(study), default_trial(study, problem)
    states = [trial.state for trial in counted(study)]
    table = Table(
        title=f"{problem.task}, {problem.policy}: {len(states)} trials, "
        f"{states.count(TrialState.PRUNED)} pruned, {states.count(TrialState.FAIL)} failed",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("trial", "return", *(f"seed {seed}" for seed in problem.seeds), *names):
        table.add_column(heading, justify="right", no_wrap=heading not in names, overflow="fold")
    for trial in [*done[:_SHOWN], *(each for each in done[_SHOWN:] if each is default)]:
        label = f"{trial.number} (default)" if trial is default else str(trial.number)
        returns = [f"{each:.1f}" for each in (value(trial), *trial.user_attrs["returns"])]
        drawn = [trial.params[name] for name in names]
        cells = [f"{each:.3g}" if isinstance(each, float) else str(each) for each in drawn]
        table.add_row(label, *returns, *cells)
    return table


def _draw(study: optuna.Study, problem: Problem, folder: Path) -> None:
    """Draw the returns of all trials beside the default's, and which parameters mattered."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's plots are experimental, and set a style
        history = plot_optimization_history(study, target_name=MEASURE)
        default = default_trial(study, problem)
        if default is not None:
            history.axhline(value(default), color="grey", ls="--", label="default settings")
            history.legend()
        importance = plot_param_importances(study, _EVALUATOR, target_name=MEASURE)
        for axes, name in ((history, HISTORY), (importance, IMPORTANCE)):
            axes.set_title("")  # Optuna's own stand in the middle or at the left
            axes.set_title(f"{problem.task}, {problem.policy}, {problem.steps:,} steps", loc="left")
            pyplot.figure(axes.figure)
            pyplot.savefig(folder / name, dpi=130, bbox_inches="tight")
            pyplot.close()


def _write_config(problem: Problem, settings: Mapping[str, Any], path: Path) -> None:
    """Write settings as a config of `imel train`."""
    task = find_task(problem.task)
    # An environment that `imel train` would make differently is left for the user to name
    environment = {} if task.wrapper or task.env_kwargs else {"env": task.env_id}
    document = {"total_timesteps": problem.steps, **problem.run(settings, seed=0).settings()}
    write_json(path, {**environment, **document, "policy": problem.policy})


def new_seeds(problem: Problem, number: int) -> list[int]:
    """Seeds that no trial has seen: the best of many noisy trials looks better than it is."""
    return list(islice((seed for seed in count(1000) if seed not in problem.seeds), number))


def _confirm(
    problem: Problem,
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    folder: Path,
    console: Console,
    pool: Pool,
) -> list[list[float]] | None:
    """The returns of settings and of the default ones on some seeds; None if a run failed."""
    groups = [[problem.run(each, seed) for seed in seeds] for each in (settings, problem.fixed)]
    store = Store(folder / "confirmation")

    def name_of(run: Run) -> str:
        return f"{'best' if run in groups[0] else 'default'} settings, seed {run.seed}"

    todo = unfinished([run for group in groups for run in group], store)
    console.print(f"confirming on new seeds: {len(todo)} runs to do")
    with GridProgress(todo, console, name_of) as progress:
        if launch(todo, store, pool, progress):
            return None
    rows = [[store.final_row(run.identity()) for run in group] for group in groups]
    return [[float(row["eval_return"]) for row in group if row is not None] for group in rows]


def comparison(best: Sequence[float], default: Sequence[float]) -> tuple[list[str], bool]:
    """The returns of both settings in words, and whether the first are better."""
    pair = [np.array(best), np.array(default)]
    difference = estimate(difference_of_means, pair)
    lines = [
        f"{name:>8}: {' '.join(f'{result:.1f}' for result in returns)}  (mean {returns.mean():.1f})"
        for name, returns in zip(("best", "default"), pair, strict=True)
    ]
    lines.append(
        f"on {len(best)} new seeds the best settings return {difference.value:+.1f} "
        f"[{difference.low:.1f}, {difference.high:.1f}] against the default ones (interquartile "
        "means, 95 % bootstrap interval); "
        f"P(better) = {float(probability_of_improvement(pair)):.2f}"
    )
    better = difference.low > 0.0  # of a single seed there is no interval
    return lines + ([] if better else ["not shown to be better than the default ones"]), better
