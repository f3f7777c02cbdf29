"""Flags made from dataclasses by tyro; whatever is wrong with them is said in one line."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from imel.errors import SettingsError
from imel.registry import find_policy
from imel.runs.layout import BEST
from imel.runs.stored import StoredRun, find_run

RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""A run directory, or a model file."""
OwnPolicy = Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")]
EnvironmentId = Annotated[str | None, tyro.conf.arg(metavar="ENV")]
Flag = tyro.conf.FlagCreatePairsOff[bool]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]


@dataclass(frozen=True)
class StoredRunArguments:
    """Which run a command is about."""

    run: RunPath
    """A run directory, or a model file."""
    env: EnvironmentId = None
    """Environment id, if not the one the run was trained on."""
    policy: OwnPolicy = None
    """The run's policy, if it is a class of your own: no file is a reason to run code."""
    best: Flag = False
    """Take the best model of the evaluations during training, not the last one."""
    threads: int = 1
    """Threads of the linear algebra."""

    def open(self, **least: int) -> StoredRun:
        """Find the run; refuse numbers that are too small."""
        require_at_least(self, **least, threads=1)
        torch.set_num_threads(self.threads)
        if self.policy is not None:
            find_policy(self.policy)
        return find_run(self.run / BEST if self.best else self.run, self.env)


def parse(
    argument_class: type[Any], argv: Sequence[str], prog: str, description: str | None = None
) -> Any:
    """Return an instance of a dataclass from flags; nested dataclasses are groups, not prefixes.

    :param description: what the help says first; the class's docstring if not given
    """
    words, complaint = [_plain(word) for word in argv], io.StringIO()
    about: Any = {"prog": prog, "description": description, "config": (tyro.conf.OmitArgPrefixes,)}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(argument_class, args=words, **about)
    except SystemExit as leaving:
        if not leaving.code:
            raise
        # A framed title; below it, divided by rules, what is wrong and what may have been meant
        parts = re.split("[─-]{3,}", complaint.getvalue().partition("\n")[2].replace("│", " "))
        said, also, *_ = [" ".join(part.split()) for part in parts if part.strip()]
        if near := re.match(r"(?:Perhaps|Arguments similar) .*?(--[\w-]+) ", also):
            said += f"; did you mean '{near[1]}'?"
        raise SettingsError(f"{said} (see {prog} --help)") from None


def _plain(word: str) -> str:
    """Write 1e5 as 100000, which is a whole number."""
    known = re.fullmatch(r"\d+(\.\d+)?e\d+", word) and float(word).is_integer()
    return f"{float(word):.0f}" if known else word


def split_flags(argv: Sequence[str]) -> list[str]:
    """Return a command line in which no word is --flag=value."""
    return [part for word in argv for part in word.split("=", 1 if word[:2] == "--" else 0)]


def peek(words: Sequence[str], flag: str) -> str | None:
    """Return the last value given to a flag, before there is a parser that knows what is valid."""
    values = [value for name, value in itertools.pairwise(words) if name == flag]
    return values[-1] if values else None


def require_at_least(arguments: Any, **least: int) -> None:
    """Refuse numbers that are too small; those that were not given are None."""
    for name, bound in least.items():
        value = getattr(arguments, name)
        if value is not None and value < bound:
            raise SettingsError(f"{name}={value} must be at least {bound}")


def settings_from(items: Sequence[str], flag: str = "--set") -> dict[str, Any]:
    """Return settings as typed on a command line: JSON where they are, else text (schedules)."""
    settings: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise SettingsError(f"{flag} {item}: not of the form KEY=VALUE")
        try:
            settings[key] = json.loads(text)
        except json.JSONDecodeError:
            settings[key] = text
    return settings


def refuse_repeated_flags(argv: Sequence[str]) -> None:
    """Refuse a flag that is given twice: the parser would keep the last without a word."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    for flag in flags:
        if flags.count(flag) > 1:
            raise SettingsError(f"{flag} is given twice; put all its values behind one")


def wide_console() -> Console:
    """Return a console for tables, wide enough for them in a pipe."""
    console = Console()
    if not console.is_terminal:
        console.width = 160
    return console
