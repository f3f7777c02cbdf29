"""Tables of the pages that are generated from the code and from committed runs, between markers.

`make docs` writes them into the pages first. A test fails where a page and the code differ, so that
no default is ever written by hand.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from scipy.stats import spearmanr

from benchmarks.dynamics import dynamics_table
from benchmarks.paired import paired_table
from imel.bench.store import Store
from imel.registry import policies
from imel.report.labels import algorithm_name, short_steps, task_title
from imel.report.markdown import against_table, mean_cell
from imel.report.results import Results, gather
from imel.settings import Choice, Search, field_docs
from pages import PAGES, ROOT

_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- /generated -->)", re.DOTALL)
_UNUSED = "–"
RESULTS = ROOT / "results"
"""The committed runs, a store for each suite of the benchmark or question."""
GROUPS: dict[str, str] = {
    "experience": "rollout_size n_envs workers worker_timeout backend env_threads max_faults",
    "memory": "memory_size prior_size prior_std",
    "advantages": "gamma gae_lambda advantage advantage_clip",
    "improvement": "trust_region peak_kl full_step_gain penalty kl_budget clip_means",
    "exploration": "std std_rate std_mode min_std",
    "mean": "features hidden kernel_scale normalised latent min_value_std deterministic neighbours",
    "interpolator": "learning_rate gradient_steps targets_per_step leave_out max_grad_norm",
    "critic": "critic_hidden critic_learning_rate critic_epochs batch_size",
}
"""The tables of docs/settings.md, and the settings in each."""


def generated(text: str) -> str:
    """Return a page with its generated tables as the code has them now."""
    return _MARKED.sub(lambda match: f"{match[1]}{table(match[2])}\n{match[3]}", text)


def by_hand(text: str) -> str:
    """Return a page without its generated tables."""
    return _MARKED.sub("", text)


def table(name: str) -> str:
    """Return the table of this name: what is shown, and of what."""
    kind, *words = name.split()
    made = _TABLES[kind](*words)
    return made if isinstance(made, str) else "\n".join(made)


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# --- of settings ---


def _settings(group: str) -> str:
    """Return the settings of a group with their defaults: a row for each meaning of a name."""
    rows = []
    for name in GROUPS[group].split():
        meanings: dict[str, dict[str, str]] = {}
        for policy, kind in policies().items():
            for declared in fields(kind.Settings):
                if declared.name == name:
                    users = meanings.setdefault(field_docs(kind.Settings)[name], {})
                    users[policy] = f"`{declared.default!r}`".replace("'", '"')
        for meaning, users in meanings.items():
            ours = users.pop("ridge", _UNUSED)
            rows.append((f"`{name}`", ours, _of_each(users), _linked(meaning)))
    return _rows(("setting", "`RidgePolicy`", "the paper's", "what it does"), rows)


def _of_each(defaults: Mapping[str, str]) -> str:
    """Return the defaults of the paper's policies, by name unless all have the same."""
    users: dict[str, list[str]] = {}
    for policy, default in defaults.items():
        users.setdefault(default, []).append(f"`{policy}`")
    everyone = len(policies()) - 1
    cells = [
        default if len(names) == everyone else f"{default} ({', '.join(names)})"
        for default, names in users.items()
    ]
    return "; ".join(cells) or _UNUSED


def _linked(text: str) -> str:
    """Return a docstring with links to the paper notes it names."""
    headings = re.findall(r"^## (\d+)\. (.*)$", (ROOT / "docs/paper-notes.md").read_text(), re.M)
    anchors = {number: f"{number}-{title.lower().replace(' ', '-')}" for number, title in headings}

    return re.sub(
        r"[Pp]aper note (\d+)",
        lambda found: f"[{found[0]}](paper-notes.md#{anchors[found[1]]})",
        text,
    )


def _search() -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for policy, kind in policies().items():
        for declared in fields(kind.Settings):
            if search := declared.metadata.get("search"):
                found.setdefault((declared.name, _range(search)), []).append(f"`{policy}`")
    rows = [
        (f"`{name}`", values, "all" if len(users) == len(policies()) else ", ".join(users))
        for (name, values), users in found.items()
    ]
    return _rows(("parameter", "range", "of the policies"), rows)


def _range(search: Search) -> str:
    """Return where a setting is searched, in words."""
    if isinstance(search, Choice):
        cells = (f"`{each}`" if isinstance(each, str) else str(each) for each in search.values)
        return ", ".join(cells)
    words = f"{search.low:g} to {search.high:g}"
    # Of whole numbers it goes without saying
    return f"{words}, by its logarithm" if search.log and search.low % 1 else words


# --- of the code ---


def _layers() -> str:
    """Return the layers of the import rule, as import-linter enforces them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return "\n".join(["```text", *layers, "```"]).replace("imel.", "")


# --- of committed runs ---


def _gathered(store: str) -> Results:
    return gather(Store(RESULTS / store).rows())


def _results(store: str, *compared: str) -> str:
    """Return the final returns of algorithms, on the tasks that the first of them has rows of."""
    rows = []
    for task in _gathered(store).tasks:
        if compared[0] in task.groups:
            groups = {**task.groups, "random": task.random}
            found = [groups.get(name) for name in compared]
            cells = [_UNUSED if each is None else mean_cell(each.evaluated) for each in found]
            rows.append((task_title(task.task), short_steps(task.steps), *cells))
    names = [f"`{name}`" if name == "ridge" else algorithm_name(name) for name in compared]
    return _rows(("task (state, action)", "steps", *names), rows)


def _probe(task: str, *probes: str) -> str:
    """Return probes of a task, STEPS-SEED, beside the returns of interpolators as policies."""
    (results,) = [each for each in _gathered("probe").tasks if each.task == task]
    returns = {label.split()[0]: group.evaluated for label, group in results.groups.items()}
    probed = []
    for name in probes:
        document = json.loads((RESULTS / "probe" / f"{task}-{name}.json").read_text())
        probed.append({each["name"]: each for each in document["interpolators"]})
    columns = [
        (f"{words}, {name.partition('-')[0]}", measure, probe)
        for words, measure in (("error", "misfit"), ("gain", "gain"))
        for name, probe in zip(probes, probed, strict=True)
    ]
    rows = [
        (
            f"`{name}`",
            *(
                "{:.3f} ± {:.3f}".format(*probe[name][measure]) if name in probe else _UNUSED
                for _, measure, probe in columns
            ),
            " ".join(f"{value:.0f}" for value in returns.get(name, [])) or _UNUSED,
        )
        for name in sorted(set().union(*probed))
    ]
    means = [returns[name].mean() for name in sorted(returns)]
    ranks = []
    for _, measure, probe in columns:
        values = [probe[name][measure][0] for name in sorted(returns)]
        rank = float(spearmanr(values, means).statistic)
        ranks.append(f"{-rank if measure == 'misfit' else rank:+.1f}")
    rows.append(("*rank correlation with the mean return*", *ranks, ""))
    headings = ("interpolator", *(heading for heading, _, _ in columns), "returns as a policy")
    return _rows(headings, rows)


_TABLES: dict[str, Callable[..., str | list[str]]] = {
    "settings": _settings,
    "search": _search,
    "layers": _layers,
    "results": _results,
    "probe": _probe,
    "against": lambda store, *names: against_table(_gathered(store), *names),
    "paired": lambda store, *names: paired_table(RESULTS / store, *names),
    "dynamics": lambda: dynamics_table(RESULTS / "dynamics"),
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
