"""A study on disk: Optuna's journal, which several processes share, and which survives a kill.

Its trials are those of one problem: task, policy, steps, seeds and what is fixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from gymnasium import spaces
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from imel.bench.run import EVALUATIONS, Run
from imel.bench.tasks import find_task
from imel.checkpoints.run_checkpoints import differences
from imel.errors import ImelError
from imel.registry import find_policy
from imel.settings import marked
from imel.tune.space import Parameter, Values, find_space, overrides, point

JOURNAL = "study.jsonl"
_INTERRUPTED = "interrupted"
"""The trials whose process was killed: they say nothing of their settings and do not count."""
_NAME = "imel"
_STARTUP_TRIALS = 8
"""Drawn at random before the sampler learns from them; pruning starts after half of them."""
_SECONDS_TO_OPEN = 10.0
"""How long a process that opens a study may keep others waiting."""


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

    @cached_property
    def space(self) -> tuple[Parameter, ...]:
        """What is searched; nothing about sigma where actions are discrete."""
        with contextlib.closing(find_task(self.task).make()) as env:
            unused = (
                ()
                if isinstance(env.action_space, spaces.Box)
                else marked(find_policy(self.policy).Settings, "sigma")
            )
        return find_space(self.policy, (*self.fixed, *unused))

    def run(self, settings: Mapping[str, Any], seed: int) -> Run:
        """A run with these settings."""
        return Run(self.task, self.policy, seed, self.steps, settings)

    def name_of(self, run: Run) -> str:
        """Which settings a run is to confirm."""
        return f"{'default' if run.overrides == self.fixed else 'best'} settings, seed {run.seed}"

    @cached_property
    def default(self) -> dict[str, Any]:
        """Where in the space the default settings are, as near as it goes."""
        return point(self.space, self._default_settings)

    @cached_property
    def rest(self) -> dict[str, Any]:
        """The settings that are not searched."""
        searched = {parameter.name for parameter in self.space}
        return {
            name: value for name, value in self._default_settings.items() if name not in searched
        }

    @cached_property
    def _default_settings(self) -> dict[str, Any]:
        return self.run(self.fixed, seed=0).settings()

    def overrides(self, drawn: Values) -> dict[str, Any]:
        """The settings behind what a trial has drawn."""
        if drawn == self.default:
            return dict(self.fixed)
        return {**overrides(self.space, drawn, self.rest), **self.fixed}


@contextlib.contextmanager
def opened(
    folder: Path, problem: Problem, seed: int
) -> Iterator[tuple[optuna.Study, Callable[[], bool]]]:
    """The study in a folder, a new one if need be; several processes may have it open.

    Also a function that says whether this process is the last one. Then nobody else opens the study
    before the block ends, and trials of processes that were killed are marked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(_Presence(folder)) as presence:
        journal = folder / JOURNAL
        alone = presence.alone()
        if alone:
            _repair(journal)
        else:
            presence.join()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(
            storage=storage,
            study_name=_NAME,
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=_STARTUP_TRIALS // 2, n_warmup_steps=EVALUATIONS // 3
            ),
        )
        # A study that goes on must not draw again what it began with
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=_STARTUP_TRIALS, seed=seed + len(study.trials)
        )
        _require_same(study, problem, folder)
        if alone:
            _settle(study, problem)
            presence.join()
        else:
            study.sampler.reseed_rng()  # or it would draw what the first process draws

        def last() -> bool:
            if not presence.alone():
                return False
            _settle(study, problem)
            return True

        yield study, last


class _Presence:
    """A lock on a folder: shared by the processes that work there, or held by a single one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._descriptor = folder, os.open(folder, os.O_RDONLY)

    def alone(self) -> bool:
        """Take the folder for this process, or leave it to the others that are there."""
        # Before it asks: of processes that ask at the same time, one has to get it
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return self._lock(fcntl.LOCK_EX)

    def join(self) -> None:
        """Be one of several; refuse if another process keeps the folder for itself."""
        deadline = time.monotonic() + _SECONDS_TO_OPEN
        while not self._lock(fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise ImelError(f"another process is finishing the study in {self._folder}")
            time.sleep(0.1)

    def close(self) -> None:
        """Leave."""
        os.close(self._descriptor)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended by themselves: completed, pruned or failed."""
    interrupted = study.user_attrs.get(_INTERRUPTED, [])
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished() and trial.number not in interrupted
    ]


def completed(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were run to their end, the best first."""
    trials = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    return sorted(trials, key=lambda trial: -value(trial))


def value(trial: FrozenTrial) -> float:
    """A completed trial's mean return."""
    assert trial.value is not None
    return trial.value


def default_trial(study: optuna.Study, problem: Problem) -> FrozenTrial | None:
    """The completed trial of the default settings, if it did not fail."""
    default = problem.default
    return next((trial for trial in completed(study) if trial.params == default), None)


def running(study: optuna.Study) -> list[FrozenTrial]:
    """The trials under way, in whatever process."""
    return study.get_trials(deepcopy=False, states=[TrialState.RUNNING])


def _settle(study: optuna.Study, problem: Problem) -> None:
    """Fail the trials under way: nobody else has the study open, so their processes are dead.

    The default settings are the next trial, unless they have been one.
    """
    dead = running(study)
    if dead:
        before = study.user_attrs.get(_INTERRUPTED, [])
        study.set_user_attr(_INTERRUPTED, [*before, *(trial.number for trial in dead)])
    for trial in dead:
        study.tell(trial.number, state=TrialState.FAIL)
    waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
    there = [trial.params for trial in counted(study)]
    if problem.default not in there and not waiting:
        study.enqueue_trial(problem.default)


def _require_same(study: optuna.Study, problem: Problem, folder: Path) -> None:
    now = {**asdict(problem), "seeds": list(problem.seeds)}  # as JSON has them
    then = study.user_attrs.get("problem")
    if then is None:
        study.set_user_attr("problem", now)
        return
    lines = differences(then, now)
    if lines:
        raise ImelError(
            f"{folder} holds a study of something else ({'; '.join(lines)}); give another --study"
        )


def _repair(journal: Path) -> None:
    """Cut off what a killed writer left: half a line, and its lock on the journal."""
    journal.with_name(journal.name + ".lock").unlink(missing_ok=True)
    if not journal.is_file():
        return
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(journal, whole)
