"""What README and docs show is true: their code runs, their commands and names exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import pytest
import tyro

import imel
from imel import IMeL
from imel.cli.main import COMMANDS, main
from imel.data.normaliser import Normaliser
from imel.distributions import categorical
from imel.explain.by_lessons import LessonContributions
from imel.policies.ridge import features as ridge
from imel.policies.ridge import ridge_update
from pages import OUTPUT, PAGES, ROOT, SHELLS, TUTORIAL, blocks, commands, program, run_page
from small import BATCH, POLICIES, LogBook
from tables import GROUPS, by_hand, generated
from toy import FloatArray, ScriptedEnv

SPHINX = ("{toctree}", "{eval-rst}")  # carried out when the pages are built
PROGRAMS = (
    *("imel", "make", "pip", "source", "python"),
    *("tensorboard", "trackio", "embedding-atlas", "ray", "scp", "export"),
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def wrong_commands(text: str) -> list[str]:
    """What a page's shell blocks name, and does not exist: programs, targets, imel's commands."""
    wrong = []
    for block in blocks(text, *SHELLS):
        for name, *words in commands(block.body):
            plain = [word for word in words if not word.startswith("-") and "=" not in word]
            if name not in PROGRAMS:
                wrong.append(name)
            elif name == "make":
                wrong += [word for word in plain if word not in make_targets()]
            elif name == "imel":
                wrong += [word for word in plain[:1] if word not in COMMANDS]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_is_run_checked_built_or_output(page: Path) -> None:
    text = page.read_text()
    assert len(blocks(text)) == len(re.findall("^ *(?:```|~~~)", text, re.MULTILINE)) / 2
    kinds = {block.language for block in blocks(text)}
    assert kinds <= {"python", *SHELLS, OUTPUT, *SPHINX}


def test_readme_shows_python() -> None:
    assert blocks((ROOT / "README.md").read_text(), "python")


def test_the_python_of_every_page_runs(tmp_path: Path) -> None:
    # Blocks in order, as someone reading the page would type them; all pages in one process, for
    # it is the imports that take long. The tutorial has a test of its own
    scripts = []
    for page in PAGES:
        if page != TUTORIAL:
            scripts.append(f"page_{page.stem}.py")
            (tmp_path / scripts[-1]).write_text(program(page.read_text()))
    run_all = f"import runpy\nfor path in {scripts}: runpy.run_path(path, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", run_all], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


SHORTER = {
    "--total-timesteps 60000": "--total-timesteps 3072 --eval-episodes 1 --checkpoint-every 1",
    "imel eval runs/tutorial": "imel eval runs/tutorial --episodes 1",
    "over = terminated or truncated": "over = len(states) > 40",
    "--tasks mountaincar": "--tasks Pendulum-v1 --steps 2048 --jobs 1",
    "--seeds 0 1": "--seeds 0",
    "learn(20_000)": "learn(1024)",
    "n_eval_episodes=16": "n_eval_episodes=1",
}
"""What the tutorial's test has in place of long runs; everything else of it is run as it stands."""


def check_run(text: str) -> None:
    """Every block of output has been filled with what the block before it has printed."""
    shown = [block.body for block in blocks(text, OUTPUT)]
    assert len(shown) == len([body for body in shown if body.strip()]) >= 5
    assert shown[0].startswith("MountainCarContinuous-v0, ")
    assert any(re.fullmatch(r"\d+ tensors, 0 of them different\n", body) for body in shown)


def test_the_tutorial_runs(tmp_path: Path) -> None:
    text = TUTORIAL.read_text()
    for words in SHORTER:
        assert words in text
    check_run(run_page(text, tmp_path, SHORTER))
    shown = re.findall(r"\(images/tutorial/([\w-]+\.png)\)", text)
    assert len(shown) >= 4
    for name in shown:
        assert (tmp_path / name).is_file() or (tmp_path / "runs" / "tutorial" / name).is_file()
        kept = ROOT / "docs" / "images" / "tutorial" / name
        assert kept.stat().st_size < 150_000


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    text = run_page(TUTORIAL.read_text(), tmp_path, {})
    check_run(text)
    solved = re.search(r"^deterministic +return (\S+)", text, re.MULTILINE)
    assert solved is not None
    assert float(solved[1]) > 90.0
    small, wide = (re.search(rf"^std={std}: return (\S+)", text, re.M) for std in ("0.1", "1.0"))
    assert small is not None
    assert wide is not None
    assert float(small[1]) < 10.0 < 80.0 < float(wide[1])


def test_output_goes_below_what_printed_it(tmp_path: Path) -> None:
    page = (
        "a\n```python\nprint('one')\nx = 2\n```\nb\n```text\nold\nold\n```\n"
        "```python\nprint(x, 'LONG')  \n```\n\n```text\n```\nc\n"
    )
    result = run_page(page, tmp_path, {"LONG": "short"})
    assert result == page.replace("old\nold\n", "one\n").replace(
        "```text\n```", "```text\n2 short\n```"
    )


def test_a_page_as_a_program_keeps_its_line_numbers() -> None:
    page = "# Title\n\n```python\na = 1\n```\n```text\nb\n```\n```python\nc = 3\nd = 4\n```\n"
    lines = program(page).split("\n")
    assert [(number, line) for number, line in enumerate(lines, start=1) if line] == [
        (4, "a = 1"),
        (10, "c = 3"),
        (11, "d = 4"),
    ]


class UnderstoodError(Exception):
    """The flags of a command were valid."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_valid(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page.read_text()
    assert wrong_commands(text) == []
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"--config (\S+)", text):  # made by an earlier command of the page
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text('{"env": "Pendulum-v1"}')
    parse: Any = tyro.cli

    def only_parse(*arguments: Any, **options: Any) -> NoReturn:
        parse(*arguments, **options)
        raise UnderstoodError

    monkeypatch.setattr(tyro, "cli", only_parse)
    for block in blocks(text, *SHELLS):
        for name, *words in commands(block.body):
            if name == "imel":
                try:
                    assert main(words) == 0, (words, capsys.readouterr().err)
                except UnderstoodError:
                    continue
                assert words[-1] in ("--help", "--version")


def test_the_check_of_commands_notices_what_is_wrong() -> None:
    page = (
        "```console\n$ make test && make tset  # twice\nmake nothing\n$ bin/imel tarin X\n```\n"
        "```bash\nOUT=1\nmake -n check RUN=a \\\n  dosc\nA=1 imel train Pendulum-v1 --seed 1\n```\n"
        "```python\nmake = 1\n```\n```console\nrm -rf x\n```\n"
    )
    assert wrong_commands(page) == ["tset", "tarin", "dosc", "rm"]
    assert [block.body for block in blocks(page, "python")] == ["make = 1\n"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_and_extras_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and "://" not in path:
            assert (page.parent / path).is_file(), target
    for names in re.findall(r"(?:imel|\.)\[([a-z,]+)\]", text):
        assert set(names.split(",")) <= set(EXTRAS), names


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sphinx")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(tmp_path / "d")]
    result = subprocess.run(
        [*command, str(ROOT / "docs"), str(site)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    pages = {page.stem: page.read_text() for page in site.glob("*.html")}
    assert pages.keys() >= {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert "<msub>" in pages["algorithm"]
    assert (
        re.findall(
            r"<(?:script|img|link)[^>]*(?:src|href)=\"(?:https?:)?//", "".join(pages.values())
        )
        == []
    )


def exists(name: str) -> bool:
    """Whether a dotted name is one of imel's modules, or of what is in them."""
    found: Any = imel
    parts = name.split(".")
    for count, part in enumerate(parts, start=1):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(["imel", *parts[:count]]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def test_the_functions_and_modules_that_pages_name_exist() -> None:
    modules = "|".join(module.name for module in pkgutil.iter_modules(imel.__path__))
    named = re.compile(rf"`(?:imel\.)?((?:{modules})(?:\.(?!py|png|parquet)\w+)+)(?:\([^`]*\))?`")
    names = {name for page in PAGES for name in named.findall(page.read_text())}
    names -= {f"lessons.{field.name}" for field in fields(LessonContributions)}  # of an explanation
    assert len(names) > 30
    assert [name for name in sorted(names) if not exists(name)] == []
    assert not exists("distributions.gaussian.step_sizes")


def test_the_interpolator_shown_fits_into_sixty_lines() -> None:
    text = (ROOT / "docs" / "interpolators.md").read_text()
    (whole,) = [one for one in blocks(text, "python") if "(Interpolator):" in one.body]
    assert "(PaperPolicy):" in whole.body
    assert len(whole.body.splitlines()) <= 60


def test_the_contributors_page_has_the_import_rule_that_is_enforced() -> None:
    assert "<!-- generated: layers -->" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_install_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| ", page, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(EXTRAS)


def test_the_interface_page_has_all_that_the_package_exports() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = set(re.findall(r"^\.\. auto(?:class|exception|function|data):: (\S+)", page, re.M))
    assert set(imel.__all__) <= {name.removeprefix("imel.") for name in listed}


class Successful(ScriptedEnv):
    """Reports success, so that everything there is to log is logged."""

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "is_success": True}


def logged_keys(policy: str) -> set[str]:
    """The keys that models with this policy log, with continuous and with discrete actions."""
    keys: set[str] = set()
    for env in (Successful(), gymnasium.make("CartPole-v1")):
        model = IMeL(
            policy, env, seed=0, rollout_size=BATCH, memory_size=2 * BATCH, critic_epochs=1
        )
        book = LogBook.of(model)
        model.learn(2 * BATCH)
        keys |= set(book.pages[-1])
    return keys


def test_the_metrics_page_lists_exactly_what_each_family_logs() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+/\w+)` \| ([^|]*?) \|", page, re.MULTILINE)
    of_ridge = {key for key, family in rows if family in ("both", "ridge")}
    of_paper = {key for key, family in rows if family in ("both", "paper")}

    assert len({key for key, _ in rows}) == len(rows)
    assert of_ridge == logged_keys("RidgePolicy")
    assert of_paper == logged_keys("MkiPolicy")
    for policy in ("NpPolicy", "AnpPolicy", "NearestPolicy", "RegressorPolicy"):
        assert logged_keys(policy) <= of_paper


def test_the_metrics_page_says_of_each_key_its_family_meaning_unit_and_healthy_values() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| (`\w+/\w+`) \|(.*)\|$", page, re.MULTILINE)
    assert rows
    for key, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        assert len(cells) == 4, key
        assert all(cells), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_tables_are_as_the_code_has_them(page: Path) -> None:
    assert page.read_text() == generated(page.read_text()), "run `make docs`"


def test_the_settings_page_has_every_setting_and_option_once() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    settings = {field.name for policy in POLICIES.values() for field in fields(policy.Settings)}
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(settings)
    assert re.findall(r"<!-- generated: settings (\w+) -->", page) == list(GROUPS)
    assert page.count("<!-- generated: options -->") == 1


def quoted_defaults(text: str) -> list[str]:
    """Sentences outside of code and generated tables that give a default as a number."""
    names = {field.name for policy in POLICIES.values() for field in fields(policy.Settings)}
    names |= {field.name for policy in POLICIES.values() for field in fields(policy.options_class)}
    setting = re.compile(
        rf"`(?:--)?(?:{'|'.join(names | {name.replace('_', '-') for name in names})})`"
    )
    prose = by_hand(text)
    for block in reversed(blocks(prose)):
        prose = prose[: block.start] + prose[block.end :]
    sentences = re.split(r"(?<=[.!?:;|])\s+|\n\n", prose)
    return [
        one
        for one in sentences
        if setting.search(one) and re.search(r"\bdefault", one) and re.search(r"\b\d", one)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_quotes_a_default_by_hand(page: Path) -> None:
    assert quoted_defaults(page.read_text()) == []


def test_the_search_for_quoted_defaults_finds_them() -> None:
    page = "The default of `memory_size` is 2048. A `std` of 3 is wide.\n"
    page += "```text\n`std` is 1 by default\n```\n"
    assert quoted_defaults(page) == ["The default of `memory_size` is 2048."]


QUOTED = (
    ("algorithm", "at no remembered state more than ten times that", ridge_update._PEAK, 10.0),
    ("paper-notes", "at no remembered state more than ten times that", ridge_update._PEAK, 10.0),
    ("metrics", "at most ten times `trust_region`", ridge_update._PEAK, 10.0),
    ("algorithm", "less than a tenth of the return's own", ridge_update._WORTHWHILE, 0.1),
    ("metrics", "Below 0.1 steps are shorter", ridge_update._WORTHWHILE, 0.1),
    ("algorithm", "clipped at 5 deviations", ridge.REACH, 5.0),
    ("algorithm", "clipped at 10 deviations", Normaliser(1).clip, 10.0),
    ("paper-notes", "above a tenth of the mean", categorical._REACHABLE, 0.1),
)
"""Constants in prose that are no settings: the page, its words, the constant and its value."""


@pytest.mark.parametrize(("page", "words", "constant", "value"), QUOTED)
def test_the_constants_that_pages_quote_are_those_of_the_code(
    page: str, words: str, constant: float, value: float
) -> None:
    assert words in " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
    assert constant == value
