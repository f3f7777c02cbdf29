"""Carrying out `imel tune`: search, summary, pictures, config, confirmation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState
from rich import box
from rich.console import Console
from rich.table import Table

from imel.bench.launch import choose_pool, launch, unfinished
from imel.bench.progress import GridProgress, SearchProgress
from imel.bench.run import Run
from imel.bench.store import Store
from imel.bench.tasks import find_task
from imel.errors import ImelError
from imel.pictures.style import DOTS_PER_INCH
from imel.report.statistics import difference_of_means, estimate, probability_of_improvement
from imel.runs.layout import write_json
from imel.tune import TuneArguments
from imel.tune.pictures import history_figure, importance_figure, importances
from imel.tune.search import Search
from imel.tune.study import Problem, completed, counted, default_trial, opened, value

BEST, CONFIRMATION = "best.json", "confirmation"
_SHOWN = 5
"""Trials and parameters of the summary."""
_FAILED = 1
_FIRST_SEED = 1000
"""Of those that confirm."""


def tune(arguments: TuneArguments, fixed: Mapping[str, Any], console: Console) -> int:
    """Search, summarise, write and confirm; the exit code. `fixed` settings are not searched."""
    problem = Problem(arguments.task, arguments.policy, arguments.steps, arguments.seeds, fixed)
    _ = problem.default  # refuses what cannot be run before anything is written
    name = re.sub(r"[^\w.-]+", "_", f"{problem.task}-{problem.policy}")
    folder = arguments.study or Path("runs/tune", name)
    with opened(folder, problem, arguments.seed) as (study, last):
        _search(study, problem, arguments, console)
        if not last():
            console.print("the study goes on in another process; the last one confirms and writes")
            return 0
        if len(counted(study)) < arguments.trials:  # some were of processes that were killed
            _search(study, problem, arguments, console)
        if not completed(study):
            raise ImelError(f"no trial of {arguments.trials} was completed{_first_error(study)}")
        _summarise(study, problem, console)
        written = _write(study, problem, folder)
        confirmed = _confirm(study, problem, arguments, Store(folder / CONFIRMATION), console)
    for path in written:
        console.out(f"written: {path}", highlight=False)
    console.out(f"use it: imel train --config {folder / BEST}", highlight=False)
    return 0 if confirmed else _FAILED


def _search(
    study: optuna.Study, problem: Problem, arguments: TuneArguments, console: Console
) -> None:
    ended, done = len(counted(study)), completed(study)
    best = value(done[0]) if done else None
    console.print(f"{max(0, arguments.trials - ended)} of {arguments.trials} trials to do")
    pool = choose_pool(arguments.ray, arguments.jobs)
    with SearchProgress(console, arguments.trials, ended, best) as progress:
        Search(study, problem, pool, progress).run(arguments.trials)


def _confirm(
    study: optuna.Study,
    problem: Problem,
    arguments: TuneArguments,
    store: Store,
    console: Console,
) -> bool:
    """Compare the best settings with the default ones on new seeds; False if a run failed."""
    best = completed(study)[0].params
    if best == problem.default:
        console.print("no better settings than the default ones were found")
        return True
    if not arguments.confirm_seeds:
        return True
    seeds = new_seeds(problem, arguments.confirm_seeds)
    ours, theirs = (
        [problem.run(settings, seed) for seed in seeds]
        for settings in (problem.overrides(best), problem.fixed)
    )
    todo = unfinished([*ours, *theirs], store)
    console.print(f"confirming on new seeds: {len(todo)} runs to do")
    pool = choose_pool(arguments.ray, arguments.jobs)
    with GridProgress(todo, console, problem.name_of) as progress:
        if launch(todo, store, pool, progress):
            return False
    for line in comparison_words(_returns(store, ours), _returns(store, theirs)):
        console.print(line, markup=False, soft_wrap=True)
    return True


def _returns(store: Store, runs: Sequence[Run]) -> list[float]:
    rows = (store.final_row(run.identity()) for run in runs)
    return [float(row["eval_return"]) for row in rows if row is not None]


def _summarise(study: optuna.Study, problem: Problem, console: Console) -> None:
    """The best trials and the default one, with the parameters that matter most."""
    names = list(importances(study))[:_SHOWN]
    trials, default = completed(study)[:_SHOWN], default_trial(study, problem)
    states = [trial.state for trial in counted(study)]
    table = Table(
        title=f"{problem.task}, {problem.policy}: {len(states)} trials, "
        f"{states.count(TrialState.PRUNED)} pruned, {states.count(TrialState.FAIL)} failed",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("trial", "return", *(f"seed {seed}" for seed in problem.seeds), *names):
        table.add_column(heading, justify="right", no_wrap=heading not in names, overflow="fold")
    for trial in trials:
        table.add_row(*_cells(trial, names, trial is default))
    if default is not None and default not in trials:
        table.add_row(*_cells(default, names, True))
    console.print(table)


def _cells(trial: FrozenTrial, names: list[str], is_default: bool) -> list[str]:
    seeds = [f"{result:.1f}" for result in trial.user_attrs["returns"]]
    drawn = [trial.params.get(name, "-") for name in names]
    parameters = [f"{each:.3g}" if isinstance(each, float) else str(each) for each in drawn]
    label = f"{trial.number} (default)" if is_default else str(trial.number)
    return [label, f"{value(trial):.1f}", *seeds, *parameters]


def _write(study: optuna.Study, problem: Problem, folder: Path) -> list[Path]:
    """The config of the best trial, and the pictures."""
    settings = problem.run(problem.overrides(completed(study)[0].params), seed=0).settings()
    settings["policy"] = problem.policy
    task = find_task(problem.task)
    # An environment that `imel train` would make differently is left for the user to name
    plain = task.wrapper is None and not task.env_kwargs
    environment = {"env": task.env_id} if plain else {}
    document = {**environment, "total_timesteps": problem.steps, **settings}
    write_json(folder / BEST, document)
    figures = {
        "history.png": history_figure(study, problem),
        "importance.png": importance_figure(study, problem),
    }
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in (BEST, *figures)]


def new_seeds(problem: Problem, number: int) -> list[int]:
    """Seeds that no trial has seen: the best of many noisy trials looks better than it is."""
    return list(islice((seed for seed in count(_FIRST_SEED) if seed not in problem.seeds), number))


def comparison_words(best: Sequence[float], default: Sequence[float]) -> list[str]:
    """The returns of both settings on the new seeds, and what follows from them."""
    pair = [np.array(best), np.array(default)]
    difference = estimate(difference_of_means, pair)
    lines = [
        f"{name:>8}: {' '.join(f'{result:.1f}' for result in returns)}  (mean {returns.mean():.1f})"
        for name, returns in zip(("best", "default"), pair, strict=True)
    ]
    return [
        *lines,
        f"on {len(best)} new seeds the best settings return {difference.value:+.1f} "
        f"[{difference.low:.1f}, {difference.high:.1f}] against the default ones (interquartile "
        "means, 95 % bootstrap interval); "
        f"P(better) = {float(probability_of_improvement(pair)):.2f}",
    ]


def _first_error(study: optuna.Study) -> str:
    errors = [trial.user_attrs["error"] for trial in counted(study) if "error" in trial.user_attrs]
    return f"; the first to fail: {errors[0]}" if errors else ""
