"""The settings in words: a table of what each is, and its default under every policy."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import Field, fields
from typing import Any

from imel.settings.paper import (
    ContextSettings,
    FitSettings,
    InterpolatorSettings,
    MkiSettings,
    NpSettings,
)
from imel.settings.ridge import RidgeSettings

_FAMILIES: dict[str, tuple[type[Any], ...]] = {
    "RidgePolicy": (RidgeSettings,),
    "the paper's policies": (InterpolatorSettings, FitSettings, ContextSettings),
}

_OWN: dict[str, type[Any]] = {"MkiPolicy": MkiSettings, "NpPolicy": NpSettings}


def field_docs(settings_class: type[Any]) -> dict[str, str]:
    """Return what the docstring under each field says."""
    docs: dict[str, str] = {}
    for part in reversed(settings_class.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def settings_table() -> str:
    """Return every setting with its defaults, as text for `help(IMeL)`."""
    lines = []
    for family, classes in _FAMILIES.items():
        lines += [f"    Settings of {family}, with their defaults:", ""]
        seen: set[str] = set()
        for settings_class in classes:
            for field in fields(settings_class):
                if field.name not in seen:
                    seen.add(field.name)
                    lines.append(_line(settings_class, field))
        lines.append("")
    for policy, own in _OWN.items():
        lines += [f"    Defaults of {policy} that differ from these:", ""]
        lines += [_line(own, field) for field in fields(own) if _differs(field)] + [""]
    return "\n".join(lines)


def _differs(field: Field[Any]) -> bool:
    return bool(field.default != getattr(InterpolatorSettings, field.name))


def _line(settings_class: type[Any], field: Field[Any]) -> str:
    text = f"{field.name} = {field.default!r}: {field_docs(settings_class)[field.name]}"
    return textwrap.fill(text, 96, initial_indent=" " * 6, subsequent_indent=" " * 10)
