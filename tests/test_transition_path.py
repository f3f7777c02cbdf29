"""The ways through the package stay short enough to be read."""

from __future__ import annotations

from transition_path import LIMITS, paths


def test_a_transition_and_each_command_pass_few_files() -> None:
    found = paths()
    assert "data/rollout.py" in found["a transition"]
    for way, limit in LIMITS.items():
        assert len(found[way]) <= limit, (way, found[way])
