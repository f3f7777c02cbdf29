"""A study on disk: Optuna's journal, open to one process at a time, that goes on after a kill.

Its trials are those of one problem: task, policy, steps, seeds and what is fixed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
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
from imel.errors import ImelError
from imel.persistence.files import locked
from imel.persistence.resume import differences
from imel.policy.refusal import SIGMA
from imel.tune.space import Drawn, Parameter, find_space, overrides, point

JOURNAL = "study.jsonl"
_INTERRUPTED = "interrupted"
"""The trials whose process was killed: they say nothing of their settings and do not count."""
_NAME = "imel"
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

    @cached_property
    def space(self) -> tuple[Parameter, ...]:
        """What is searched; nothing about sigma where actions are discrete."""
        with contextlib.closing(find_task(self.task).make()) as env:
            unused = () if isinstance(env.action_space, spaces.Box) else SIGMA
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

    def overrides(self, drawn: Drawn) -> dict[str, Any]:
        """The settings behind what a trial has drawn."""
        if drawn == self.default:
            return dict(self.fixed)
        return {**overrides(self.space, drawn, self.rest), **self.fixed}


@contextlib.contextmanager
def opened(folder: Path, problem: Problem, seed: int) -> Iterator[optuna.Study]:
    """The study in a folder, for this process alone until the block ends; a new one if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"another process is working on the study in {folder}"):
        journal = folder / JOURNAL
        _repair(journal)
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
        _mark_interrupted(study)
        _ensure_default(study, problem)
        yield study


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


def _ensure_default(study: optuna.Study, problem: Problem) -> None:
    """The default settings are the next trial, unless they have been one."""
    default = problem.default
    waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
    there = [trial.params for trial in counted(study)]
    if default not in there and not waiting:
        study.enqueue_trial(default)


def _mark_interrupted(study: optuna.Study) -> None:
    """Nobody else has the study open, so what is running there died with its process."""
    running = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
    if not running:
        return
    before = study.user_attrs.get(_INTERRUPTED, [])
    study.set_user_attr(_INTERRUPTED, [*before, *(trial.number for trial in running)])
    for trial in running:
        study.tell(trial.number, state=TrialState.FAIL)


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
