"""Carrying out `imel tune`: search, pictures, config, confirmation.

A trial is judged by the mean deterministic return of its last evaluations, one a seed: that of the
policy one would keep.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Hashable, Sequence
from pathlib import Path

import numpy as np
import optuna
from matplotlib import pyplot
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances
from rich.console import Console

from imel.bench.launch import launch, unfinished
from imel.bench.pool import Failure, Finished, Message, Pool
from imel.bench.progress import GridProgress, SearchProgress
from imel.bench.run import EVALUATIONS, Run
from imel.bench.store import Store
from imel.bench.tasks import find_task
from imel.errors import ImelError
from imel.report.statistics import difference_of_means, estimate, probability_of_improvement
from imel.runs.layout import write_json
from imel.tune.study import Problem, Values, completed, counted, opened, trials_in

BEST, HISTORY, IMPORTANCE = "best.json", "history.png", "importance.png"
Attempt = Generator[None, Message, float | Failure | None]
"""A trial under way; ends with its value, why it failed, or None if it was pruned."""


def tune(
    problem: Problem, folder: Path, pool: Callable[[], Pool], trials: int, confirm: int, seed: int
) -> int:
    """Search until there are so many trials, write what was found, confirm it; the exit code."""
    _ = problem.default  # refuses what cannot be run before anything is written
    with opened(folder, problem, seed) as (study, last):
        while True:  # twice if some trials were of processes that were killed
            ended, done = len(counted(study)), completed(study)
            print(f"{max(0, trials - ended)} of {trials} trials to do")
            best = done[0].value if done else None
            with SearchProgress(Console(), trials, ended, best) as progress:
                search(study, problem, pool(), progress, trials)
            if not last():
                print("the study goes on in another process; the last one confirms")
                return 0
            if len(counted(study)) >= trials:
                break
        if not completed(study):
            error = counted(study)[0].user_attrs["error"]
            raise ImelError(f"no trial of {trials} was completed; the first to fail: {error}")
        _draw(study, folder)
        found = completed(study)[0]
        settings = problem.overrides(found.params)
        _write_config(problem, settings, folder / BEST)
        print(f"best: trial {found.number}, return {found.value:.1f}")
        print(*(f"written: {folder / name}" for name in (BEST, HISTORY, IMPORTANCE)), sep="\n")
        if settings == problem.fixed:
            print("no better settings than the default ones were found")
        elif confirm:
            return _confirm(problem, settings, new_seeds(problem, confirm), folder, pool())
        else:
            print("not compared with the default settings on new seeds")
    return 0


# --- the search ---


def search(
    study: optuna.Study, problem: Problem, pool: Pool, progress: SearchProgress, trials: int
) -> None:
    """Run trials until so many have ended or are under way elsewhere; close the pool."""
    attempts: dict[Hashable, tuple[optuna.Trial, Attempt]] = {}

    def left() -> bool:
        return len(counted(study)) + len(trials_in(study, TrialState.RUNNING)) < trials

    try:
        while attempts or left():
            while left() and pool.has_room():
                trial = study.ask(problem.space)
                attempts[trial.number] = trial, _attempt(trial, problem, pool, progress)
                next(attempts[trial.number][1])
            for key, message in pool.messages(1.0):
                if key not in attempts:  # pruned by a message just before
                    continue
                trial, attempt = attempts[key]
                try:
                    attempt.send(message)
                except StopIteration as end:
                    del attempts[key]
                    if isinstance(end.value, Failure):
                        trial.set_user_attr("error", end.value.error)
                        study.tell(trial, state=TrialState.FAIL)
                    else:
                        state = TrialState.PRUNED if end.value is None else TrialState.COMPLETE
                        study.tell(trial, end.value, state)
                    progress.ended(trial.number, end.value, len(counted(study)))
    finally:
        pool.close()


def _attempt(
    trial: optuna.Trial, problem: Problem, pool: Pool, progress: SearchProgress
) -> Attempt:
    """Run a trial's seeds one after another; what their runs say is sent to the generator."""
    settings, returns = problem.overrides(trial.params), []
    for number, seed in enumerate(problem.seeds):
        pool.start(trial.number, problem.run(settings, seed))
        while not isinstance(message := (yield), Finished):
            if isinstance(message, Failure):
                return message
            done = number + min(message["step"] / problem.steps, 1.0)
            progress.advanced(trial.number, done / len(problem.seeds))
            if message["eval_return"] is None:
                continue
            # By its share of the steps: trials with other batch sizes are evaluated at other steps
            part = min(message["step"] * EVALUATIONS // problem.steps, EVALUATIONS)
            trial.report(message["eval_return"], number * EVALUATIONS + part)
            over = message["final"] and seed == problem.seeds[-1]
            if not over and trial.params != problem.default and trial.should_prune():
                pool.stop(trial.number)
                return None
        returns.append(message.rows[-1]["eval_return"])
    return float(np.mean(returns))


# --- what was found ---


def _draw(study: optuna.Study, folder: Path) -> None:
    """Draw the returns of all trials, and what sets the best quarter of them apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's plots are experimental
        plot_optimization_history(study, target_name="mean deterministic return")
        pyplot.savefig(folder / HISTORY, bbox_inches="tight")
        plot_param_importances(study, PedAnovaImportanceEvaluator(target_quantile=0.25))
        pyplot.savefig(folder / IMPORTANCE, bbox_inches="tight")
        pyplot.close("all")


def _write_config(problem: Problem, settings: Values, path: Path) -> None:
    """Write settings as a config of `imel train`."""
    task = find_task(problem.task)
    # An environment that `imel train` would make differently is left for the user to name
    environment = {} if task.wrapper or task.env_kwargs else {"env": task.env_id}
    document = {"total_timesteps": problem.steps, **problem.run(settings, seed=0).settings()}
    write_json(path, {**environment, **document, "policy": problem.policy})


def new_seeds(problem: Problem, number: int) -> list[int]:
    """Seeds that no trial has seen: the best of many noisy trials looks better than it is."""
    seeds = range(1000, 1000 + number + len(problem.seeds))
    return [seed for seed in seeds if seed not in problem.seeds][:number]


def _confirm(
    problem: Problem, settings: Values, seeds: Sequence[int], folder: Path, pool: Pool
) -> int:
    """Compare settings with the default ones on these seeds; the exit code."""
    groups = [[problem.run(each, seed) for seed in seeds] for each in (settings, problem.fixed)]
    store = Store(folder / "confirmation")

    def name_of(run: Run) -> str:
        return f"{'best' if run in groups[0] else 'default'} settings, seed {run.seed}"

    todo = unfinished([*groups[0], *groups[1]], store)
    print(f"confirming on new seeds: {len(todo)} runs to do")
    with GridProgress(todo, Console(), name_of) as progress:
        if launch(todo, store, pool, progress):
            return 1
    rows = [[store.final_row(run.identity()) or {} for run in group] for group in groups]
    best, default = ([float(row["eval_return"]) for row in group] for group in rows)
    lines, better = comparison(best, default)
    print(*lines, *[f"use it: imel train --config {folder / BEST}"] * better, sep="\n")
    return 0


def comparison(best: Sequence[float], default: Sequence[float]) -> tuple[list[str], bool]:
    """The returns of both settings in words, and whether the first are better."""
    pair = [np.array(best), np.array(default)]
    found, probability = estimate(difference_of_means, pair), probability_of_improvement(pair)
    lines = [
        f"{name:>8}: {' '.join(f'{result:.1f}' for result in returns)}  (mean {returns.mean():.1f})"
        for name, returns in zip(("best", "default"), pair, strict=True)
    ]
    lines.append(
        f"on {len(best)} new seeds the best settings return {found.value:+.1f} [{found.low:.1f}, "
        f"{found.high:.1f}] against the default ones (interquartile means, 95 % bootstrap "
        f"interval); P(better) = {float(probability):.2f}"
    )
    better = found.low > 0.0  # of a single seed there is no interval
    return lines + ["not shown to be better than the default ones"] * (not better), better
