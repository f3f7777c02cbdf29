"""Carrying out `imel tune`: search, summary, pictures, config, confirmation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from imel.pictures.run import DOTS_PER_INCH
from imel.report.statistics import (
    Estimate,
    difference_of_means,
    estimate,
    probability_of_improvement,
)
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
    folder = arguments.study or Path("runs/tune") / _file_name(f"{problem.task}-{problem.policy}")
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
    ours, theirs = runs_to_compare(problem, problem.overrides(best), seeds)
    todo = unfinished([*ours, *theirs], store)
    console.print(f"confirming on new seeds: {len(todo)} runs to do")
    pool = choose_pool(arguments.ray, arguments.jobs)
    with GridProgress(todo, console, problem.name_of) as progress:
        launch(todo, store, pool, progress)
    comparison = compare(store, ours, theirs)
    if comparison is not None:
        _say(comparison, console)
    return comparison is not None


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
    for column in ("trial", "return", *(f"{seed}" for seed in problem.seeds), *names):
        heading = f"seed {column}" if column.isdigit() else column
        table.add_column(heading, justify="right", no_wrap=column not in names, overflow="fold")
    for trial in trials:
        table.add_row(*_cells(trial, names, trial is default))
    if default is not None and default not in trials:
        table.add_row(*_cells(default, names, True))
    console.print(table)


def _cells(trial: FrozenTrial, names: list[str], is_default: bool) -> list[str]:
    seeds = [f"{result:.1f}" for result in trial.user_attrs["returns"]]
    parameters = [_short(trial.params.get(name, "-")) for name in names]
    label = f"{trial.number} (default)" if is_default else str(trial.number)
    return [label, f"{value(trial):.1f}", *seeds, *parameters]


def _short(parameter: Any) -> str:
    return f"{parameter:.3g}" if isinstance(parameter, float) else str(parameter)


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


def _say(comparison: Comparison, console: Console) -> None:
    """The returns of both settings on the new seeds, and what follows from them."""
    for name, returns in (("best", comparison.best), ("default", comparison.default)):
        listed = " ".join(f"{result:.1f}" for result in returns)
        console.print(f"{name:>8}: {listed}  (mean {sum(returns) / len(returns):.1f})")
    difference = comparison.difference()
    console.print(
        f"on {len(comparison.seeds)} new seeds the best settings return {difference.value:+.1f} "
        f"[{difference.low:.1f}, {difference.high:.1f}] against the default ones (interquartile "
        f"means, 95 % bootstrap interval); P(better) = {comparison.probability():.2f}",
        markup=False,
        soft_wrap=True,
    )


def _first_error(study: optuna.Study) -> str:
    errors = [trial.user_attrs["error"] for trial in counted(study) if "error" in trial.user_attrs]
    return f"; the first to fail: {errors[0]}" if errors else ""


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)


# --- confirmation on new seeds: the best of many noisy trials looks better than it is ---


@dataclass(frozen=True)
class Comparison:
    """Final deterministic returns of two settings, seed by seed."""

    seeds: list[int]
    best: list[float]
    default: list[float]

    def difference(self) -> Estimate:
        """By how much the best settings are better: of interquartile means, with its interval."""
        return estimate(difference_of_means, [np.array(self.best), np.array(self.default)])

    def probability(self) -> float:
        """How often a run of the best settings beats one of the default ones."""
        pair = [np.array(self.best), np.array(self.default)]
        return float(probability_of_improvement(pair))


def new_seeds(problem: Problem, number: int) -> list[int]:
    """Seeds that no trial has seen."""
    return list(islice((seed for seed in count(_FIRST_SEED) if seed not in problem.seeds), number))


def runs_to_compare(
    problem: Problem, best: Mapping[str, Any], seeds: Sequence[int]
) -> tuple[list[Run], list[Run]]:
    """The runs of the best settings, and those of the default ones."""
    ours = [problem.run(best, seed) for seed in seeds]
    theirs = [problem.run(problem.fixed, seed) for seed in seeds]
    return ours, theirs


def compare(store: Store, ours: Sequence[Run], theirs: Sequence[Run]) -> Comparison | None:
    """What the runs came to, or None where some of them failed."""
    returns = []
    for run in (*ours, *theirs):
        row = store.final_row(**run.identity())
        if row is None:
            return None
        returns.append(float(row["eval_return"]))
    half = len(ours)
    return Comparison([run.seed for run in ours], returns[:half], returns[half:])
