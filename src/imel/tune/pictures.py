"""Two pictures of a study: how the search went on, and which parameters mattered."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from imel.tune.study import Problem, completed, default_trial, value

_BLUE, _GREY, _RED = "#2166ac", "#9a9a9a", "#d6604d"
_GOOD = 0.25
"""Importance is what sets this share of the trials, the best, apart from all of them."""


def title(problem: Problem) -> str:
    """What a study is of."""
    seeds = f"{len(problem.seeds)} seed{'s' if len(problem.seeds) > 1 else ''}"
    return f"{problem.task}, {problem.policy}, {problem.steps:,} steps, {seeds} a trial"


def history_figure(study: optuna.Study, problem: Problem) -> Figure:
    """Every trial's return, the best so far, and the default settings' return."""
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots()
    done = sorted(completed(study), key=lambda trial: trial.number)
    numbers, values = [trial.number for trial in done], [value(trial) for trial in done]
    pruned = study.get_trials(deepcopy=False, states=[TrialState.PRUNED])
    lasts = [trial.intermediate_values[max(trial.intermediate_values)] for trial in pruned]
    label = "pruned, at its last evaluation"
    axes.plot([trial.number for trial in pruned], lasts, "x", color=_GREY, label=label)
    axes.plot(numbers, values, "o", color=_BLUE, label="completed")
    last = max(trial.number for trial in study.get_trials(deepcopy=False))
    best = np.maximum.accumulate([*values, max(values)])
    axes.step([*numbers, last], best, where="post", color=_BLUE, label="best so far")
    default = default_trial(study, problem)
    if default is not None:
        axes.axhline(value(default), color=_RED, linestyle="--", label="default settings")
    axes.set_title(title(problem), loc="left")
    axes.set_xlabel("trial")
    axes.set_ylabel("mean deterministic return")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def importances(study: optuna.Study) -> dict[str, float]:
    """What share each parameter has in setting the good trials apart; the largest first."""
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few trials: then all are equal
        return get_param_importances(study, evaluator=evaluator)


def importance_figure(study: optuna.Study, problem: Problem) -> Figure:
    """A bar for each parameter."""
    shares = importances(study)
    figure = Figure(figsize=(8.0, 1.4 + 0.28 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names, heights = list(shares)[::-1], list(shares.values())[::-1]
    bars = axes.barh(names, heights, color=_BLUE)
    axes.bar_label(bars, [f"{height:.0%}" for height in heights], padding=3)
    axes.set_title(f"{title(problem)}: {len(completed(study))} completed trials", loc="left")
    axes.set_xlabel(f"importance for being among the best {_GOOD:.0%}")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.margins(x=0.12)
    axes.grid(axis="x", alpha=0.3)
    return figure
