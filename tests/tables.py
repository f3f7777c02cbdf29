"""Tables of the pages that are generated from the code, between markers.

`make docs` writes them into the pages first. A test fails
where a page and the code differ, so that no default is ever written by hand.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from gymnasium import spaces
from scipy.stats import spearmanr

from benchmarks.dynamics import dynamics_table
from benchmarks.paired import paired_table
from imel.bench.store import Store
from imel.bench.tasks import SPACE_TASKS
from imel.errors import SpaceError
from imel.policies import PaperPolicy, Policy, RidgePolicy
from imel.registry import policies
from imel.report.labels import algorithm_name, short_steps, task_title
from imel.report.markdown import against_table, mean_cell, scores_table
from imel.report.results import Results, TaskResults, gather
from imel.report.scores import MEASURES, scores_of
from imel.settings import Choice, Search, field_docs
from pages import PAGES, ROOT
from small import POLICIES

_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- /generated -->)", re.DOTALL)
_UNUSED = "–"
RESULTS = ROOT / "results"
"""The committed runs, a store for each suite of the benchmark or question."""
KINDS: dict[str, spaces.Space[Any]] = {
    "`Box`": spaces.Box(-1.0, 1.0, (2,)),
    "`Discrete`": spaces.Discrete(2),
    "`MultiDiscrete`": spaces.MultiDiscrete([2, 3]),
    "`MultiBinary`": spaces.MultiBinary(2),
    "`Dict`": spaces.Dict(part=spaces.Discrete(2)),
}
PROBES = RESULTS / "probe"
"""Probes of two runs, and the returns of the interpolators as policies."""

GROUPS: dict[str, tuple[str, ...]] = {
    "experience": (
        "rollout_size",
        "n_envs",
        "workers",
        "worker_timeout",
        "backend",
        "env_threads",
        "max_faults",
    ),
    "memory": ("memory_size", "prior_size", "prior_std"),
    "advantages": ("gamma", "gae_lambda", "advantage", "advantage_clip"),
    "improvement": ("trust_region", "kl_budget", "clip_means"),
    "exploration": ("std", "std_rate", "std_mode", "min_std"),
    "interpolator": (
        "learning_rate",
        "gradient_steps",
        "targets_per_step",
        "leave_out",
        "max_grad_norm",
    ),
    "critic": ("critic_hidden", "critic_learning_rate", "critic_epochs", "batch_size"),
}
"""The tables of docs/settings.md, and the settings in each."""


def generated(text: str) -> str:
    """Return a page with its generated tables as the code has them now."""
    return _MARKED.sub(lambda match: f"{match[1]}{table(match[2])}\n{match[3]}", text)


def by_hand(text: str) -> str:
    """Return a page without its generated tables."""
    return _MARKED.sub("", text)


def table(name: str) -> str:
    """Return the table of this name."""
    kind, _, which = name.partition(" ")
    if kind == "settings":
        return _rows(
            ("setting", "`RidgePolicy`", "the paper's", "what it does"),
            [row for setting in GROUPS[which] for row in _setting(setting)],
        )
    if kind == "options":
        return _rows(("policy", "option", "default", "what it does"), _options())
    if kind == "search":
        return _rows(("parameter", "range", "of the policies"), _search())
    if kind == "layers":
        return _layers()
    if kind == "results":
        store, *compared = which.split()
        return _results(store, compared)
    if kind == "against":
        store, first, other = which.split()
        return "\n".join(against_table(_gathered(store), first, other))
    if kind == "scores":
        store, *others = which.split()
        return _scores(store, others)
    if kind == "probe":
        return _probe(which)
    if kind == "spaces":
        return _spaces()
    if kind == "space-results":
        return _space_results()
    if kind == "runs":
        return _runs(which)
    if kind == "paired":
        folder, first, second = which.split()
        return "\n".join(paired_table(RESULTS / folder, first, second))
    if kind == "dynamics":
        return "\n".join(dynamics_table(RESULTS / "dynamics"))
    raise ValueError(f"there is no table '{name}'")


def _gathered(store: str) -> Results:
    return gather(Store(RESULTS / store).rows())


def _results(store: str, compared: list[str]) -> str:
    """Return the final returns of algorithms, on the tasks that the first of them has rows of."""
    rows = [
        (
            task_title(task.task),
            short_steps(task.steps),
            *(
                mean_cell(task.groups[name].evaluated) if name in task.groups else _UNUSED
                for name in compared
            ),
        )
        for task in _gathered(store).tasks
        if compared[0] in task.groups
    ]
    names = ["`ridge`" if name == "ridge" else algorithm_name(name) for name in compared]
    return _rows(("task (state, action)", "steps", *names), rows)


def _scores(store: str, others: list[str]) -> str:
    """Return scores over all tasks and failed runs, beside the first of the others as the unit."""
    results = _gathered(store)
    measures = [scores_of(results, others[0], measure)[0] for measure in MEASURES]
    return "\n".join(scores_table(results, measures, results.labels, others))


def _probe(name: str) -> str:
    """Return a probe, TASK-STEPS-SEED, beside the returns of policies made of interpolators."""
    task, document = name.partition("-")[0], json.loads((PROBES / f"{name}.json").read_text())
    results = next(each for each in _gathered("probe").tasks if each.task == task)
    groups = {label.split()[0]: group for label, group in results.groups.items()}
    rows, ranked = [], []
    for each in document["interpolators"]:
        (gain, gain_error), (misfit, misfit_error) = each["gain"], each["misfit"]
        cells = [f"`{each['name']}`", f"{gain:+.4f} ± {gain_error:.4f}"]
        cells += [f"{misfit:.3f} ± {misfit_error:.3f}", _UNUSED, _UNUSED]
        if each["name"] in groups:
            returns = [run.evaluated for run in groups[each["name"]].runs]
            ranked.append((gain, -misfit, float(np.mean(returns))))
            cells[3:] = [" ".join(f"{value:.0f}" for value in returns), f"{np.mean(returns):.0f}"]
        rows.append(tuple(cells))
    gains, fits, means = zip(*ranked, strict=True)
    by_gain, by_fit = (float(spearmanr(one, means).statistic) for one in (gains, fits))
    lines = _rows(("interpolator", "gain", "error", "returns as a policy", "mean"), rows)
    return (
        f"{lines}\n\nRank correlation with the mean return, over {len(ranked)} interpolators: "
        f"{by_gain:+.1f} by gain, {by_fit:+.1f} by error."
    )


def _spaces() -> str:
    """Return which spaces each policy takes, as observations and as actions."""

    def taken(policy: type[Policy], space: spaces.Space[Any]) -> str:
        observed = _makes(policy, space, KINDS["`Box`"])
        acted = _makes(policy, KINDS["`Box`"], space)
        return {(True, True): "✔", (True, False): "observations"}.get((observed, acted), _UNUSED)

    rows = [
        (f"`{name}`", *(taken(policy, space) for space in KINDS.values()))
        for name, policy in POLICIES.items()
    ]
    return _rows(("policy", *KINDS), rows)


def _makes(policy: type[Policy], observed: spaces.Space[Any], acted: spaces.Space[Any]) -> bool:
    try:
        policy(observed, acted, memory_size=2)
    except SpaceError:
        return False
    return True


def _space_results() -> str:
    """Return every seed's final return on tasks with other spaces than vectors, and medians."""
    columns = ("ridge", "ppo")

    def cell(task: TaskResults, name: str) -> str:
        if name not in task.groups:
            return _UNUSED
        returns = task.groups[name].evaluated
        return f"**{np.median(returns):.4g}** ({', '.join(f'{value:.4g}' for value in returns)})"

    found = {task.task: task for task in _gathered("spaces").tasks}
    rows = [
        (
            f"`{task.task}`",
            short_steps(task.steps),
            *(cell(task, name) for name in columns),
            _UNUSED if task.random is None else f"{task.random.evaluated.mean():.4g}",
        )
        for task in (found[name] for name in SPACE_TASKS if name in found)
    ]
    return _rows(("task", "steps", "`RidgePolicy`", "PPO", "at random"), rows)


def _runs(folder: str) -> str:
    """Return the final return of every seed in a store, a row for each task and setting."""
    rows = [
        (
            task_title(task.task),
            f"`{group.label}`",
            ", ".join(f"{run.evaluated:.4g} ({run.seed})" for run in group.runs),
        )
        for task in _gathered(folder).tasks
        for group in task.groups.values()
    ]
    return _rows(("task (state, action)", "algorithm, settings changed", "return (seed)"), rows)


def _rows(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _setting(name: str) -> list[tuple[str, ...]]:
    """Return a setting's row; two rows where it means something else to each family."""
    paper = [one for one in POLICIES.values() if issubclass(one, PaperPolicy)]
    users = [policy for policy in paper if name in _defaults(policy.Settings)]
    ours = _described(RidgePolicy.Settings, name)
    label = f"`{name}`"
    if not users:
        assert ours is not None
        return [(label, ours[0], _UNUSED, ours[1])]
    theirs = _described(users[0].Settings, name)
    assert theirs is not None
    default, text = _of_each(name, users), theirs[1]
    others = [f"`{policy.__name__}`" for policy in paper if policy not in users]
    text += f" Not used by {', '.join(others)}." if others else ""
    if ours is None:
        return [(label, _UNUSED, default, text)]
    if ours[1] == theirs[1]:
        return [(label, ours[0], default, text)]
    return [(label, ours[0], _UNUSED, ours[1]), (label, _UNUSED, default, text)]


def _of_each(name: str, policies: Sequence[type[Policy]]) -> str:
    """Return the default of some policies, with their names where they differ in it."""
    found: dict[str, list[str]] = {}
    for policy in policies:
        value = _code(_defaults(policy.Settings)[name])
        found.setdefault(value, []).append(f"`{policy.__name__}`")
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in found.items())


def _defaults(Settings: type[Any]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(Settings)}


def _described(Settings: type[Any], name: str) -> tuple[str, str] | None:
    """Return a setting's default and what its docstring says, or None if it has no such setting."""
    defaults = _defaults(Settings)
    if name not in defaults:
        return None
    return _code(defaults[name]), _linked(field_docs(Settings)[name])


def _code(value: object) -> str:
    return f"`{value!r}`".replace("'", '"')


def _linked(text: str) -> str:
    """Return a docstring with links to the paper notes it names."""
    headings = re.findall(r"^## (\d+)\. (.*)$", (ROOT / "docs/paper-notes.md").read_text(), re.M)
    anchors = {number: f"{number}-{title.lower().replace(' ', '-')}" for number, title in headings}
    return re.sub(
        r"(?:(P)|p)aper note (\d+)",
        lambda found: (
            f"[{'Note' if found[1] else 'note'} {found[2]}](paper-notes.md#{anchors[found[2]]})"
        ),
        text,
    )


def _options() -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", f"`{field.name}`", _code(field.default), _linked(docs[field.name]))
        for name, policy in POLICIES.items()
        for docs in [field_docs(policy.options_class)]
        for field in fields(policy.options_class)
    ]


def _layers() -> str:
    """Return the layers of the import rule, as import-linter enforces them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    lines = "".join(f"{layer}\n" for layer in layers).replace("imel.", "")
    return f"```text\n{lines}```"


def _search() -> list[tuple[str, ...]]:
    found: dict[tuple[str, str], list[str]] = {}
    for policy, kind in policies().items():
        for field in fields(kind.Settings):
            if search := field.metadata.get("search"):
                found.setdefault((field.name, _range(search)), []).append(policy)
    return [
        (
            f"`{name}`",
            values,
            "all" if len(users) == len(policies()) else ", ".join(f"`{user}`" for user in users),
        )
        for (name, values), users in found.items()
    ]


def _range(search: Search) -> str:
    """Return where a setting is searched, in words."""
    if isinstance(search, Choice):
        return ", ".join(
            f"`{each}`" if isinstance(each, str) else f"{each}" for each in search.values
        )
    words = f"{search.low:g} to {search.high:g}"
    # Of whole numbers it goes without saying
    return f"{words}, by its logarithm" if search.log and search.low % 1 else words


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
