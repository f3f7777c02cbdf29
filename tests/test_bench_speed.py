"""`imel bench speed`: what is measured, that parts add up, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.patches import Rectangle

from imel.bench import speed, speed_kernels, speed_worker
from imel.bench.algorithms import find_algorithm
from imel.bench.speed import Cell, Figures, Plan, measure
from imel.cli.main import main
from imel.errors import ImelError
from imel.interpolators.base import effective_neighbours
from imel.kernels import kernel_interpolation
from imel.memory import Memory
from imel.report.speed import markdown, scaling_figure, tasks_figure
from imel.updates import learner
from small import BATCH, small_model

INVENTED: dict[str, Figures] = {
    "environments": {"seconds": 2.0, "peak_mb": 100.0},
    "learning": {
        "seconds": 5.0,
        "environments": 2.5,
        "acting": 0.5,
        "fitting": 1.5,
        "critic": 0.25,
        "rest": 0.25,
        "peak_mb": 400.0,
    },
    "memory": {"bytes_per_transition": 300.0, "grown_mb": 1.0},
    "acting": {"microseconds_1": 10.0, "microseconds_8": 40.0, "prepare_seconds": 0.5},
    "leaving_out": {"forward_seconds": 0.5, "both_seconds": 1.5, "extra_mb": 7.0},
    "floor": {"forward_seconds": 0.2, "both_seconds": 0.5},
}


@pytest.fixture
def _invented(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(cell: Cell) -> Figures:
        if cell.arguments.get("algorithm") in ("trpo", "trpo-8", "ppo"):
            return {"seconds": 20.0, "peak_mb": 300.0}
        return dict(INVENTED[cell.what])

    monkeypatch.setattr(speed, "run_cell", figures)


def small_plan() -> Plan:
    return Plan(("hopper", "Pendulum-v1"), sizes=(100, 1000), left_out=(100, 1000))


def test_every_task_is_measured_alone_and_with_every_algorithm() -> None:
    cells = small_plan().cells()
    for task in ("hopper", "Pendulum-v1"):
        names = [cell.arguments.get("algorithm") for cell in cells if task in cell.label.split()]
        assert names == [None, *speed.LEARNERS]


@pytest.mark.parametrize(("tasks", "learners"), [(("hoper",), ("mki",)), (("hopper",), ("mkii",))])
def test_what_cannot_be_run_is_refused_before_anything_is_measured(
    tasks: tuple[str, ...], learners: tuple[str, ...]
) -> None:
    with pytest.raises(ImelError):
        measure(Plan(tasks, learners), lambda *_: pytest.fail("something was measured"))


def test_repetitions_take_turns_and_their_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def figures(cell: Cell) -> Figures:
        seen.append(cell.label)
        return {"seconds": [9.0, 1.0, 3.0][seen.count(cell.label) - 1]}

    monkeypatch.setattr(speed, "run_cell", figures)
    plan = Plan(("hopper",), ("mki",), sizes=(), left_out=())
    results = measure(plan, lambda *_: None)
    assert seen == ["environments hopper 10000", "learning hopper mki 10000"] * 3
    assert [row["seconds"] for row in results["rows"]] == [3.0, 3.0]


def test_a_measurement_that_fails_is_named_in_one_line() -> None:
    with pytest.raises(ImelError, match=r"'memory nothing' failed: .*Error"):
        speed.run_cell(Cell("memory", {"size": "nothing"}))


def test_a_measurement_runs_in_a_process_of_its_own() -> None:
    figures = speed.run_cell(Cell("memory", {"size": 200_000}))
    columns = Memory(10, state_dim=17, action_dim=6)
    row = sum(columns.get_buffer(name)[0].nbytes for name in columns.column_names)
    assert figures["bytes_per_transition"] == row
    assert figures["grown_mb"] == pytest.approx(200_000 * row / 2**20, rel=0.1)


@pytest.mark.parametrize(("states", "actions"), [(2, 1), (17, 6), (257, 17)])
def test_a_memory_takes_what_the_documentation_says(states: int, actions: int) -> None:
    columns = Memory(10, states, actions)
    row = sum(columns.get_buffer(name)[0].nbytes for name in columns.column_names)
    assert row == 4 * (2 * states + 6 * actions + 3) + 32
    assert (states, actions, row) in [(2, 1, 84), (17, 6, 324), (257, 17, 2508)]


def test_a_longer_run_takes_no_more_memory() -> None:
    model = small_model()

    def held() -> int:
        tensors = [*model.policy.state_dict().values(), *model.critic.state_dict().values()]
        return sum(tensor.nbytes for tensor in tensors)

    before = held()
    for _ in range(4):  # the memory is full after two batches
        model.learn(2 * BATCH, reset_num_timesteps=False)
        assert held() == before


def test_the_parts_of_learning_add_up_and_nothing_stays_attached() -> None:
    before = vars(learner)["fit_leave_one_out"]
    figures = speed_worker.learning("Pendulum-v1", "mki", steps=1024)
    parts = [figures[name] for name in ("environments", "acting", "fitting", "critic", "rest")]
    assert sum(parts) == pytest.approx(figures["seconds"])
    assert min(parts) > 0.0
    assert vars(learner)["fit_leave_one_out"] is before


def test_trpo_with_as_many_environments_keeps_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = find_algorithm("trpo").make

    class Watching:
        settings = staticmethod(find_algorithm("trpo").settings)

        @staticmethod
        def make(*arguments: Any, **named: Any) -> Any:
            made.append(original(*arguments, **named))
            return made[-1]

    monkeypatch.setattr(speed_worker, "find_algorithm", lambda name: Watching)
    figures = speed_worker.learning("Pendulum-v1", "trpo-8", steps=8)
    assert (made[0].n_envs, made[0].n_steps) == (8, 256)
    assert set(figures) == {"seconds", "peak_mb"}


def test_made_up_answers_rest_on_as_many_memories_as_they_are_to() -> None:
    keys, values, queries = speed_kernels.wandering(2000)
    assert keys.shape == (2000, 16)
    assert values.shape == (2000, 6)
    weights = (-torch.cdist(queries[:8], keys).square()).softmax(dim=1)
    assert 10.0 < float(effective_neighbours(weights).mean()) < 20.0


def test_all_ways_to_leave_episodes_out_give_the_same_answers() -> None:
    keys, values, _ = speed_kernels.wandering(1200)
    episodes = torch.arange(1200) // 500
    expected = speed_kernels.full_matrix(keys, values, episodes)
    for absent in (True, False):
        with speed_kernels.without_numba(absent):
            answer = kernel_interpolation(keys, keys, values, episodes, episodes)
        torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("_invented")
def test_the_text_has_every_number_and_its_ratios() -> None:
    results = measure(small_plan(), lambda *_: None)
    text = markdown(results, "pictures/")
    assert "| Hopper (11, 3) | 2.00 | 5.00 (2.5×) |" in text
    assert "20.00 (10.0×)" in text
    assert "| Hopper (11, 3) | IMeL, MKI | 2.50 | 0.50 | 1.50 | 0.25 | 0.25 | 400 |" in text
    assert "| Hopper (11, 3) | TRPO, 8 environments |  |  |  |  |  | 300 |" in text
    assert "| 1,000 | full masked matrix | 500.0 | 1500.0 | 1500.00 | 3.00× | 7 |" in text
    assert "(pictures/speed-tasks.png)" in text


@pytest.mark.usefixtures("_invented")
def test_the_figures_show_each_task_and_each_form() -> None:
    results = measure(small_plan(), lambda *_: None)
    tasks = [axis for axis in tasks_figure(results).axes if axis.get_visible()]
    assert [axis.get_title() for axis in tasks] == ["Hopper (11, 3)", "Pendulum-v1"]
    widths = [bar.get_width() for bar in tasks[0].patches if isinstance(bar, Rectangle)]
    assert {2.0, 2.5, 1.5, 20.0} <= set(widths)
    acting, passes = scaling_figure(results).axes
    assert "exact" in acting.get_legend_handles_labels()[1]
    labels = passes.get_legend_handles_labels()[1]
    assert {"floor", "full masked matrix", "tiles, plain torch"} <= set(labels)


@pytest.mark.usefixtures("_invented")
def test_the_command_writes_all_files_and_the_page_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed: begin -->\nold\n<!-- speed: end -->\nafter\n")
    out = tmp_path / "pictures"
    arguments = ["--tasks", "hopper", "--repetitions", "1", "--out", str(out), "--into", str(page)]
    assert main(["bench", "speed", *arguments]) == 0
    assert {path.name for path in out.iterdir()} == {
        "speed.json",
        "speed-tasks.png",
        "speed-scaling.png",
    }
    text = page.read_text()
    assert text.startswith("before\n<!-- speed: begin -->\n\nOne core of")
    assert text.endswith("<!-- speed: end -->\nafter\n")
    assert "old" not in text
    assert "(pictures/speed-tasks.png)" in text
    rows = json.loads((out / "speed.json").read_text())["rows"]
    assert len(rows) == len(Plan(("hopper",)).cells())


@pytest.mark.usefixtures("_invented")
def test_only_some_algorithms_can_be_timed(tmp_path: Path) -> None:
    chosen = ["--tasks", "hopper", "--algorithms", "ridge", "trpo", "--repetitions", "1"]
    assert main(["bench", "speed", *chosen, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    learners = [row["algorithm"] for row in rows if row["what"] == "learning"]
    assert learners == ["ridge", "trpo"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "0"], "steps=0 must be at least 1"),
        (["--tasks", "hoper"], "did you mean 'hopper'?"),
        (["--algorithms", "rigde"], "did you mean 'ridge'?"),
        (["--algorithms"], "--algorithms names none"),
        (["--into", "nowhere.md"], "nowhere.md"),
        (["--repetition", "1"], "did you mean '--repetitions'?"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "run_cell", lambda cell: pytest.fail("something was measured"))
    assert main(["bench", "speed", *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_quick_measurement_runs_from_end_to_end(tmp_path: Path) -> None:
    assert (
        main(["bench", "speed", "--quick", "--tasks", "Pendulum-v1", "--out", str(tmp_path)]) == 0
    )
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert {row["what"] for row in rows} == set(INVENTED)
