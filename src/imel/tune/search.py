"""The search itself: trials are drawn, run on a pool, judged at every evaluation, and told.

What a trial is judged by is the mean deterministic return of its last evaluations, one a seed: that
of the policy one would keep.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from math import isfinite
from statistics import mean

import optuna
from optuna.trial import TrialState

from imel.bench.pool import Failure, Finished, Message, Pool
from imel.bench.progress import SearchProgress
from imel.bench.run import EVALUATIONS
from imel.bench.store import Row
from imel.tune.study import Problem, counted, trials_in

Outcome = float | Failure | None
"""A trial's value, why it failed, or None if it was pruned."""


def search(
    study: optuna.Study, problem: Problem, pool: Pool, progress: SearchProgress, trials: int
) -> None:
    """Run trials until so many have ended or are under way elsewhere; close the pool."""
    attempts: dict[Hashable, tuple[optuna.Trial, Generator[None, Message, Outcome]]] = {}

    def left() -> bool:
        return len(counted(study)) + len(trials_in(study, TrialState.RUNNING)) < trials

    try:
        while attempts or left():
            while left() and pool.has_room():
                trial = study.ask(problem.space.distributions)
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
                    _tell(study, trial, end.value)
                    progress.ended(trial.number, end.value, len(counted(study)))
    finally:
        pool.close()


def _attempt(
    trial: optuna.Trial, problem: Problem, pool: Pool, progress: SearchProgress
) -> Generator[None, Message, Outcome]:
    """Run a trial's seeds one after another; what their runs say is sent to the generator."""
    settings, returns = problem.overrides(trial.params), list[float]()
    for seed in problem.seeds:
        pool.start(trial.number, problem.run(settings, seed))
        while not isinstance(message := (yield), Finished):
            if isinstance(message, Failure):
                return message
            done = len(returns) + min(message["step"] / problem.steps, 1.0)
            progress.advanced(trial.number, done / len(problem.seeds))
            if _is_behind(trial, problem, message, len(returns)):
                pool.stop(trial.number)
                return None
        returns.append(float(message.rows[-1]["eval_return"]))
        if not isfinite(returns[-1]):
            return Failure("its return is not a finite number")
    trial.set_user_attr("returns", returns)
    return mean(returns)


def _is_behind(trial: optuna.Trial, problem: Problem, row: Row, earlier: int) -> bool:
    """Report an evaluation, and ask whether the trial is behind the others; never the default."""
    if row["eval_return"] is None:
        return False
    # By its share of the steps: trials with other batch sizes are evaluated at other steps
    part = min(row["step"] * EVALUATIONS // problem.steps, EVALUATIONS)
    trial.report(row["eval_return"], earlier * EVALUATIONS + part)
    over = row["final"] and earlier + 1 == len(problem.seeds)
    return not over and trial.params != problem.default and trial.should_prune()


def _tell(study: optuna.Study, trial: optuna.Trial, outcome: Outcome) -> None:
    if isinstance(outcome, Failure):
        trial.set_user_attr("error", outcome.error)
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, outcome, TrialState.PRUNED if outcome is None else TrialState.COMPLETE)
