"""The search itself: trials are drawn, run on a pool, judged at every evaluation, and told.

A trial is run seed after seed. What it is judged by at the end is the mean deterministic return
of its last evaluations: the policy one would keep.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import mean
from typing import Any, Protocol

import optuna
from optuna.trial import TrialState

from imel.bench.pool import Failure, Finished, Message, Pool
from imel.bench.run import EVALUATIONS
from imel.tune.space import distributions
from imel.tune.study import Problem, counted, running


@dataclass
class Attempt:
    """A trial under way."""

    trial: optuna.Trial
    settings: Mapping[str, Any]
    """What it sets."""
    returns: list[float] = field(default_factory=list)
    """Final return of each seed so far."""


class Listener(Protocol):
    """Who is told how a search gets on."""

    def advanced(self, number: int, share: float) -> None:
        """A trial has come this far, over all its seeds."""

    def ended(self, number: int, outcome: float | Failure | None, count: int) -> None:
        """A trial has its value, has failed, or was pruned; so many of the study have ended."""


class Search:
    """Draws, runs and tells trials until enough of them have ended."""

    def __init__(
        self, study: optuna.Study, problem: Problem, pool: Pool, listener: Listener
    ) -> None:
        self._study, self._problem = study, problem
        self._pool, self._listener = pool, listener
        self._attempts: dict[Hashable, Attempt] = {}
        self._default = problem.default

    def run(self, trials: int) -> None:
        """Go on until so many trials have ended or are under way elsewhere; close the pool."""
        try:
            while self._attempts or self._left(trials):
                while self._left(trials) and self._pool.has_room():
                    self._begin()
                for key, message in self._pool.messages(1.0):
                    if key in self._attempts:  # else it was pruned by a message just before
                        self._hear(self._attempts[key], message)
        finally:
            self._pool.close()

    def _left(self, trials: int) -> int:
        return max(0, trials - len(counted(self._study)) - len(running(self._study)))

    def _begin(self) -> None:
        trial = self._study.ask(distributions(self._problem.space))
        attempt = Attempt(trial, self._problem.overrides(trial.params))
        self._attempts[trial.number] = attempt
        self._next_seed(attempt)

    def _next_seed(self, attempt: Attempt) -> None:
        seed = self._problem.seeds[len(attempt.returns)]
        self._pool.start(attempt.trial.number, self._problem.run(attempt.settings, seed))

    def _hear(self, attempt: Attempt, message: Message) -> None:
        if isinstance(message, Failure):
            self._end(attempt, message, TrialState.FAIL)
        elif isinstance(message, Finished):
            attempt.returns.append(float(message.rows[-1]["eval_return"]))
            if not isfinite(attempt.returns[-1]):
                self._end(attempt, Failure("its return is no number"), TrialState.FAIL)
            elif len(attempt.returns) < len(self._problem.seeds):
                self._next_seed(attempt)
            else:
                self._end(attempt, mean(attempt.returns), TrialState.COMPLETE)
        else:
            self._judge(attempt, message)

    def _judge(self, attempt: Attempt, row: Mapping[str, Any]) -> None:
        """Report an evaluation, and prune a trial that is behind the others."""
        trial, steps, earlier = attempt.trial, self._problem.steps, len(attempt.returns)
        done = earlier + min(row["step"] / steps, 1.0)
        self._listener.advanced(trial.number, done / len(self._problem.seeds))
        if row["eval_return"] is None:
            return
        # By its share of the steps: trials with other batch sizes are evaluated at other steps
        part = min(row["step"] * EVALUATIONS // steps, EVALUATIONS)
        trial.report(row["eval_return"], earlier * EVALUATIONS + part)
        over = row["final"] and earlier + 1 == len(self._problem.seeds)
        if not over and trial.params != self._default and trial.should_prune():
            self._pool.stop(trial.number)
            self._end(attempt, None, TrialState.PRUNED)

    def _end(self, attempt: Attempt, outcome: float | Failure | None, state: TrialState) -> None:
        number = attempt.trial.number
        if isinstance(outcome, Failure):
            attempt.trial.set_user_attr("error", outcome.error)
        attempt.trial.set_user_attr("returns", attempt.returns)
        value = outcome if state is TrialState.COMPLETE else None
        assert not isinstance(value, Failure)
        self._study.tell(attempt.trial, value, state)
        del self._attempts[number]
        self._listener.ended(number, outcome, len(counted(self._study)))
