"""Policies by name: those of imel, those of other packages, and any class as `module:Class`.

A policy of another package is found by its entry point in the group `imel.policies`:

    [project.entry-points."imel.policies"]
    fourier = "my_package.policies:FourierPolicy"
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from imel.errors import SettingsError, nearest_name, one_line

if TYPE_CHECKING:
    from imel.policies.base import Policy

P = TypeVar("P", bound="type[Policy]")

GROUP = "imel.policies"
"""The group of entry points in which other packages name their policies."""
_OWN = ("ridge", "mki", "np", "anp", "nearest", "regressor")
_REGISTERED: dict[str, type[Policy]] = {}


def register(name: str, label: str | None = None) -> Callable[[P], P]:
    """Give a policy class the name that commands, files and reports know it by.

    :param label: what reports call it; the class's name if not given
    """

    def registered(policy_class: P) -> P:
        policy_class.name, policy_class.label = name, label or policy_class.__name__
        _REGISTERED[name] = policy_class
        return policy_class

    return registered


def policies() -> dict[str, type[Policy]]:
    """Return the policies of imel and of installed packages, by their names."""
    importlib.import_module("imel.policies")  # which registers its own
    return {**{name: _REGISTERED[name] for name in _OWN}, **_installed()}


@functools.cache
def _installed() -> dict[str, type[Policy]]:
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        found[entry.name] = _required(entry.load(), entry.value)
    return found


def policy_names() -> list[str]:
    """Return the names that commands offer."""
    return list(policies())


def find_policy(policy: str | type[Any]) -> type[Policy]:
    """Return a policy by its name, its class's name or as `module:Class`; a class as it is.

    A module is imported, from the current folder too: name only what may be run.
    """
    if isinstance(policy, type):
        return _required(policy, policy.__name__)
    known = policies()
    by_class = {kind.__name__: kind for kind in known.values()}
    module, colon, attribute = policy.partition(":")
    if policy in known or policy in by_class:
        return known.get(policy) or by_class[policy]
    if not colon:
        hint = nearest_name(policy, [*known, *by_class])
        raise SettingsError(f"unknown policy '{policy}'; {hint} (or module:Class of your own)")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        return _required(getattr(importlib.import_module(module), attribute), policy)
    except SettingsError:
        raise
    except Exception as error:  # whatever the module raises while it is imported
        raise SettingsError(f"cannot import policy '{policy}': {one_line(error)}") from None


def loaded_policy(name: str) -> type[Policy] | None:
    """Return the policy that a file names, unless a module would have to be imported for it.

    A file is somebody else's: what it names is no reason to run code.
    """
    known = policies()
    if name in known:
        return known[name]
    module, _, attribute = name.partition(":")
    main = sys.modules.get("__main__")
    if module not in sys.modules and module == _script(main):
        module = "__main__"
    found = getattr(sys.modules.get(module), attribute, None) if attribute else None
    return found if isinstance(found, type) and _is_policy(found) else None


def name_of(policy_class: type[Policy]) -> str:
    """Return the name by which another process finds a policy: `ridge`, or `module:Class`."""
    for name, known in policies().items():
        if known is policy_class:
            return name
    module = policy_class.__module__
    if module == "__main__":
        module = _script(sys.modules[module]) or module
    return f"{module}:{policy_class.__qualname__}"


def _script(main: Any) -> str | None:
    """Return the name by which the running script can be imported."""
    file = getattr(main, "__file__", None)
    return None if file is None else Path(file).stem


def _is_policy(found: type[Any]) -> bool:
    from imel.policies.base import Policy

    return issubclass(found, Policy)


def _required(found: Any, name: str) -> type[Policy]:
    if not (isinstance(found, type) and _is_policy(found)):
        offered = ", ".join(kind.__name__ for kind in policies().values())
        raise SettingsError(
            f"'{name}' is no policy of imel; use one of {offered}, or a subclass of theirs"
        )
    return found
