"""What `imel bench speed` measured, as text and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from imel.report.names import algorithm_name, task_title

Row = Mapping[str, Any]
PARTS = {
    "environments": "#9e9e9e",
    "acting": "#0072b2",
    "fitting": "#e69f00",
    "critic": "#009e73",
    "rest": "#cc79a7",
}
"""What IMeL's time is spent on, and the colours of that."""
_FORMS = {
    "exact": ("exact", "#0072b2", "-"),
    "compiled": ("tiles, compiled", "#0072b2", "-"),
    "torch": ("tiles, plain torch", "#56b4e9", "--"),
    "index": ("indexed (faiss)", "#d55e00", "-"),
    "matrix": ("full masked matrix", "#000000", ":"),
    "floor": ("floor", "#9e9e9e", "-"),
}
_NAMES = {"environments": "environments alone", "trpo-8": "TRPO, 8 environments"}


def markdown(results: Mapping[str, Any], images: str) -> str:
    """Everything in tables; `images` is the pictures' folder as seen by the text."""
    rows: Sequence[Row] = results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    head = (
        f"One core of {results['processor']}, {_repeated(results['repetitions'])}, "
        f"{results['steps']:,} steps each. Commit {results['commit'][:10]}; {versions}.\n"
    )
    return "\n".join(
        [
            head,
            f"![Seconds for 10,000 steps of each task]({images}speed-tasks.png)\n",
            _tasks_table(rows),
            _parts_table(rows),
            f"![Cost against the size of the memory]({images}speed-scaling.png)\n",
            _acting_table(rows),
            _left_out_table(rows),
        ]
    )


def tasks_figure(results: Mapping[str, Any]) -> Figure:
    """A panel for each task, a bar for each algorithm, IMeL's split by what it does."""
    rows: Sequence[Row] = results["rows"]
    tasks = _tasks(rows)
    columns = min(4, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns, 0.9 + 2.9 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for place, axis in enumerate(axes):
        if place >= len(tasks):
            axis.set_visible(False)
            continue
        _task_panel(axis, tasks[place], _of_task(rows, tasks[place]))
    handles = [axes[0].barh([0], [0], color=colour, label=name) for name, colour in PARTS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(PARTS), frameon=False)
    figure.suptitle("seconds for 10,000 steps on one core")
    return figure


def _task_panel(axis: Axes, task: str, measured: Mapping[str, Row]) -> None:
    names = list(measured)[::-1]
    for place, name in enumerate(names):
        row, left = measured[name], 0.0
        if "fitting" in row:
            for part, colour in PARTS.items():
                axis.barh(place, row[part], left=left, color=colour)
                left += row[part]
        else:
            colour = PARTS["environments"] if name == "environments" else "#444444"
            axis.barh(place, row["seconds"], color=colour)
        axis.text(row["seconds"], place, f" {row['seconds']:.2f}", va="center", fontsize=8)
    axis.set_yticks(range(len(names)), [_name(name) for name in names], fontsize=8)
    axis.set_title(task_title(task), fontsize=10)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)


def scaling_figure(results: Mapping[str, Any]) -> Figure:
    """Acting and leaving episodes out, against the number of memories."""
    rows: Sequence[Row] = results["rows"]
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    acting = [row for row in rows if row["what"] == "acting"]
    _lines(left, acting, "size", "microseconds_1", 1.0)
    left.set(ylabel="microseconds", title="acting on one state")
    passes = [
        {**row, "form": row.get("form", "floor")}
        for row in rows
        if row["what"] in ("leaving_out", "floor")
    ]
    _lines(right, passes, "count", "both_seconds", 1e3)
    right.set(ylabel="milliseconds", title="leaving every episode out, forward and backward")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="memories")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    return figure


def _lines(axis: Axes, rows: Sequence[Row], x: str, y: str, unit: float) -> None:
    for form in dict.fromkeys(row["form"] for row in rows):
        label, colour, dashes = _FORMS[form]
        points = [(row[x], unit * row[y]) for row in rows if row["form"] == form]
        axis.plot(*zip(*points, strict=True), dashes, color=colour, label=label, marker="o")


def _tasks_table(rows: Sequence[Row]) -> str:
    tasks = _tasks(rows)
    if not tasks:
        return ""
    names = list(_of_task(rows, tasks[0]))
    body = []
    for task in tasks:
        measured = _of_task(rows, task)
        bare = measured["environments"]["seconds"]
        cells = [f"{bare:.2f}"]
        cells += [
            f"{measured[name]['seconds']:.2f} ({measured[name]['seconds'] / bare:.1f}×)"
            for name in names[1:]
        ]
        body.append([task_title(task), *cells])
    caption = "Seconds for 10,000 steps, and how many times those of the environments alone:\n\n"
    return caption + _table(["task", *map(_name, names)], body)


def _parts_table(rows: Sequence[Row]) -> str:
    learned = [row for row in rows if row["what"] == "learning"]
    body = [
        [
            task_title(row["task"]),
            _name(row["algorithm"]),
            *(f"{row[part]:.2f}" if part in row else "" for part in PARTS),
            f"{row['peak_mb']:.0f}",
        ]
        for row in learned
    ]
    caption = "What the seconds are spent on, and the most memory the process ever had:\n\n"
    return caption + _table(["task", "algorithm", *PARTS, "peak MB"], body)


def _repeated(repetitions: int) -> str:
    return "one measurement each" if repetitions == 1 else f"medians of {repetitions} repetitions"


def _acting_table(rows: Sequence[Row]) -> str:
    sizes = {row["size"]: row["bytes_per_transition"] for row in rows if row["what"] == "memory"}
    body = [
        [
            f"{row['size']:,}",
            _FORMS[row["form"]][0],
            f"{row['microseconds_1']:.0f}",
            f"{row['microseconds_8']:.0f}",
            f"{row['prepare_seconds']:.2f}",
            f"{100 * row['error']:.2f} %" if "error" in row else "",
            f"{sizes[row['size']]:.0f}",
        ]
        for row in rows
        if row["what"] == "acting"
    ]
    head = [
        "memories",
        "form",
        "µs, 1 state",
        "µs, 8 states",
        "s to prepare",
        "error",
        "bytes a memory",
    ]
    return "Acting, and what a memory takes (17 state and 6 action dimensions):\n\n" + _table(
        head, body
    )


def _left_out_table(rows: Sequence[Row]) -> str:
    floors = {row["count"]: row["both_seconds"] for row in rows if row["what"] == "floor"}
    body = [
        [
            f"{row['count']:,}",
            _FORMS[row["form"]][0],
            f"{1e3 * row['forward_seconds']:.1f}",
            f"{1e3 * row['both_seconds']:.1f}",
            f"{1e9 * row['both_seconds'] / row['count'] ** 2:.2f}",
            f"{row['both_seconds'] / floors[row['count']]:.2f}×",
            f"{row['extra_mb']:.0f}",
        ]
        for row in rows
        if row["what"] == "leaving_out"
    ]
    head = ["memories", "form", "ms forward", "ms both", "ns a pair", "of the floor", "extra MB"]
    return "Leaving every episode out, forward and backward:\n\n" + _table(head, body)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _tasks(rows: Sequence[Row]) -> list[str]:
    return [row["task"] for row in rows if row["what"] == "environments"]


def _of_task(rows: Sequence[Row], task: str) -> dict[str, Row]:
    """The environments alone and every algorithm, by name, in the order of measurement."""
    return {row.get("algorithm", "environments"): row for row in rows if row.get("task") == task}


def _name(label: str) -> str:
    return _NAMES.get(label) or algorithm_name(label)
