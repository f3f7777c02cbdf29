"""What README and docs show is true: their code runs, their commands and names exist."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn

import gymnasium
import pytest
import tyro

import imel
from imel import IMeL
from imel.cli.main import main
from imel.data.normaliser import Normaliser
from imel.distributions import categorical
from imel.policies.ridge.features import REACH
from imel.registry import policies
from imel.settings import setting_names
from pages import OUTPUT, PAGES, ROOT, SHELLS, TUTORIAL, blocks, commands, program, run_page
from small import BATCH, SMALL, LogBook
from tables import GROUPS, by_hand, generated
from toy import FloatArray, ScriptedEnv

SPHINX = ("{toctree}", "{eval-rst}")  # carried out when the pages are built
PROGRAMS = (
    *("imel", "make", "pip", "source", "python"),
    *("tensorboard", "trackio", "embedding-atlas", "ray", "scp", "export"),
)
SUFFIXES = ("py", "png", "parquet", "json", "jsonl", "toml", "csv", "safetensors")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SETTINGS = {name for kind in policies().values() for name in setting_names(kind.Settings)}
"""Of all policies."""
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


# --- blocks of code ---


@each_page
def test_every_block_is_of_a_kind_that_is_tested_and_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    assert len(blocks(text)) == len(re.findall("^ *(?:```|~~~)", text, re.MULTILINE)) / 2
    assert {each.language for each in blocks(text)} <= {"python", *SHELLS, OUTPUT, *SPHINX}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and "://" not in path:
            assert (page.parent / path).is_file(), target
    for names in re.findall(r"(?:imel|\.)\[([a-z,]+)\]", text):
        assert set(names.split(",")) <= set(EXTRAS), names


def test_the_python_of_every_page_runs(tmp_path: Path) -> None:
    # Blocks in order, as someone reading the page would type them; all pages in one process, for
    # it is the imports that take long. The tutorial has a test of its own
    scripts = []
    for page in PAGES:
        if page != TUTORIAL and blocks(page.read_text(), "python"):
            scripts.append(f"page_{page.stem}.py")
            (tmp_path / scripts[-1]).write_text(program(page.read_text()))
    assert "page_README.py" in scripts
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


@pytest.mark.parametrize(
    "short", [True, pytest.param(False, marks=pytest.mark.slow, id="as it stands")]
)
def test_the_tutorial_runs(short: bool, tmp_path: Path) -> None:
    text = TUTORIAL.read_text()
    assert all(words in text for words in SHORTER)
    filled = run_page(text, tmp_path, SHORTER if short else {})
    outputs = [block.body for block in blocks(filled, OUTPUT)]
    assert len(outputs) == len([body for body in outputs if body.strip()]) >= 5
    assert outputs[0].startswith("MountainCarContinuous-v0, ")
    assert any(re.fullmatch(r"\d+ tensors, 0 of them different\n", body) for body in outputs)
    pictures = re.findall(r"\(images/tutorial/([\w-]+\.png)\)", text)
    assert len(pictures) >= 4
    for name in pictures:
        assert (tmp_path / name).is_file() or (tmp_path / "runs" / "tutorial" / name).is_file()
        assert (ROOT / "docs" / "images" / "tutorial" / name).stat().st_size < 150_000
    if not short:
        words = ("deterministic", "std=0.1:", "std=1.0:")
        found = [re.search(rf"^{each} +return (\S+)", filled, re.MULTILINE) for each in words]
        solved, timid, default = (float(one[1]) for one in found if one is not None)
        assert timid < 10.0 < 80.0 < default
        assert solved > 90.0


def test_output_goes_below_what_printed_it(tmp_path: Path) -> None:
    page = (
        "a\n```python\nprint('one')\nx = 2\n```\nb\n```text\nold\nold\n```\n"
        "```python\nprint(x, 'LONG')  \n```\n\n```text\n```\nc\n"
    )
    result = run_page(page, tmp_path, {"LONG": "short"})
    filled = page.replace("old\nold\n", "one\n").replace("```text\n```", "```text\n2 short\n```")
    assert result == filled


# --- commands ---


class UnderstoodError(Exception):
    """The flags of a command were valid."""


@each_page
def test_the_commands_of_a_page_are_valid(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # where own_policy is
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
            assert name in PROGRAMS
            if name == "make":
                plain = [word for word in words if not word.startswith("-") and "=" not in word]
                assert set(plain) <= TARGETS
            elif name == "imel":
                try:
                    assert main(words) == 0, (words, capsys.readouterr().err)
                except UnderstoodError:
                    continue
                assert words[-1] in ("--help", "--version")


def test_commands_are_what_a_reader_would_paste() -> None:
    shown = "$ make test && make docs  # twice\nmake nothing\n$ bin/imel train X\n"
    assert commands(shown) == [["make", "test"], ["make", "docs"], ["imel", "train", "X"]]
    plain = "OUT=1\nmake -n check RUN=a \\\n  dist\nA=1 imel train X --seed 1\n"
    assert commands(plain)[0] == ["make", "-n", "check", "RUN=a", "dist"]
    assert commands(plain)[1] == ["imel", "train", "X", "--seed", "1"]


# --- names ---


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
    foreign = r"<(?:script|img|link)[^>]*(?:src|href)=\"(?:https?:)?//"
    assert re.findall(foreign, "".join(pages.values())) == []


def test_the_functions_and_modules_that_pages_name_exist() -> None:
    # By their full names, or from the name of a module's file on
    paths = [found.name for found in pkgutil.walk_packages(imel.__path__, "imel.")]
    modules = {path.rpartition(".")[2]: path for path in sorted(paths, key=len, reverse=True)}
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`(?:imel\.)?(\w+)\.([\w.]*\w)", text))
    named = {each for each in named if each[0] in modules and each[1] not in SUFFIXES}
    assert len(named) > 30
    wrong = {each for each in named if locate(f"{modules[each[0]]}.{each[1]}") is None}
    assert {each for each in wrong if each[0] not in ("why", "learner")} == set()  # variables


def test_pages_list_all_that_there_is() -> None:
    rows = re.findall(r"^\| (`.*`) \| ", text_of("install"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(EXTRAS)
    directive = r"^\.\. auto(?:class|exception|function|data):: (?:imel\.)?(\S+)"
    assert set(imel.__all__) <= set(re.findall(directive, text_of("api"), re.MULTILINE))
    assert sorted(" ".join(GROUPS.values()).split()) == sorted(SETTINGS)
    shown = re.findall(r"<!-- generated: settings (\w+) -->", text_of("settings"))
    assert shown == list(GROUPS)
    assert "<!-- generated: layers -->" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_interpolator_shown_fits_into_sixty_lines() -> None:
    shown = [each.body for each in blocks(text_of("interpolators"), "python")]
    (whole,) = [body for body in shown if "(Interpolator):" in body and "(PaperPolicy):" in body]
    assert len(whole.splitlines()) <= 60


# --- metrics ---


class Successful(ScriptedEnv):
    """Reports success, so that everything there is to log is logged."""

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "is_success": True}


def logged_keys(policy: str) -> set[str]:
    """The keys that models with this policy log, with continuous and with discrete actions."""
    keys: set[str] = set()
    for env in (Successful(), gymnasium.make("CartPole-v1")):
        model = IMeL(policy, env, seed=0, **SMALL)
        book = LogBook.of(model)
        model.learn(2 * BATCH)
        keys |= set(book.pages[-1])
    return keys


def test_the_metrics_page_has_a_full_row_for_exactly_what_each_family_logs() -> None:
    rows = re.findall(r"^\| `(\w+/\w+)` \|(.*)\|$", text_of("metrics"), re.MULTILINE)
    found = {key: [cell.strip() for cell in rest.split("|")] for key, rest in rows}
    assert len(rows) == len(found)
    for key, cells in found.items():  # family, meaning, unit and what is healthy
        assert len(cells) == 4, key
        assert all(cells), key
    of_ridge = {key for key, (family, *_) in found.items() if family in ("both", "ridge")}
    of_paper = {key for key, (family, *_) in found.items() if family in ("both", "paper")}
    assert of_ridge == logged_keys("ridge")
    assert of_paper == logged_keys("mki")
    for policy in ("np", "anp", "nearest", "regressor"):
        assert logged_keys(policy) <= of_paper


# --- settings and constants ---


@each_page
def test_generated_tables_are_as_the_code_has_them(page: Path) -> None:
    assert page.read_text() == generated(page.read_text()), "run `make docs`"


def quoted_defaults(text: str) -> list[str]:
    """Sentences outside of code and generated tables that give a default as a number."""
    names = "|".join(SETTINGS | {name.replace("_", "-") for name in SETTINGS})
    prose = by_hand(text)
    for block in reversed(blocks(prose)):
        prose = prose[: block.start] + prose[block.end :]
    return [
        one
        for one in re.split(r"(?<=[.!?:;|])\s+|\n\n", prose)
        if re.search(rf"`(?:--)?(?:{names})`", one)
        and re.search(r"\bdefault", one)
        and re.search(r"\b\d", one)
    ]


def test_no_page_quotes_a_default_by_hand() -> None:
    assert [one for page in PAGES for one in quoted_defaults(page.read_text())] == []
    page = "The default of `memory_size` is 2048. A `std` of 3 is wide.\n"
    page += "```text\n`std` is 1 by default\n```\n"
    assert quoted_defaults(page) == ["The default of `memory_size` is 2048."]


@pytest.mark.parametrize(
    ("page", "words", "correct"),
    [
        ("algorithm", "clipped at 5 deviations", REACH == 5.0),
        ("algorithm", "clipped at 10 deviations", Normaliser(1).clip == 10.0),
        ("paper-notes", "above a tenth of the mean", categorical._REACHABLE == 0.1),
    ],
)
def test_constants_in_prose_are_those_of_the_code(page: str, words: str, correct: bool) -> None:
    assert words in " ".join(text_of(page).split())
    assert correct
