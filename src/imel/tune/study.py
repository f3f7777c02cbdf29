"""A study on disk: Optuna's journal, which several processes share, and which survives a kill.

Its trials are those of one problem: task, policy, steps, seeds and what is fixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from gymnasium import spaces
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
from imel.settings import marked
from imel.tune.space import Space

JOURNAL = "study.jsonl"
_STARTUP_TRIALS = 8
"""Drawn at random before the sampler learns from them; pruning starts after half of them."""


@dataclass(frozen=True)
class Problem:
    """What settings are searched for."""

    task: str
    policy: str
    steps: int
    seeds: tuple[int, ...]
    """A trial is run with each of them."""
    fixed: Mapping[str, Any]
    """Settings that are not searched."""

    def run(self, settings: Mapping[str, Any], seed: int) -> Run:
        """A run with these settings."""
        return Run(self.task, self.policy, seed, self.steps, settings)

    @cached_property
    def space(self) -> Space:
        """What is searched; nothing about sigma where actions are discrete."""
        declared = find_policy(self.policy).Settings
        with contextlib.closing(find_task(self.task).make()) as env:
            discrete = not isinstance(env.action_space, spaces.Box)
        left_out = {*self.fixed, *(marked(declared, "sigma") if discrete else ())}
        return Space(declared, left_out)

    @cached_property
    def default(self) -> dict[str, Any]:
        """The point of the space that is nearest to the default settings."""
        return self.space.point(self._settings)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self.run(self.fixed, seed=0).settings()

    def overrides(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The settings at a point of the space that are not the default ones."""
        if point == self.default:
            return dict(self.fixed)
        return {**self.space.settings(point, self._settings), **self.fixed}


@contextlib.contextmanager
def opened(
    folder: Path, problem: Problem, seed: int
) -> Iterator[tuple[optuna.Study, Callable[[], bool]]]:
    """The study in a folder, a new one if need be; several processes may have it open.

    Also a function that says whether this process is the last one. Then nobody else opens the study
    before the block ends, and trials of processes that were killed are failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        alone = _locked(descriptor, fcntl.LOCK_EX)
        if alone:
            _repair(folder / JOURNAL)
        elif not _locked(descriptor, fcntl.LOCK_SH):
            warnings.warn(f"waiting for the process that has the study in {folder}", stacklevel=3)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        study = _study(folder / JOURNAL)
        # Neither the draws that the study began with, nor those of another process
        draws = seed + len(study.trials) if alone else None
        study.sampler = TPESampler(n_startup_trials=_STARTUP_TRIALS, seed=draws)
        _require_same(study, problem, folder)
        if alone:
            _settle(study, problem)
            fcntl.flock(descriptor, fcntl.LOCK_SH)

        def last() -> bool:
            alone = _locked(descriptor, fcntl.LOCK_EX)
            if alone:
                _settle(study, problem)
            return alone

        yield study, last
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    """Whether this process gets a lock at once: for itself alone, or shared by several."""
    # Before it asks for another one: of processes that ask at the same time, one has to get it
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def trials_in(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """The trials in these states, of whatever process."""
    return study.get_trials(deepcopy=False, states=states)


def completed(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were run to their end, the best first."""
    return sorted(trials_in(study, TrialState.COMPLETE), key=value, reverse=True)


def default_trial(study: optuna.Study, problem: Problem) -> FrozenTrial | None:
    """The completed trial of the default settings, if there is one."""
    return next((each for each in completed(study) if each.params == problem.default), None)


def value(trial: FrozenTrial) -> float:
    """A completed trial's mean return."""
    assert trial.value is not None
    return trial.value


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended by themselves: one whose process was killed has no error."""
    failed = [each for each in trials_in(study, TrialState.FAIL) if "error" in each.user_attrs]
    return trials_in(study, TrialState.COMPLETE, TrialState.PRUNED) + failed


def _settle(study: optuna.Study, problem: Problem) -> None:
    """Fail the trials under way: nobody else has the study open, so their processes are dead.

    The default settings are the next trial, unless they have been one.
    """
    for trial in trials_in(study, TrialState.RUNNING):
        study.tell(trial.number, state=TrialState.FAIL)
    tried = problem.default in [trial.params for trial in counted(study)]
    if not tried and not trials_in(study, TrialState.WAITING):
        study.enqueue_trial(problem.default)


def _require_same(study: optuna.Study, problem: Problem, folder: Path) -> None:
    now = {**asdict(problem), "seeds": list(problem.seeds)}  # as JSON has them
    then = study.user_attrs.get("problem")
    if then is None:
        study.set_user_attr("problem", now)
    elif lines := differences(then, now):
        raise ImelError(
            f"{folder} holds a study of something else ({'; '.join(lines)}); give another --study"
        )


def _repair(journal: Path) -> None:
    """Cut off what a killed writer left: half a line, and its lock on the journal."""
    journal.with_name(journal.name + ".lock").unlink(missing_ok=True)
    if journal.is_file():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)
