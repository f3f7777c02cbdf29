"""The way of a transition through the package stays short enough to be read."""

from __future__ import annotations

from transition_path import LIMIT, transition_path


def test_a_transition_passes_few_files() -> None:
    files = transition_path()
    assert "rollout.py" in files
    assert len(files) <= LIMIT, files
