"""Every fault of docs/reliability.md has a test, and it is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_of_the_39_faults_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 40))
    for _, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert named
        for path, name in named:
            assert f"def {name}" in (ROOT / path).read_text(), name
