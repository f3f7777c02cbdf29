"""What settings are searched for, and the trials so far: a study on disk.

It is Optuna's journal, which several processes share, and which survives a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import optuna
from gymnasium import spaces
from optuna import distributions
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from imel.bench.run import EVALUATIONS, Run
from imel.bench.tasks import find_task
from imel.checkpoints.run_checkpoints import differences
from imel.errors import ImelError, one_line
from imel.registry import find_policy
from imel.settings import Choice, Search, marked

JOURNAL = "study.jsonl"
_STARTUP_TRIALS = 8
"""Drawn at random before the sampler learns from them; pruning starts after half of them."""
Values = Mapping[str, Any]
"""Settings by name."""


@dataclass(frozen=True)
class Problem:
    """What settings are searched for: all trials of a study are those of one problem."""

    task: str
    policy: str
    steps: int
    seeds: tuple[int, ...]
    """A trial is run with each of them."""
    fixed: Values
    """Settings that are not searched."""

    def run(self, settings: Values, seed: int) -> Run:
        """A run with these settings."""
        return Run(self.task, self.policy, seed, self.steps, settings)

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        """What the policy declares and is not fixed; no sigma where actions are discrete."""
        declared = find_policy(self.policy).Settings
        with contextlib.closing(find_task(self.task).make()) as env:
            discrete = not isinstance(env.action_space, spaces.Box)
        left_out = {*self.fixed, *(marked(declared, "sigma") if discrete else ())}
        hints = get_type_hints(declared)
        searched = {each.name: each.metadata.get("search") for each in fields(declared)}
        return {
            name: _distribution(search, hints[name] is int)
            for name, search in searched.items()
            if search and name not in left_out
        }

    @cached_property
    def default(self) -> dict[str, Any]:
        """The point of the space that is nearest to the default settings."""
        settings = self.run(self.fixed, seed=0).settings()
        return {name: _nearest(kind, settings[name]) for name, kind in self.space.items()}

    def overrides(self, point: Values) -> dict[str, Any]:
        """The settings at a point of the space that are not the default ones."""
        if point == self.default:
            return dict(self.fixed)
        # Four digits of a number: more mean nothing
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in point.items()}
        return {**rounded, **self.fixed}


def _distribution(search: Search, whole: bool) -> BaseDistribution:
    if isinstance(search, Choice):
        return distributions.CategoricalDistribution(search.values)
    if whole:
        return distributions.IntDistribution(int(search.low), int(search.high), log=search.log)
    return distributions.FloatDistribution(search.low, search.high, log=search.log)


def _nearest(kind: Any, value: Any) -> Any:
    if isinstance(kind, distributions.CategoricalDistribution):
        return value if value in kind.choices else kind.choices[0]
    return min(max(value, kind.low), kind.high)


@contextlib.contextmanager
def opened(
    folder: Path, problem: Problem, seed: int
) -> Iterator[tuple[optuna.Study, Callable[[], bool]]]:
    """The study in a folder, a new one if need be; several processes may have it open.

    Also a function that says whether this process is the last one. Then nobody else opens the study
    before the block ends, and trials of processes that were killed are failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, journal = os.open(folder, os.O_RDONLY), folder / JOURNAL

    def alone() -> bool:
        # Given up before it is asked for: of processes that ask at the same time, one has to get it
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def last() -> bool:
        if last_one := alone():
            _settle(study, problem)
        return last_one

    try:
        first = alone()
        if not first:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for a process that was the last one
        elif journal.is_file():  # what a killed writer left: half a line, its lock on the journal
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
            journal.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        study = _study(journal)
        # Neither the draws that the study began with, nor those of another process
        draws = seed + len(study.trials) if first else None
        study.sampler = TPESampler(n_startup_trials=_STARTUP_TRIALS, seed=draws)
        now = {**asdict(problem), "seeds": list(problem.seeds)}  # as JSON has them
        if found := differences(study.user_attrs.get("problem", now), now):
            raise ImelError(f"{folder} is of another problem ({'; '.join(found)}): give --study")
        if first:
            study.set_user_attr("problem", now)
            _settle(study, problem)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield study, last
    finally:
        os.close(descriptor)


def _study(journal: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name="imel",
            load_if_exists=True,
            direction="maximize",
            pruner=MedianPruner(_STARTUP_TRIALS // 2, n_warmup_steps=EVALUATIONS // 3),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ImelError(f"{journal} is not a study: {one_line(error)}") from None


def _settle(study: optuna.Study, problem: Problem) -> None:
    """Fail the trials under way, for nobody else has the study open; the default one comes next."""
    for trial in trials_in(study, TrialState.RUNNING):
        study.tell(trial.number, state=TrialState.FAIL)
    tried = problem.default in [trial.params for trial in counted(study)]
    if not tried and not trials_in(study, TrialState.WAITING):
        study.enqueue_trial(problem.default)


def trials_in(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """The trials in these states, of whatever process."""
    return study.get_trials(deepcopy=False, states=states)


def completed(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were run to their end, the best first."""
    return sorted(trials_in(study, TrialState.COMPLETE), key=lambda each: each.values, reverse=True)


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended by themselves: one whose process was killed has no error."""
    failed = [each for each in trials_in(study, TrialState.FAIL) if "error" in each.user_attrs]
    return trials_in(study, TrialState.COMPLETE, TrialState.PRUNED) + failed
