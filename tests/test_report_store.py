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

from imel.bench.store import Store
from imel.cli.main import main
from imel.cli.report import around_marks
from imel.report.aggregate import profile_figure, scores_figure
from imel.report.document import make_report, paper_figure, png
from imel.report.learning_curves import (
    COST,
    EVALUATION,
    PAPER,
    TRAINING,
    align,
    curves_figure,
    line,
    mean_and_interval,
    mean_and_percentiles,
)
from imel.report.markdown import against_table
from imel.report.results import Results, gather
from imel.report.scores import (
    failed,
    overall,
    overall_difference,
    overall_probability,
    profile,
    scales,
)
from pages import ROOT
from stored import SLOW, fill, random_rows, run_rows, small_store

SLOW_MKI = "mki learning_rate=0.001"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return gather(small_store(tmp_path).rows())


# --- gathering ---


def test_tasks_come_in_the_papers_order_and_variants_apart_from_algorithms(
    results: Results,
) -> None:
    assert [task.task for task in results.tasks] == ["hopper", "ant"]
    assert results.labels == ["mki", SLOW_MKI, "np", "trpo", "ppo"]
    assert results.variants == {SLOW_MKI: "mki"}
    assert results.algorithms == ["mki", "np", "trpo", "ppo"]
    assert results.tasks[0].groups["mki"].evaluated.tolist() == [300, 200, 500, 400, 900]
    assert results.commits == ("0123456789",)


def test_results_do_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    rows = small_store(tmp_path).rows()
    runs = [rows[i : i + 1] if rows[i]["algorithm"] == "random" else [] for i in range(len(rows))]
    learned = [row for row in rows if row["algorithm"] != "random"]
    runs = [r for r in runs if r] + [learned[i : i + 10] for i in range(0, len(learned), 10)]
    turned = [row for run in reversed(runs) for row in run]
    reports = [make_report(gather(order), "trpo", ["ppo"], "") for order in (rows, turned)]
    assert reports[0].body == reports[1].body
    assert png(reports[0].figures["curves-training.png"]) == png(
        reports[1].figures["curves-training.png"]
    )


def test_overrides_make_a_variant_and_other_settings_of_one_name_are_kept_apart() -> None:
    rows = run_rows("hopper", "mki", 0, 1.0)
    rows += run_rows("hopper", "mki", 0, 2.0, settings_hash="cd", overrides={"std": 0.5})
    rows += run_rows("ant", "mki", 0, 3.0) + run_rows("ant", "mki", 0, 4.0, settings_hash="cd")
    gathered = gather(rows)
    assert gathered.variants == {"mki std=0.5": "mki"}
    assert list(gathered.tasks[1].groups) == ["mki #ab", "mki #cd"]


def test_a_variant_without_its_base_is_an_algorithm_like_others() -> None:
    rows = run_rows("hopper", "mki", 0, 1.0, **SLOW)
    assert gather(rows).algorithms == [SLOW_MKI]


def test_chance_belongs_to_every_number_of_steps_of_its_task() -> None:
    rows = [*run_rows("hopper", "mki", 0, 1.0), *run_rows("hopper", "mki", 0, 2.0, steps=2000)]
    rows += random_rows("hopper", 0, 7.0) + random_rows("ant", 0, 8.0)
    gathered = gather(rows)
    assert [(task.task, task.steps) for task in gathered.tasks] == [
        ("hopper", 1000),
        ("hopper", 2000),
        ("ant", 0),
    ]
    chance = [task.random.evaluated.tolist() for task in gathered.tasks if task.random]
    assert chance == [[7.0], [7.0], [8.0]]
    assert gathered.labels == ["mki"]


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


def test_runs_whose_first_value_is_beyond_the_budget_make_a_point() -> None:
    grid, values = align([np.array([[1200.0, 3.0]]), np.array([[1100.0, 5.0]])], 1000)
    assert grid.tolist() == [1200.0]
    assert values.tolist() == [[3.0, 5.0]]


def test_the_papers_band_goes_from_the_20th_to_the_80th_percentile_around_the_mean() -> None:
    values = np.array([[0.0, 10.0, 20.0, 30.0, 90.0]])
    assert_allclose(mean_and_percentiles(values)[:, 0], [30.0, 8.0, 42.0])
    assert mean_and_interval(values)[0, 0] == 20.0


def test_a_line_is_made_of_the_runs_that_have_values(results: Results) -> None:
    runs = results.tasks[0].groups["trpo"].runs
    training = line(runs, 1000, TRAINING)
    assert training is not None
    assert_allclose(training[1, [0, -1]], [6.0, 60.0])
    evaluation = line(runs, 1000, EVALUATION)
    assert evaluation is not None
    assert evaluation[0, 0] == 500.0
    assert_allclose(evaluation[1, [0, -1]], [60.0, 120.0])
    assert line([], 1000, PAPER) is None


def test_returns_against_time_end_at_the_seconds_of_a_whole_run(results: Results) -> None:
    [hopper, _] = panels(curves_figure(results, results.algorithms, COST)).values()
    assert hopper.get_xscale() == "log"
    for one in hopper.lines:  # evaluated at half of the steps and at their end
        assert_allclose(np.asarray(one.get_xdata())[[0, -1]], [2.5, 5.0])
    low, high = hopper.get_xlim()
    assert sum(low < tick < high for tick in hopper.get_xticks()) >= 2, "seconds can be read off"


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}


def legend_of(figure: Figure) -> dict[str, str]:
    [legend] = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    return dict(zip(names, [to_hex(h.get_color()) for h in legend.get_lines()], strict=True))


def test_each_task_has_a_panel_and_each_algorithm_one_colour_in_all(results: Results) -> None:
    figure = curves_figure(results, results.algorithms, TRAINING)
    axes = panels(figure)
    assert list(axes) == ["Hopper (11, 3)", "Ant (27, 8)"]
    legend = legend_of(figure)
    assert list(legend) == ["IMeL, MKI", "IMeL, NP", "TRPO", "PPO"]
    assert len(set(legend.values())) == 4
    for panel, drawn in zip(
        axes.values(), (["mki", "np", "trpo", "ppo"], ["mki", "trpo"]), strict=True
    ):
        assert [one.get_label() for one in panel.lines] == drawn
        for one in panel.lines:
            name = {"mki": "IMeL, MKI", "np": "IMeL, NP", "trpo": "TRPO", "ppo": "PPO"}
            assert to_hex(one.get_color()) == legend[name[str(one.get_label())]]
    [trpo] = [one for one in axes["Hopper (11, 3)"].lines if one.get_label() == "trpo"]
    assert_allclose(np.asarray(trpo.get_ydata())[-1], 60.0)
    figure.draw_without_rendering()
    labels = [tick.get_text() for tick in axes["Ant (27, 8)"].get_xticklabels()]
    assert "1k" in labels


def test_the_legend_is_no_wider_than_its_figure() -> None:
    algorithms = ["mki", "np", "regressor", "ridge", "trpo", "trpo-plain", "ppo", "udrl"]
    rows = [
        row for number, name in enumerate(algorithms) for row in run_rows("hopper", name, 0, number)
    ]
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


# --- scores ---


def test_scores_are_0_for_chance_and_1_for_the_reference(results: Results) -> None:
    found, reasons = scales(results, "trpo", "evaluated")
    assert not reasons
    assert [(scale.random, scale.reference) for scale in found] == [(20.0, 120.0), (1.0, 21.0)]
    scores = found[0].scores("mki")
    assert scores is not None
    assert_allclose(scores, [2.8, 1.8, 4.8, 3.8, 8.8])
    assert found[1].scores("np") is None
    trained, _ = scales(results, "trpo", "explored")
    # The last tenth of a run is its last row, half of the final return
    assert [scale.reference for scale in trained] == [60.0, 10.5]


def test_overall_scores_count_tasks_alike(results: Results) -> None:
    found, _ = scales(results, "trpo", "evaluated")
    everything = overall(found, "mki")
    assert everything is not None
    # hopper 1.8 2.8 3.8 4.8 8.8 weigh 0.1 each, ant 1.45 1.5 1.55 1/6 each
    assert everything[0].value == pytest.approx(
        2 * (1.5 * (1 / 3 - 0.25) + 1.55 / 6 + 0.1 * (1.8 + 2.8) + 3.8 * 0.05)
    )
    assert everything[1] == 2
    difference = overall_difference(found, "np", "trpo")
    assert difference is not None
    assert difference.value == pytest.approx(0.5 - 1.0)  # hopper, the one task of both
    better = overall_probability(results, "mki", "trpo")
    assert better is not None
    assert (better.value, better.low, better.high) == (1.0, 1.0, 1.0)
    assert overall(found, "nearest") is None
    assert overall_difference(found, "nearest", "trpo") is None
    assert overall_probability(results, "nearest", "trpo") is None


def test_a_run_below_half_of_its_algorithms_median_has_failed(results: Results) -> None:
    found, _ = scales(results, "trpo", "evaluated")
    assert failed(found, "mki") == (1, 8)  # 1.8 where the median is 3.8
    assert failed(found, "nearest") == (0, 0)


def test_a_task_without_a_scale_is_left_out_with_the_reason(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(
        store,
        {
            "hopper": {"mki": [1.0], "random": [0.0]},
            "walker2d": {"trpo": [1.0, 2.0]},
            "ant": {"trpo": [5.0, 5.0, -1.0, -1.0, 5.0], "random": [0.0, 0.0]},
        },
    )
    found, reasons = scales(gather(store.rows()), "trpo", "evaluated")
    assert not found
    assert [reason.partition(":")[0] for reason in reasons] == [
        "Hopper (11, 3)",
        "Walker2d (17, 6)",
        "Ant (27, 8)",
    ]
    assert "no result of trpo" in reasons[0]
    assert "imel bench random" in reasons[1]
    assert "cannot be told from acting at random" in reasons[2]


def test_a_profile_is_the_share_of_runs_above_each_threshold_over_tasks(results: Results) -> None:
    found, _ = scales(results, "trpo", "evaluated")
    share, low, high = profile(found, "mki", np.array([0.0, 1.48, 4.0, 9.0]))
    # hopper 1.8 2.8 3.8 4.8 8.8, ant 1.45 1.5 1.55
    assert_allclose(share, [1.0, (1 + 2 / 3) / 2, (2 / 5 + 0) / 2, 0.0])
    assert (low <= share).all()
    assert (share <= high).all()


def test_the_figure_of_scores_has_the_numbers_of_the_table(results: Results) -> None:
    measures = [scales(results, "trpo", name)[0] for name in ("evaluated", "explored")]
    figure = scores_figure(results, measures, ["mki", "trpo"], "trpo")
    left = figure.axes[0]
    points = [one for one in left.lines if len(np.asarray(one.get_xdata())) == 1]
    found = overall(measures[0], "mki")
    assert found is not None
    assert np.asarray(points[0].get_xdata())[0] == found[0].value
    assert [text.get_text() for text in left.get_yticklabels()] == ["IMeL, MKI", "TRPO"]
    assert points[0].get_markerfacecolor() == points[0].get_color()
    partly = scores_figure(results, measures, ["mki", "np"], "trpo")
    points = [one for one in partly.axes[0].lines if len(np.asarray(one.get_xdata())) == 1]
    assert points[1].get_markerfacecolor() == "white"
    assert "hollow" in partly.get_suptitle()
    drawn = profile_figure(results, measures[0], results.algorithms, "trpo")
    assert list(legend_of(drawn)) == ["IMeL, MKI", "IMeL, NP", "TRPO", "PPO"]


# --- the report ---


def test_the_scores_of_all_tasks_name_those_that_rest_on_fewer(results: Results) -> None:
    report = make_report(results, "trpo", ["ppo"], "")
    table = rows_of(report.body, "## All tasks")
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
    assert "some results rest on 3 of the 5 seeds" in report.notes[0]
    assert report.notes[0] in report.body


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables between a heading and the next."""
    section = text.partition(f"{heading}\n")[2].partition("\n#")[0]
    return table_rows([one for one in section.splitlines() if one.startswith("|")])


def table_rows(lines: Sequence[str]) -> list[list[str]]:
    return [[cell.strip() for cell in one.strip("|").split("|")] for one in lines]


def test_the_table_of_a_task_has_means_intervals_comparisons_and_times(results: Results) -> None:
    text = make_report(results, "trpo", ["ppo"], "").body
    table = rows_of(text, "### Hopper (11, 3)")
    columns = table[0]
    [mki, _] = [dict(zip(columns, row, strict=False)) for row in table if row[0] == "IMeL, MKI"]
    assert mki["seeds"] == "5"
    assert mki["deterministic return"] == "400.0 [233.3, 766.7]"
    assert mki["training return"] == "200.0 [116.7, 383.3]"
    assert mki["P(> TRPO)"] == "1.00 [1.00, 1.00]"
    assert mki["difference to TRPO"].startswith("**+280.0 [")
    assert mki["cpu / TRPO"] == "1.00"
    assert ["random", "2", "20.0 [20.0, 20.0]"] in [row[:3] for row in table]
    [start] = [i for i, row in enumerate(table) if row[:2] == ["algorithm", "P(> PPO)"]]
    against_ppo = table[start:]
    assert against_ppo[0][2] == "difference to PPO"
    assert [row[0] for row in against_ppo[2:]] == ["IMeL, MKI", "IMeL, NP", "TRPO"]
    assert SLOW_MKI not in str(table)


def test_differences_are_paired_where_both_have_the_same_seeds(tmp_path: Path) -> None:
    store, returns = Store(tmp_path), [1.0, 90.0, 400.0, 30.0]
    fill(store, {"hopper": {"mki": [value + 5.0 for value in returns], "trpo": returns}})
    fill(store, {"ant": {"mki": [value + 5.0 for value in returns], "trpo": [*returns, 7.0]}})
    text = make_report(gather(store.rows()), "trpo", [], "").body
    paired, apart = (
        next(row for row in rows_of(text, f"### {title}") if row[0] == "IMeL, MKI")[5]
        for title in ("Hopper (11, 3)", "Ant (27, 8)")
    )
    assert paired == "**+5.0 [5.0, 5.0]**"
    assert "[-" in apart


def test_processor_times_are_compared_over_the_seeds_of_both(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(run_rows("hopper", "mki", 10, 1.0))
    for seed, seconds in ((1, 10.0), (2, 100.0), (3, 1.0)):  # 3 is of some other machine
        store.add(run_rows("hopper", "ridge", seed, 1.0, cpu_seconds=seconds))
    for seed, seconds in ((0, 1.0), (1, 20.0), (2, 400.0), (4, 5000.0)):
        store.add(run_rows("hopper", "trpo", seed, 1.0, cpu_seconds=seconds))
    table = rows_of(make_report(gather(store.rows()), "trpo", [], "").body, "### Hopper (11, 3)")
    assert table[0][-1] == "cpu / TRPO"
    costs = {row[0]: row[-1] for row in table[2:]}
    assert costs == {"IMeL, MKI": "–", "IMeL, ridge": "0.38", "TRPO": "1.00"}  # 0.5 and 0.25


def test_processor_times_of_different_processors_are_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, processor, seconds in ((1, "fast", 1.0), (2, "slow", 50.0)):
        store.add(run_rows("hopper", "ridge", seed, 1.0, cpu_seconds=1.0, processor=processor))
        store.add(run_rows("hopper", "trpo", seed, 1.0, cpu_seconds=seconds, processor="slow"))
    table = rows_of(make_report(gather(store.rows()), "trpo", [], "").body, "### Hopper (11, 3)")
    assert {row[0]: row[-1] for row in table[2:]} == {"IMeL, ridge": "0.02", "TRPO": "1.00"}


def test_returns_of_all_seeds_are_drawn_at_the_speed_of_those_run_together(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2):
        store.add(run_rows("hopper", "mki", seed, 100.0, cpu_seconds=3.0))
    for seed, seconds in ((1, 6.0), (2, 8.0), (3, 70.0), (4, 70.0)):  # 3 and 4: other machines
        store.add(run_rows("hopper", "trpo", seed, 100.0 * seed, cpu_seconds=seconds))
        store.add(run_rows("hopper", "ppo", seed + 2, 100.0, cpu_seconds=seconds))
    results = gather(store.rows())
    figure = curves_figure(results, results.algorithms, COST)
    assert list(legend_of(figure)) == ["IMeL, MKI", "TRPO"]
    [hopper] = panels(figure).values()
    ends = {one.get_label(): np.asarray(one.get_xydata())[-1].tolist() for one in hopper.lines}
    assert ends == {"mki": [3.0, 100.0], "trpo": [7.0, 250.0]}
    [hopper] = panels(curves_figure(results, results.algorithms, EVALUATION)).values()
    assert len(hopper.lines) == 3


def test_speeds_are_those_of_the_processor_that_most_algorithms_have_run_on(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    for seed, processor, seconds in ((1, "slow", 8.0), (2, "slow", 9.0), (3, "fast", 2.0)):
        store.add(run_rows("hopper", "mki", seed, 1.0, cpu_seconds=seconds, processor=processor))
    for algorithm, processor, seconds in (("trpo", "fast", 5.0), ("ppo", "slow", 50.0)):
        for seed in (1, 3):
            rows = run_rows(
                "hopper", algorithm, seed, 1.0, cpu_seconds=seconds, processor=processor
            )
            store.add(rows)
    store.add(run_rows("hopper", "np", 3, 1.0, cpu_seconds=3.0, processor="fast"))
    results = gather(store.rows())
    [hopper] = panels(curves_figure(results, results.algorithms, COST)).values()
    ends = {one.get_label(): np.asarray(one.get_xydata())[-1, 0] for one in hopper.lines}
    assert ends == {"mki": 2.0, "np": 3.0, "trpo": 5.0}


def test_a_difference_whose_interval_holds_zero_is_not_marked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, {"hopper": {"mki": [1.0, 9.0, 5.0], "trpo": [2.0, 8.0, 4.0]}})
    table = rows_of(make_report(gather(store.rows()), "trpo", [], "").body, "### Hopper (11, 3)")
    mki = dict(zip(table[0], table[2], strict=True))
    assert mki["difference to TRPO"].startswith("+0.3 [-")


def test_a_table_says_task_by_task_where_an_algorithm_is_above_level_or_below(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    trpo = [2.0, 8.0, 4.0]
    fill(store, {"hopper": {"mki": [1.0, 9.0, 5.0], "trpo": trpo}})
    fill(store, {"walker2d": {"mki": [12.0, 18.0, 14.0], "trpo": trpo}})
    fill(store, {"halfcheetah": {"mki": [-2.0, 1.0, 0.0], "trpo": trpo}})
    fill(store, {"ant": {"mki": [50.0], "trpo": trpo}, "humanoid": {"trpo": trpo}})
    fill(store, {"reacher": {"trpo": trpo}})
    for seed, value in enumerate(trpo, start=10):
        store.add(run_rows("reacher", "mki", seed, value, train_return=100.0))
    rows = table_rows(against_table(gather(store.rows()), "mki", "trpo"))
    assert rows[0][1:] == ["deterministic return", "is", "training return", "is"]
    assert [(row[0].split()[0], row[2], row[4]) for row in rows[2:-1]] == [
        ("Hopper", "level", "level"),
        ("Walker2d", "above", "above"),
        ("HalfCheetah", "below", "below"),
        ("Ant", "–", "–"),  # a single seed has no interval
        ("Reacher", "level", "above"),
    ]
    assert rows[3][1] == "**+10.0 [10.0, 10.0]**"
    assert rows[3][3] == "**+5.0 [5.0, 5.0]**"  # half of it, as the store's rows have it
    assert rows[-1][1:] == ["", "1 / 2 / 1", "", "2 / 1 / 1"]


def test_published_returns_stand_beside_the_means_of_as_many_steps(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, value in enumerate([3000.0, 1000.0, 1100.0]):
        store.add(run_rows("hopper", "ridge", seed, value, steps=300_000))
        store.add(run_rows("hopper", "ridge", seed, 2 * value, steps=1_000_000))
        store.add(run_rows("hopper", "ridge", seed, value, steps=200_000))
        store.add(run_rows("swimmer", "ridge", seed, value, steps=300_000))
    text = make_report(gather(store.rows()), "trpo", [], "").body
    table = rows_of(text, "## Published results")
    published = ["TRPO, published", "PPO, published", "SAC, published"]
    assert table[0] == ["task", "IMeL, ridge", *published]
    assert table[2:] == [
        ["Hopper (11, 3), 300k steps", "1700", "490", "867", "3388"],
        ["Hopper (11, 3), 1M steps", "3400", "2013", "2432", "3532"],
    ]


def test_a_report_of_tasks_without_published_returns_has_no_section_of_them(
    results: Results,
) -> None:
    assert "## Published" not in make_report(results, "trpo", [], "").body


def test_the_ablation_compares_each_variant_with_its_base(results: Results) -> None:
    table = rows_of(make_report(results, "trpo", [], "").body, "## Ablations")
    assert table[0] == ["variant", "hopper", "score less the base's", "P(> base)"]
    base, variant = table[2:]
    assert base[0] == "IMeL, MKI"
    assert variant[:2] == [SLOW_MKI, "160.0 [150.0, 170.0]"]
    # (160 - 20) / (400 - 20) - 1
    assert variant[2].startswith("**-0.63 [")
    assert variant[3] == "0.00 [0.00, 0.00]"


def test_the_ablation_is_drawn_over_all_tasks_and_on_each(results: Results) -> None:
    report = make_report(results, "trpo", [], "images/")
    assert "(images/ablations-mki.png)" in report.body
    drawn = panels(report.figures["ablations-mki.png"])
    assert list(drawn) == ["all tasks", "hopper"]  # the variant was not run on ant
    for axes in drawn.values():
        interval, point, _ = axes.get_lines()
        [[value, place]] = np.asarray(point.get_xydata())
        assert value == pytest.approx((160 - 20) / (400 - 20) - 1)
        low, high = np.asarray(interval.get_xydata())[:, 0]
        assert low < value < high < 0.0
        assert (place, to_hex(point.get_color())) == (0.0, "#b2182b")
    [name] = [label.get_text() for label in drawn["all tasks"].get_yticklabels()]
    assert name == SLOW_MKI


def test_a_variant_that_differs_by_chance_is_drawn_without_colour(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, {"hopper": {"mki": [100.0, 120.0, 110.0]}})
    store.add(random_rows("hopper", 0, 1.0))
    for seed, value in enumerate([101.0, 119.0, 112.0]):
        store.add(run_rows("hopper", "mki", seed, value, **SLOW))
    report = make_report(gather(store.rows()), "trpo", [], "")
    figure = report.figures["ablations-mki.png"]
    assert {to_hex(axes.get_lines()[1].get_color()) for axes in figure.axes} == {"#000000"}


def test_a_variant_is_drawn_wherever_it_is_and_not_where_its_base_was_not_run(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    fill(store, {"ant": {"mki": [100.0, 120.0, 110.0]}})
    store.add(random_rows("ant", 0, 10.0))
    store.add(run_rows("hopper", "mki", 0, 5.0, **SLOW))
    report = make_report(gather(store.rows()), "trpo", [], "")
    assert not [name for name in report.figures if name.startswith("ablations")]
    assert "ablations-mki.png" not in report.body
    store.add(run_rows("ant", "mki", 0, 910.0, **SLOW))  # nine times the base
    figure = make_report(gather(store.rows()), "trpo", [], "").figures["ablations-mki.png"]
    assert list(panels(figure)) == ["all tasks", "ant"]
    low, high = figure.axes[0].get_xlim()
    assert low < -8.0
    assert high > 8.0


def test_a_store_without_the_baseline_is_reported_without_comparisons(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, {"hopper": {"mki": [1.0, 2.0], "np": [3.0]}})
    report = make_report(gather(store.rows()), "trpo", ["ppo"], "")
    assert "TRPO" not in report.body
    assert "## All tasks" not in report.body
    assert "scores.png" not in report.figures
    assert report.notes[0].startswith("no run of trpo: there are no comparisons")
    assert report.notes[1].endswith("one seed, it takes two: IMeL, NP on Hopper (11, 3)")
    rows = rows_of(report.body, "### Hopper (11, 3)")
    assert rows[2][2] == "1.5 [1.0, 2.0]"
    assert rows[3][2] == "3.0"


def test_figure_2_and_3_show_the_papers_tasks_and_algorithms(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = ["mki", "np", "trpo-plain", "trpo", "ppo"]
    tasks = ["mountaincar", "walker2d", "halfcheetah", "hopper", "humanoid"]
    fill(store, {task: {name: [1.0, 2.0] for name in names} for task in tasks})
    fill(store, {"ant": {"trpo": [1.0, 2.0]}})  # without the paper's policies there is no panel
    gathered = gather(store.rows())
    second, third = (paper_figure(gathered, name) for name in ("figure2", "figure3"))
    assert [title.split()[0] for title in panels(second)] == [
        "MountainCarContinuous",
        "Walker2d",
        "HalfCheetah",
    ]
    assert [title.split()[0] for title in panels(third)] == ["Hopper", "Humanoid"]
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
    assert set(first) == {
        "report.md",
        "curves-paper.png",
        "curves-training.png",
        "curves-evaluation.png",
        "curves-time.png",
        "scores.png",
        "profile.png",
        "ablations-mki.png",
    }
    assert f"{store}/report/report.md" in capsys.readouterr().out
    assert main(["report", str(store), "--out", str(tmp_path / "again")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


def test_the_papers_figures_are_one_short_command_each(tmp_path: Path) -> None:
    small_store(tmp_path / "store")
    assert main(["report", "figure3", str(tmp_path / "store"), "--out", str(tmp_path)]) == 0
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
    assert sorted(path.suffix for path in images.iterdir()) == [".png"] * 7
    assert main(command) == 0
    assert page.read_text() == text
    page.write_text("no marks")
    capsys.readouterr()
    assert main(command) == 2
    assert "lacks the lines '<!-- report: begin -->'" in capsys.readouterr().err
    assert page.read_text() == "no marks"


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
    before, after = around_marks(ROOT / page, "report")
    report = make_report(gather(Store(ROOT / store).rows()), "trpo", ["ppo"], f"{relative}/")
    assert text == before + report.body + after, "run `make report`"
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
    failed = run_rows("hopper", "mki", 0, 1.0)[0] | {"final": False, "error": "it rained"}
    store.add([failed])
    assert "no finished run; failed: hopper mki seed 0: it rained" in complaint(str(tmp_path))
    store.add(run_rows("inverted-pendulum", "mki", 0, 1.0))
    assert "no finished run of np, mki on any of" in complaint("figure2", str(tmp_path))
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "- failed: hopper mki seed 0: it rained" in text
    assert "note: no interval where there is one seed" in capsys.readouterr().out
