"""`imel tune`: search settings for a task, confirm them on new seeds, write them as a config."""

from __future__ import annotations

from collections.abc import Sequence

from imel.cli.arguments import (
    parse,
    refuse_repeated_flags,
    require_at_least,
    settings_from,
    wide_console,
)
from imel.errors import SettingsError
from imel.extras import require
from imel.tune import TuneArguments

_DESCRIPTION = """\
Search for settings of IMeL that learn a task better than the default ones.

examples:
  imel tune Pendulum-v1
  imel tune hopper --policy np --steps 100000 --trials 100 --jobs 8
  imel tune Pendulum-v1 --set n_envs=4 gamma=0.95      # not searched
  imel train --config runs/tune/Pendulum-v1-ridge/best.json

The study is kept on disk. The same command again goes on with it, after a kill too, until there
are --trials of them. Given several times at once, also on several machines, it shares the work."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    refuse_repeated_flags(argv)
    arguments: TuneArguments = parse(TuneArguments, argv, "imel tune", _DESCRIPTION)
    _check(arguments)
    require("optuna", "tune")
    from imel.tune.tuning import tune

    return tune(arguments, settings_from(arguments.set), wide_console())


def _check(arguments: TuneArguments) -> None:
    require_at_least(arguments, trials=1, steps=1, confirm_seeds=0, jobs=1)
    if not arguments.seeds:
        raise SettingsError("--seeds names none")
    if min(*arguments.seeds, arguments.seed) < 0:
        raise SettingsError("seeds must not be negative")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise SettingsError("--seeds names a seed twice")
