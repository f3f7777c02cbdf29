"""A policy's search space, as its settings declare it, in Optuna's terms and back.

Optuna draws numbers; some settings are made of two of them, or of one in units of another setting.
Settings are translated to what would have been drawn for them, too: so the defaults are a point of
the space, and the first trial.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from imel.settings import Choice, Ends, Layers, Multiple, Search, Settings

Values = Mapping[str, Any]
"""Settings by name, or a point of the space: what was drawn, by Optuna's labels."""


class Space:
    """The settings of a policy that declare a search, less those that are left out."""

    def __init__(self, settings: type[Settings], left_out: Collection[str]) -> None:
        hints = get_type_hints(settings)
        self.distributions: dict[str, BaseDistribution] = {}
        """What is drawn for a point of the space, by label."""
        self._searched: list[tuple[str, Search, list[str]]] = []
        for name, search in ((each.name, each.metadata.get("search")) for each in fields(settings)):
            if search and name not in left_out:
                parts = _parts(name, search, hints[name] is int)
                self._searched.append((name, search, list(parts)))
                self.distributions |= parts

    def settings(self, point: Values, rest: Values) -> dict[str, Any]:
        """Return the settings at a point; `rest` are those that are not searched."""
        known, found = {**rest, **point}, dict[str, Any]()
        for name, search, labels in self._searched:
            drawn = [point[label] for label in labels]
            # Four digits of a number: more mean nothing
            drawn = [float(f"{each:.4g}") if isinstance(each, float) else each for each in drawn]
            match search:
                case Layers():
                    found[name] = drawn * 2
                case Multiple():
                    found[name] = drawn[0] * known[search.of]
                case Ends():
                    found[name] = ":".join(f"{each:g}" for each in drawn)
                case _:
                    found[name] = drawn[0]
        return found

    def point(self, settings: Values) -> dict[str, Any]:
        """Return the point that is nearest to complete settings."""
        found = {}
        for name, search, labels in self._searched:
            values = [settings[name]]
            match search:
                case Layers():
                    values = values[0][:1]
                case Multiple():
                    values = [values[0] // settings[search.of]]
                case Ends():
                    start, _, end = str(values[0]).partition(":")
                    values = [float(start), float(end or start)]
            for label, value in zip(labels, values, strict=True):
                found[label] = _within(self.distributions[label], value)
        return found


def _parts(name: str, search: Search, whole: bool) -> dict[str, BaseDistribution]:
    """Return what is drawn for a setting."""
    match search:
        case Choice(values=values) | Layers(widths=values):
            return {name: CategoricalDistribution(values)}
        case Multiple():
            return {f"{name} / {search.of}": IntDistribution(search.low, search.high, log=True)}
        case Ends():
            ends = FloatDistribution(search.low, search.high, log=True)
            return {f"{name} start": ends, f"{name} end": ends}
    if whole:
        return {name: IntDistribution(int(search.low), int(search.high), log=search.log)}
    return {name: FloatDistribution(search.low, search.high, log=search.log)}


def _within(distribution: BaseDistribution, value: Any) -> Any:
    """Return the value of a distribution that is nearest to a given one."""
    if isinstance(distribution, CategoricalDistribution):
        return value if value in distribution.choices else distribution.choices[0]
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    nearest = min(max(value, distribution.low), distribution.high)
    return type(distribution.low)(nearest)
