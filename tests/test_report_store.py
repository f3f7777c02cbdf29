"""Reports of whole stores: what is gathered, aligned, compared, drawn and written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from imel.bench.store import Row, Store
from imel.cli.main import main
from imel.cli.report import around_marks
from imel.report.figures import (
    COST,
    EVALUATION,
    PAPER,
    TRAINING,
    align,
    curves_figure,
    line,
    mean_and_interval,
    mean_and_percentiles,
    scores_figure,
)
from imel.report.markdown import against_table, make_report, paper_figure, png
from imel.report.results import (
    Results,
    failed,
    gather,
    overall,
    overall_probability,
    scores_of,
)
from pages import ROOT
from stored import (
    curve,
    random_rows,
    rows_of_runs,
    run_rows,
    runs_in,
    small_rows,
    small_store,
)

HOPPER = "### Hopper (11, 3)"


@pytest.fixture
def results() -> Results:
    return gather(small_rows())


# --- gathering ---


def test_tasks_and_algorithms_come_in_the_papers_order(results: Results) -> None:
    assert [task.task for task in results.tasks] == ["hopper", "ant"]
    assert results.labels == ["mki", "np", "trpo", "ppo"]
    assert results.tasks[0].groups["mki"].evaluated.tolist() == [300, 200, 500, 400, 900]
    assert results.commits == ("0123456789",)


def test_results_do_not_depend_on_the_order_of_runs() -> None:
    turned = [row for run in reversed(runs_in(small_rows())) for row in run]
    reports = [make_report(gather(rows), "trpo", ["ppo"], "") for rows in (small_rows(), turned)]
    assert reports[0].body == reports[1].body
    one, other = (png(report.figures["curves-training.png"]) for report in reports)
    assert one == other


def test_overrides_make_a_variant_and_other_settings_of_one_name_are_kept_apart() -> None:
    rows = run_rows("hopper", "mki", 0, 1.0)
    rows += run_rows("hopper", "mki", 0, 2.0, settings_hash="cd", overrides={"std": 0.5})
    rows += run_rows("ant", "mki", 0, 3.0) + run_rows("ant", "mki", 0, 4.0, settings_hash="cd")
    gathered = gather(rows)
    assert list(gathered.tasks[0].groups) == ["mki", "mki std=0.5"]
    assert list(gathered.tasks[1].groups) == ["mki #ab", "mki #cd"]


def test_chance_belongs_to_every_number_of_steps_of_its_task() -> None:
    rows = [*run_rows("hopper", "mki", 0, 1.0), *run_rows("hopper", "mki", 0, 2.0, steps=2000)]
    rows += random_rows("hopper", 0, 7.0) + random_rows("ant", 0, 8.0)
    gathered = gather(rows)
    found = [(task.task, task.steps) for task in gathered.tasks]
    assert found == [("hopper", 1000), ("hopper", 2000), ("ant", 0)]
    chance = [task.random.evaluated.tolist() for task in gathered.tasks if task.random]
    assert chance == [[7.0], [7.0], [8.0]]
    assert gathered.labels == ["mki"]


def test_the_stochastic_return_is_that_of_the_episodes_of_the_last_tenth() -> None:
    early, last = curve()
    late = early | {"step": 95, "train_return": 4.0, "train_episodes": 3}
    last |= {"train_return": 8.0, "train_episodes": 1}
    [task] = gather([early | {"step": 90}, late, last]).tasks
    assert task.groups["mki"].explored.tolist() == [5.0]


# --- curves ---


def test_runs_with_rows_at_other_steps_are_aligned_by_interpolation() -> None:
    early = np.array([[100.0, 1.0], [500.0, 5.0], [1000.0, 10.0]])
    late = np.array([[150.0, 30.0], [930.0, 186.0]])
    grid, values = align([early, late], 1000)
    assert grid[0] == 150.0  # before it the second run has no value
    assert (np.diff(grid) > 0).all()
    assert grid[-1] == 1000.0
    assert_allclose(values[:, 0], grid / 100.0)
    known = grid <= 930.0
    assert_allclose(values[known, 1], grid[known] / 5.0)
    assert_allclose(values[~known, 1], 186.0)
    grid, values = align([np.array([[1200.0, 3.0]]), np.array([[1100.0, 5.0]])], 1000)
    assert (grid.tolist(), values.tolist()) == ([1200.0], [[3.0, 5.0]])  # beyond the budget


def test_the_papers_band_goes_from_the_20th_to_the_80th_percentile_around_the_mean() -> None:
    values = np.array([[0.0, 10.0, 20.0, 30.0, 90.0]])
    assert_allclose(mean_and_percentiles(values)[:, 0], [30.0, 8.0, 42.0])
    assert mean_and_interval(values)[0, 0] == 20.0


def test_a_line_is_made_of_the_runs_that_have_values(results: Results) -> None:
    evaluation = line(results.tasks[0].groups["trpo"].runs, 1000, EVALUATION)
    assert evaluation is not None
    assert_allclose(evaluation[:2, [0, -1]], [[500.0, 1000.0], [60.0, 120.0]])
    assert line([], 1000, PAPER) is None


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}


def legend_of(figure: Figure) -> dict[str, str]:
    [legend] = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    return dict(zip(names, [to_hex(h.get_color()) for h in legend.get_lines()], strict=True))


def test_each_task_has_a_panel_and_each_algorithm_one_colour_in_all(results: Results) -> None:
    figure = curves_figure(results, results.labels, TRAINING)
    axes = panels(figure)
    assert list(axes) == ["Hopper (11, 3)", "Ant (27, 8)"]
    legend = legend_of(figure)
    assert list(legend) == ["IMeL, MKI", "IMeL, NP", "TRPO", "PPO"]
    assert len(set(legend.values())) == 4
    colours = dict(zip(["mki", "np", "trpo", "ppo"], legend.values(), strict=True))
    for panel, drawn in zip(axes.values(), (colours, ["mki", "trpo"]), strict=True):
        found = {str(one.get_label()): to_hex(one.get_color()) for one in panel.lines}
        assert found == {name: colours[name] for name in drawn}
    [trpo] = [one for one in axes["Hopper (11, 3)"].lines if one.get_label() == "trpo"]
    assert_allclose(np.asarray(trpo.get_ydata())[-1], 60.0)
    figure.draw_without_rendering()
    assert "1k" in [tick.get_text() for tick in axes["Ant (27, 8)"].get_xticklabels()]


def test_the_legend_is_no_wider_than_its_figure() -> None:
    algorithms = ["mki", "np", "regressor", "ridge", "trpo", "trpo-plain", "ppo", "udrl"]
    rows = rows_of_runs({"hopper": {name: [1.0] for name in algorithms}})
    figure = curves_figure(gather(rows), algorithms, TRAINING)
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert len(legend.get_texts()) == len(algorithms)
    inside = legend.get_window_extent()
    assert figure.bbox.x0 <= inside.x0 < inside.x1 <= figure.bbox.x1


def test_a_task_without_a_finished_episode_says_so_in_its_panel() -> None:
    rows = run_rows("hopper", "mki", 0, 1.0, train_episodes=0, train_return=None)
    [axes] = panels(curves_figure(gather(rows), ["mki"], PAPER)).values()
    assert [text.get_text() for text in axes.texts] == ["no episode has ended"]


# --- processor times ---


def timed(algorithm: str, *runs: tuple[int, float], processor: str | None = None) -> list[Row]:
    """Rows of runs with these seeds and processor seconds; the return is 100 times the seed."""
    return [
        row
        for seed, seconds in runs
        for row in run_rows(
            "hopper", algorithm, seed, 100.0 * seed, cpu_seconds=seconds, processor=processor
        )
    ]


def test_returns_against_time_end_at_the_seconds_of_a_whole_run(results: Results) -> None:
    [hopper, _] = panels(curves_figure(results, results.labels, COST)).values()
    assert hopper.get_xscale() == "log"
    for one in hopper.lines:  # evaluated at half of the steps and at their end
        assert_allclose(np.asarray(one.get_xdata())[[0, -1]], [2.5, 5.0])
    low, high = hopper.get_xlim()
    assert sum(low < tick < high for tick in hopper.get_xticks()) >= 2, "seconds can be read off"


def ends_against_time(rows: list[Row]) -> dict[str, list[float]]:
    results = gather(rows)
    [hopper] = panels(curves_figure(results, results.labels, COST)).values()
    return {str(one.get_label()): np.asarray(one.get_xydata())[-1].tolist() for one in hopper.lines}


def test_returns_of_all_seeds_are_drawn_at_the_speed_of_those_run_together() -> None:
    rows = timed("mki", (1, 3.0), (2, 3.0))
    rows += timed("trpo", (1, 6.0), (2, 8.0), (3, 70.0), (4, 70.0))  # 3 and 4: other machines
    rows += timed("ppo", (3, 6.0), (4, 8.0))  # never beside mki
    assert ends_against_time(rows) == {"mki": [3.0, 150.0], "trpo": [7.0, 250.0]}


def test_speeds_are_those_of_the_processor_that_most_algorithms_have_run_on() -> None:
    rows = timed("mki", (1, 8.0), (2, 9.0), processor="slow")
    rows += timed("mki", (3, 2.0), processor="fast") + timed("np", (3, 3.0), processor="fast")
    rows += timed("trpo", (1, 5.0), (3, 5.0), processor="fast")
    rows += timed("ppo", (1, 50.0), (3, 50.0), processor="slow")
    seconds = {label: end[0] for label, end in ends_against_time(rows).items()}
    assert seconds == {"mki": 2.0, "np": 3.0, "trpo": 5.0}


@pytest.mark.parametrize(
    ("rows", "costs"),
    [
        (  # seed 3 of ridge is of some other machine; 0.5 and 0.25 are of both
            timed("mki", (10, 1.0))
            + timed("ridge", (1, 10.0), (2, 100.0), (3, 1.0))
            + timed("trpo", (0, 1.0), (1, 20.0), (2, 400.0), (4, 5000.0)),
            {"IMeL, MKI": "–", "IMeL, ridge": "0.38", "TRPO": "1.00"},
        ),
        (
            timed("ridge", (1, 1.0), processor="fast")
            + timed("ridge", (2, 1.0), processor="slow")
            + timed("trpo", (1, 1.0), (2, 50.0), processor="slow"),
            {"IMeL, ridge": "0.02", "TRPO": "1.00"},
        ),
    ],
)
def test_processor_times_are_compared_over_seeds_of_both_on_processors_of_one_kind(
    rows: list[Row], costs: dict[str, str]
) -> None:
    table = report_rows(gather(rows), HOPPER)
    assert table[0][-1] == "cpu / TRPO"
    assert {row[0]: row[-1] for row in table[2:]} == costs


# --- scores ---


def test_scores_are_0_for_chance_and_1_for_the_reference(results: Results) -> None:
    found, reasons = scores_of(results, "trpo", "evaluated")
    assert not reasons
    assert_allclose(found["hopper", 1000]["mki"], [2.8, 1.8, 4.8, 3.8, 8.8])
    assert_allclose(found["ant", 1000]["mki"], [1.45, 1.5, 1.55])
    assert set(found["ant", 1000]) == {"mki", "trpo"}
    trained, _ = scores_of(results, "trpo", "explored")
    # The last tenth of a run is its last row, half of the final return: 60 of trpo, 150 of mki
    assert trained["hopper", 1000]["mki"][0] == (150 - 20) / (60 - 20)
    assert failed(found, "mki") == (1, 8)  # 1.8 where the median is 3.8
    assert failed(found, "nearest") == (0, 0)


def test_overall_scores_count_tasks_alike(results: Results) -> None:
    found, _ = scores_of(results, "trpo", "evaluated")
    everything = overall(found, "mki")
    assert everything is not None
    # hopper 1.8 2.8 3.8 4.8 8.8 weigh 0.1 each, ant 1.45 1.5 1.55 1/6 each
    assert everything[0].value == pytest.approx(
        2 * (1.5 * (1 / 3 - 0.25) + 1.55 / 6 + 0.1 * (1.8 + 2.8) + 3.8 * 0.05)
    )
    assert everything[1] == 2
    better = overall_probability(results, "mki", "trpo")
    assert better is not None
    assert (better.value, better.low, better.high) == (1.0, 1.0, 1.0)
    assert overall(found, "nearest") is None
    assert overall_probability(results, "nearest", "trpo") is None


def test_a_task_without_a_scale_is_left_out_with_the_reason() -> None:
    rows = rows_of_runs(
        {
            "hopper": {"mki": [1.0], "random": [0.0]},
            "walker2d": {"trpo": [1.0, 2.0]},
            "ant": {"trpo": [5.0, 5.0, -1.0, -1.0, 5.0], "random": [0.0, 0.0]},
        }
    )
    found, reasons = scores_of(gather(rows), "trpo", "evaluated")
    assert not found
    assert reasons == [
        "Hopper (11, 3): no result of trpo",
        "Walker2d (17, 6): no result of acting at random (`imel bench random`)",
        "Ant (27, 8): trpo cannot be told from acting at random there",
    ]
    report = make_report(gather(rows), "trpo", [], "")
    assert "## All tasks\n\nNo task has a scale" in report.body
    assert f"- not in the scores over all tasks: {reasons[1]}" in report.body


def test_the_figure_of_scores_has_the_numbers_of_the_table(results: Results) -> None:
    measures = [scores_of(results, "trpo", name)[0] for name in ("evaluated", "explored")]
    figure = scores_figure(results, measures, ["mki", "np"], "trpo")
    left = figure.axes[0]
    points = [one for one in left.lines if len(np.asarray(one.get_xdata())) == 1]
    found = overall(measures[0], "mki")
    assert found is not None
    assert np.asarray(points[0].get_xdata())[0] == found[0].value
    assert [text.get_text() for text in left.get_yticklabels()] == ["IMeL, MKI", "IMeL, NP"]
    assert points[0].get_markerfacecolor() == points[0].get_color()
    assert points[1].get_markerfacecolor() == "white"
    assert "hollow" in figure.get_suptitle()


# --- the report ---


def table_rows(lines: Sequence[str]) -> list[list[str]]:
    return [[cell.strip() for cell in one.strip("|").split("|")] for one in lines]


def report_rows(
    results: Results, heading: str, against: Sequence[str] = ("ppo",)
) -> list[list[str]]:
    """The cells of the tables of a report between a heading and the next."""
    text = make_report(results, "trpo", against, "").body
    section = text.partition(f"{heading}\n")[2].partition("\n#")[0]
    return table_rows([one for one in section.splitlines() if one.startswith("|")])


def test_the_scores_of_all_tasks_name_those_that_rest_on_fewer(results: Results) -> None:
    table = report_rows(results, "## All tasks")
    scores = ["score, deterministic", "score, training", "failed runs"]
    against = ("P(> {})", "above / level / below {}")
    compared = [column.format(name) for name in ("TRPO", "PPO") for column in against]
    assert table[0][1:] == [*scores, *compared]
    mki, np_, trpo, ppo = table[2:]
    assert mki[1].startswith("2.07 [")
    always = "1.00 [1.00, 1.00]"
    assert mki[3:] == ["1 of 8", always, "2 / 0 / 0", always, "1 / 0 / 0"]  # 1.8 of 3.8
    assert np_[1].startswith("0.50 [")
    assert np_[1].endswith("] (1 of 2 tasks)")
    assert np_[5] == "0 / 0 / 1"
    assert trpo[4] == trpo[5] == ppo[6] == ppo[7] == "–"
    report = make_report(results, "trpo", ["ppo"], "")
    assert "some results rest on 3 of the 5 seeds" in report.notes[0]
    assert report.notes[0] in report.body


def test_the_table_of_a_task_has_means_intervals_comparisons_and_times(results: Results) -> None:
    table = report_rows(results, HOPPER)
    mki = dict(zip(table[0], table[2], strict=True))
    assert mki["seeds"] == "5"
    assert mki["deterministic return"] == "400.0 [233.3, 766.7]"
    assert mki["training return"] == "200.0 [116.7, 383.3]"
    assert mki["difference to TRPO"].startswith("**+280.0 [")
    assert mki["cpu / TRPO"] == "1.00"
    assert ["random", "2", "20.0 [20.0, 20.0]"] in [row[:3] for row in table]
    [start] = [i for i, row in enumerate(table) if row[:2] == ["algorithm", "difference to PPO"]]
    against_ppo = table[start:]
    assert [row[0] for row in against_ppo[2:]] == ["IMeL, MKI", "IMeL, NP", "TRPO"]


def test_differences_are_paired_where_both_have_the_same_seeds() -> None:
    returns = [1.0, 90.0, 400.0, 30.0]
    better = [value + 5.0 for value in returns]
    tasks = {"hopper": {"mki": better, "trpo": returns}}
    tasks |= {"ant": {"mki": better, "trpo": [*returns, 7.0]}}
    gathered = gather(rows_of_runs(tasks))
    paired, apart = (
        report_rows(gathered, f"### {t}")[2][4] for t in ("Hopper (11, 3)", "Ant (27, 8)")
    )
    assert paired == "**+5.0 [5.0, 5.0]**"
    assert "[-" in apart


def test_a_table_says_task_by_task_where_an_algorithm_is_above_level_or_below() -> None:
    trpo = [2.0, 8.0, 4.0]
    mki = {"hopper": [1.0, 9.0, 5.0], "walker2d": [12.0, 18.0, 14.0]}
    mki |= {"halfcheetah": [-2.0, 1.0, 0.0], "ant": [50.0], "humanoid": []}
    rows = rows_of_runs({task: {"mki": returns, "trpo": trpo} for task, returns in mki.items()})
    rows += rows_of_runs({"reacher": {"trpo": trpo}})
    rows += rows_of_runs({"reacher": {"mki": trpo}}, train_return=100.0)
    table = table_rows(against_table(gather(rows), "mki", "trpo"))
    assert table[0][1:] == ["deterministic return", "is", "training return", "is"]
    assert [(row[0].split()[0], row[2], row[4]) for row in table[2:-1]] == [
        ("Hopper", "level", "level"),
        ("Walker2d", "above", "above"),
        ("HalfCheetah", "below", "below"),
        ("Ant", "–", "–"),  # a single seed has no interval
        ("Reacher", "level", "above"),
    ]
    assert table[2][1].startswith("+0.3 [-")  # not marked: its interval holds zero
    assert table[3][1] == "**+10.0 [10.0, 10.0]**"
    assert table[3][3] == "**+5.0 [5.0, 5.0]**"  # half of it, as the store's rows have it
    assert table[-1][1:] == ["", "1 / 2 / 1", "", "2 / 1 / 1"]


def test_a_variant_stands_behind_its_base_and_is_compared_with_it_as_the_baseline() -> None:
    slow = {"settings_hash": "cd", "overrides": {"learning_rate": 0.001}}
    rows = rows_of_runs({"hopper": {"mki": [150.0, 160.0, 170.0]}}, **slow)
    gathered, label = gather([*rows, *small_rows()]), "mki learning_rate=0.001"
    assert gathered.labels == ["mki", label, "np", "trpo", "ppo"]
    lines = make_report(gathered, "mki", [], "").body.splitlines()
    on_hopper, over_all = table_rows([one for one in lines if one.startswith(f"| {label}")])
    assert on_hopper[2] == "160.0 [150.0, 170.0]"
    assert on_hopper[4].startswith("**-240.0 [")
    assert over_all[1].startswith("0.37 [")  # (160 - 20) / (400 - 20)
    assert over_all[1].endswith("(1 of 2 tasks)")


def test_a_store_without_the_baseline_is_reported_without_comparisons() -> None:
    gathered = gather(rows_of_runs({"hopper": {"mki": [1.0, 2.0], "np": [3.0]}}))
    report = make_report(gathered, "trpo", ["ppo"], "")
    assert "TRPO" not in report.body
    assert "## All tasks" not in report.body
    assert "scores.png" not in report.figures
    assert report.notes[0].startswith("no run of trpo: there are no comparisons")
    assert report.notes[1] == "no interval where there is one seed, it takes two"
    assert [row[2] for row in report_rows(gathered, HOPPER)[2:]] == ["1.5 [1.0, 2.0]", "3.0"]


def test_what_strangers_wrote_into_rows_is_shown_as_text(tmp_path: Path) -> None:
    store, script = Store(tmp_path), "<script>$x$ | [a](http://b)\x1b[31m\n# c"
    for name in ("mki", "trpo"):
        store.add(run_rows("My/Env-v0", name, 0, 1.0, overrides={"std": script}))
    store.add([run_rows("My/Env-v0", "np", 0, 1.0)[0] | {"final": False, "error": script}])
    report = make_report(gather(store.rows()), "trpo", [], "")
    assert all(map(png, report.figures.values()))
    assert not re.search(r"(?<!\\)[<\]](?!\(curves)|\x1b|^# c", report.body, re.MULTILINE)
    assert r"std=\<script\> x  \| \[a\](http://b) \[31m # c" in report.body


def test_figure_2_and_3_show_the_papers_tasks_and_algorithms() -> None:
    names = ["mki", "np", "trpo-plain", "trpo", "ppo"]
    tasks = ["mountaincar", "walker2d", "halfcheetah", "hopper", "humanoid"]
    rows = rows_of_runs({task: {name: [1.0, 2.0] for name in names} for task in tasks})
    rows += run_rows("ant", "trpo", 0, 1.0)  # without the paper's policies there is no panel
    second, third = (paper_figure(gather(rows), name) for name in ("figure2", "figure3"))
    shown = [[title.split()[0] for title in panels(each)] for each in (second, third)]
    assert shown == [["MountainCarContinuous", "Walker2d", "HalfCheetah"], ["Hopper", "Humanoid"]]
    named = ["IMeL, NP", "IMeL, MKI", "TRPO, not normalised", "TRPO"]
    assert list(legend_of(second)) == list(legend_of(third)) == named


# --- the command ---


def test_the_same_rows_give_the_same_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    small_store(store)
    assert main(["report", str(store)]) == 0
    first = {path.name: path.read_bytes() for path in (store / "report").iterdir()}
    curves = {f"curves-{name}.png" for name in ("paper", "training", "evaluation", "time")}
    assert set(first) == {*curves, "report.md", "scores.png"}
    assert f"{store}/report/report.md" in capsys.readouterr().out
    assert main(["report", str(store), "--out", str(tmp_path / "again")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first
    assert main(["report", "figure3", str(store), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_goes_into_a_page_between_its_marks_as_often_as_one_likes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_store(tmp_path / "store")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "# Mine\n\n<!-- report: begin -->\nWhat was there before.\n<!-- report: end -->\n\nafter\n"
    )
    images = page.parent / "images"
    command = ["report", str(tmp_path / "store"), "--out", str(images), "--into", str(page)]
    assert main(command) == 0
    text = page.read_text()
    assert text.startswith("# Mine\n\n<!-- report: begin -->\n\n## Learning curves\n")
    assert text.endswith("\n<!-- report: end -->\n\nafter\n")
    assert "What was there before" not in text
    assert "(images/scores.png)" in text
    assert sorted(path.suffix for path in images.iterdir()) == [".png"] * 5
    assert main(command) == 0
    assert page.read_text() == text
    page.write_text("no marks")
    capsys.readouterr()
    assert main(command) == 2
    assert "lacks the lines '<!-- report: begin -->'" in capsys.readouterr().err
    assert page.read_text() == "no marks"


def test_a_store_with_nothing_to_report_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*words: str) -> str:
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "there is no store at" in complaint(str(tmp_path / "none"))
    assert "is empty" in complaint(str(tmp_path))
    store = Store(tmp_path)
    store.add([run_rows("hopper", "mki", 0, 1.0)[0] | {"final": False, "error": "it rained"}])
    assert "no finished run; failed: hopper mki seed 0: it rained" in complaint(str(tmp_path))
    store.add(run_rows("inverted-pendulum", "mki", 0, 1.0))
    assert "no finished run of np, mki on any of" in complaint("figure2", str(tmp_path))
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "- failed: hopper mki seed 0: it rained" in text
    assert "note: no interval where there is one seed" in capsys.readouterr().out


# --- the committed runs ---


def committed_reports() -> list[tuple[str, str, str]]:
    """Store, folder of images and page of each report that `make report` draws."""
    recipe = (ROOT / "Makefile").read_text().partition("\nreport:")[2].partition("\n\n")[0]
    found = re.findall(r"imel report (\S+) --out (\S+) --into (\S+)", recipe)
    assert found
    return found


@pytest.mark.parametrize(("store", "images", "page"), committed_reports())
def test_the_committed_runs_give_the_committed_report(store: str, images: str, page: str) -> None:
    text = (ROOT / page).read_text()
    relative = Path(images).relative_to(Path(page).parent)
    report = make_report(gather(Store(ROOT / store).rows()), "trpo", ["ppo"], f"{relative}/")
    assert text == report.body.join(around_marks(ROOT / page, "report")), "run `make report`"
    assert {path.name for path in (ROOT / images).iterdir()} == set(report.figures)


@pytest.mark.slow
@pytest.mark.parametrize(("store", "images", "page"), committed_reports())
def test_the_committed_runs_give_the_committed_figures(
    store: str, images: str, page: str, tmp_path: Path
) -> None:
    assert main(["report", str(ROOT / store), "--out", str(tmp_path)]) == 0
    for path in (ROOT / images).iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), f"{page}: {path.name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure2", "figure3"])
def test_the_committed_runs_give_the_committed_figures_of_the_paper(
    name: str, tmp_path: Path
) -> None:
    assert main(["report", name, str(ROOT / "results" / "paper"), "--out", str(tmp_path)]) == 0
    committed = ROOT / "docs" / "images" / "paper" / f"{name}.png"
    assert (tmp_path / f"{name}.png").read_bytes() == committed.read_bytes()
