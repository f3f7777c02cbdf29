"""The store: rows come back as they were added, whoever writes, and bad ones are refused."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from imel.bench.store import IDENTITY, Row, Store
from imel.cli.main import main
from imel.errors import ImelError
from imel.report.results import gather
from stored import curve


def named(*identity: Any) -> Row:
    return dict(zip(IDENTITY, identity, strict=True))


def test_rows_come_back_as_they_were_stored_a_file_for_each_algorithm(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert store.rows() == []
    assert store.final_row(named("hopper", "mki", "ab", 1, 100)) is None
    own = "my_module:MyPolicy"
    runs = [curve(1), curve(0), curve(0, task="module:Env/it-v0"), curve(2, own)]
    for rows in runs:
        store.add(rows)
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "mki.jsonl",
        "my_module.MyPolicy.jsonl",
    ]
    assert store.rows() == [row for run in runs for row in run]
    assert store.final_row(named("hopper", "mki", "ab", 1, 100)) == runs[0][-1]
    assert store.final_row(named("module:Env/it-v0", "mki", "ab", 0, 100))
    assert store.final_row(named("hopper", own, "ab", 2, 100))
    others = [("ant", "mki", "ab", 1, 100), ("hopper", "np", "ab", 1, 100)]
    others += [("hopper", "mki", "a", 1, 100), ("hopper", "mki", "ab", 1, 10)]
    assert not any(store.final_row(named(*other)) for other in others)


def test_what_is_the_same_in_all_rows_of_a_run_is_written_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, last = curve()
    middle = {**first, "step": 70, "seconds": 2.0}
    path = store.add([first, middle, last])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == first
    changing = {"step", "seconds", "eval_return", "final"}
    assert all(changing <= set(line) for line in lines[1:])
    assert not any({"task", "settings_hash", "seed"} & set(line) for line in lines[1:])
    assert store.rows() == [first, middle, last]
    every = "".join(json.dumps(row) + "\n" for row in curve(seed=3))  # rows that repeat everything
    path.write_text(every)
    assert store.rows() == curve(seed=3)


@pytest.mark.parametrize("kept", [20, 1])
def test_what_a_kill_left_of_a_line_counts_for_nothing_and_the_next_run_repairs_it(
    tmp_path: Path, kept: int
) -> None:
    store = Store(tmp_path)
    path = store.add(curve(seed=1))
    whole = path.read_bytes()
    store.add(curve(seed=0))
    path.write_bytes(path.read_bytes()[:-kept])  # one byte: only the end of the line is missing
    assert [row["seed"] for row in store.rows()] == [1, 1, 0]
    assert store.final_row(named("hopper", "mki", "ab", 0, 100)) is None
    [task] = gather(store.rows()).tasks
    assert [run.seed for run in task.groups["mki"].runs] == [1]
    store.add(curve(seed=0, returns=2.0))
    assert path.read_bytes().startswith(whole)
    [task] = gather(store.rows()).tasks
    assert [(run.seed, run.evaluated) for run in task.groups["mki"].runs] == [(0, 2.0), (1, 1.0)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"algorithm": "../../mki"}, "algorithm has characters"),
        ({"task": "<b>hopper</b>"}, "task has characters"),
        ({"settings_hash": "a\nb"}, "settings_hash has characters"),
        ({"seed": "1"}, "seed is missing or of the wrong type"),
        ({"overrides": []}, "overrides is missing or of the wrong type"),
        ({"step": None}, "step is missing or of the wrong type"),
        ({"step": -1}, "step is out of range"),
        ({"train_return": float("nan")}, "train_return is out of range"),
        ({"eval_return": 10**200}, "eval_return is out of range"),
        ({"eval_return": None, "final": True}, "a last row without eval_return"),
        ({"processor": ["fast"]}, "processor is missing or of the wrong type"),
        ({"error": 1}, "error is missing or of the wrong type"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(
    tmp_path: Path, changes: dict[str, Any], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Store(tmp_path).add(curve())
    with path.open("a") as file:
        file.write(json.dumps(curve(1)[0] | changes) + "\n")
    with pytest.raises(ImelError, match=rf"mki\.jsonl, line 3: no row of a run \({complaint}"):
        Store(tmp_path).rows()
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("line", ['{"ta', "[1, 2]", "3", "[" * 100_000, '{"step": 50}', ""])
def test_a_line_that_is_no_row_is_refused_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = Store(tmp_path).add(curve())
    path.write_text(f"{line}\n{path.read_text()}")
    with pytest.raises(ImelError, match=r"mki\.jsonl, line 1: no row of a run"):
        Store(tmp_path).rows()


def add_many(folder: Path, count: int, start: Event) -> None:
    start.wait()
    for _ in range(count):
        Store(folder).add(curve() * 20)


def test_two_writers_at_once_lose_nothing_and_readers_see_whole_rows(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that is held
    start = context.Event()
    writers = [context.Process(target=add_many, args=(tmp_path, 100, start)) for _ in range(2)]
    for writer in writers:
        writer.start()
    start.set()
    while any(writer.is_alive() for writer in writers):
        Store(tmp_path).rows()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(Store(tmp_path).rows()) == 2 * 100 * 40
    assert [path.name for path in tmp_path.iterdir()] == ["mki.jsonl"]
