"""Flags made from dataclasses by tyro; whatever is wrong with them is said in one line."""

from __future__ import annotations

import contextlib
import io
import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import tyro

from imel.errors import SettingsError, nearest_name


def parse(argument_class: type[Any], argv: Sequence[str], prog: str, description: str) -> Any:
    """An instance of a dataclass from flags; nested dataclasses are groups, not prefixes."""
    _refuse_unknown_flags(argument_class, argv)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                argument_class,
                args=list(argv),
                prog=prog,
                description=description,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as leaving:
        if not leaving.code:
            raise
        raise SettingsError(
            f"{_first_paragraph(complaint.getvalue())} (see {prog} --help)"
        ) from None


def peek(argv: Sequence[str], flag: str) -> str | None:
    """The value given to a flag, before there is a parser that knows what is valid."""
    value = None
    for i, word in enumerate(argv):
        name, equals, attached = word.partition("=")
        if name != flag:
            continue
        if equals:
            value = attached
        elif i + 1 < len(argv):
            value = argv[i + 1]
    return value


def flags_of(argument_class: type[Any]) -> Iterator[str]:
    """Every flag a dataclass stands for."""
    plain = typing.get_type_hints(argument_class)
    annotated = typing.get_type_hints(argument_class, include_extras=True)
    for field in fields(argument_class):
        hint, name = plain[field.name], field.name.replace("_", "-")
        if is_dataclass(hint):
            yield from flags_of(typing.cast("type[Any]", hint))
        elif tyro.conf.Positional not in getattr(annotated[field.name], "__metadata__", ()):
            yield f"--{name}"
            if hint is bool:
                yield f"--no-{name}"


def _refuse_unknown_flags(argument_class: type[Any], argv: Sequence[str]) -> None:
    valid = {"--help", *flags_of(argument_class)}
    for word in argv:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in valid:
            raise SettingsError(f"unknown flag '{flag}'; {nearest_name(flag, valid)}")


def _first_paragraph(box: str) -> str:
    """The text of tyro's framed message up to its first rule, on one line."""
    words: list[str] = []
    for line in box.splitlines():
        if line.startswith(("╭", "╰")):
            continue
        content = line.strip("│ ")
        if content and not content.strip("─"):
            break
        words += content.split()
    return " ".join(words) or "invalid arguments"
