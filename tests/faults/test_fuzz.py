"""Mutated checkpoints: each is refused as one, or holds exactly what the whole one holds."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from files import mutated
from harness import same_bits

from imel import IMeL
from imel.errors import CheckpointError
from small import BATCH, read_checkpoint, small_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model's file, so that a good part of it is header."""
    path = tmp_path_factory.mktemp("whole") / "model.safetensors"
    options = {"features": 2, "hidden": (4,)}
    small_model("MkiPolicy", policy_kwargs=options, critic_hidden=(4,)).learn(BATCH).save(path)
    return path


def fuzz(whole: Path, path: Path, mutations: int, seed: int) -> Counter[str]:
    """Read mutated files, a tenth of them with `IMeL.load`; any other exception is a failure."""
    draw = random.Random(seed)
    content = whole.read_bytes()
    expected, manifest = read_checkpoint(whole)
    counts: Counter[str] = Counter()
    for number in range(mutations):
        path.write_bytes(mutated(content, draw))
        try:
            if number % 10 == 0:
                IMeL.load(path)
            tensors, found = read_checkpoint(path)
        except CheckpointError as refusal:
            named = str(path) in str(refusal) and "\n" not in str(refusal)
            counts["refused" if named else f"badly worded: {refusal}"] += 1
        else:
            assert found == manifest
            assert tensors.keys() == expected.keys()
            assert all(same_bits(tensors[name], expected[name]) for name in expected)
            counts["equal"] += 1
    return counts


def test_mutated_checkpoints_are_refused_or_equal(whole: Path, tmp_path: Path) -> None:
    counts = fuzz(whole, tmp_path / "model.safetensors", 400, seed=0)
    assert counts.keys() <= {"refused", "equal"}
    assert counts["refused"] > 360


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_mutated_checkpoints(seed: int, whole: Path, tmp_path: Path) -> None:
    counts = fuzz(whole, tmp_path / "model.safetensors", 6000, seed)
    print(f"\nmutated checkpoints, seed {seed}: {dict(counts)}")
    assert counts.keys() <= {"refused", "equal"}
    assert counts["refused"] > 5400
