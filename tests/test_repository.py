"""What contributors and the code host read: workflows, hooks, templates, the citation."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_makes_is_a_target_and_its_rights_are_few(path: Path) -> None:
    workflow = read(path)
    made = [
        words[1]
        for step in steps(workflow)
        if (words := shlex.split(step.get("run", ""), comments=True))[:1] == ["make"]
    ]
    assert made
    for target in made:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])


def test_every_python_that_is_promised_is_tested() -> None:
    tested = read(ROOT / ".github/workflows/checks.yml")["jobs"]["test"]["strategy"]["matrix"]
    promised = [
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line
    ]
    assert tested["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_a_release_is_published_only_after_tests_and_without_a_token() -> None:
    workflow = read(ROOT / ".github/workflows/release.yml")
    assert workflow[True]["push"] == {"tags": ["v*"]}  # YAML takes "on" for true
    jobs = workflow["jobs"]
    assert [job.get("needs") for job in jobs.values()] == [None, "build", "publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert {"make test", "make check", "make dist"} <= set(commands)


def test_hooks_are_valid_and_run_what_make_check_runs() -> None:
    path = ROOT / ".pre-commit-config.yaml"
    subprocess.run([sys.executable, "-m", "pre_commit", "validate-config", path], check=True)
    entries = [hook["entry"] for repo in read(path)["repos"] for hook in repo["hooks"]]
    for tool in ("ruff check", "ruff format", "mypy", "lint-imports"):
        assert any(entry.startswith(f".venv/bin/{tool}") for entry in entries)
        assert f"$(BIN)/{tool}" in MAKEFILE


def test_templates_have_what_the_code_host_needs() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 3
    for path in forms:
        form = read(path)
        assert {"name", "description", "body"} <= set(form)
        assert all({"type", "id", "attributes"} <= set(part) for part in form["body"])
    template = (ROOT / ".github" / "pull_request_template.md").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", template):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def test_the_citation_names_the_paper_and_the_software() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", PROJECT["license"])
    assert citation["authors"] == PROJECT["authors"]
    paper = citation["preferred-citation"]
    assert paper["title"] == "Improved Memories Learning"
    assert paper["identifiers"][0]["value"] == "arXiv:2008.10433"
    assert len(paper["authors"]) == 4
