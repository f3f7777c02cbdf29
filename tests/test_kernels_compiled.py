"""The compiled kernel average against the plain one in double precision, and when it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import imel
from imel import kernels
from imel.kernels import PreparedAverage, kernel_interpolation

compiled = pytest.importorskip("imel.kernels_compiled")

BLOCK: int = compiled.BLOCK
Columns = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def problem(
    sizes: list[int], targets: int, features: int, values: int, scale: float, seed: int
) -> Columns:
    """Queries, keys, values, and the episodes of queries and keys, these in no order."""
    generator = torch.Generator().manual_seed(seed)
    episodes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    episodes = episodes[torch.randperm(len(episodes), generator=generator)]
    keys = scale * torch.randn(len(episodes), features, generator=generator)
    rows = torch.randint(len(episodes), (targets,), generator=generator)
    queries = keys[rows] + 0.1 * torch.randn(targets, features, generator=generator)
    columns = torch.randn(len(episodes), values, generator=generator)
    return queries, keys, columns, episodes[rows], episodes


def outcome(of: Columns, dtype: torch.dtype, masked: bool) -> list[Tensor]:
    """Answer and gradients of queries and keys; in double precision they are the plain form's."""
    queries, keys = (column.to(dtype).requires_grad_() for column in of[:2])
    episodes = of[3:] if masked else (None, None)
    answer = kernel_interpolation(queries, keys, of[2].to(dtype), *episodes)
    toward = torch.linspace(-1.0, 1.0, answer.numel(), dtype=dtype).view_as(answer)
    gradients = torch.autograd.grad((answer * toward).sum(), (queries, keys))
    return [answer.detach().double(), *(gradient.double() for gradient in gradients)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 600), min_size=2, max_size=5),
    targets=st.integers(1, 9),
    features=st.sampled_from([1, 3, 8, 9, 16]),
    values=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_answer_and_gradients_are_those_of_double_precision(
    sizes: list[int],
    targets: int,
    features: int,
    values: int,
    scale: float,
    masked: bool,
    seed: int,
) -> None:
    of = problem(sizes, targets, features, values, scale, seed)
    for single, double in zip(
        outcome(of, torch.float32, masked), outcome(of, torch.float64, masked), strict=True
    ):
        largest = float(double.abs().max().clamp_min(1.0))
        torch.testing.assert_close(single, double, rtol=1e-4, atol=2e-5 * largest)


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_keys_that_fill_a_block_up_have_no_weight(count: int) -> None:
    # The padding lies at the centre of the keys, so any weight on it would show
    keys = torch.tensor([[1.0], [-1.0]]).repeat(count, 1)[:count] + 5.0
    answer = kernel_interpolation(torch.tensor([[5.0]]), keys, torch.ones(count, 1))
    assert float(answer) == pytest.approx(1.0, abs=1e-6)


def test_values_of_the_own_episode_are_never_seen() -> None:
    queries, keys, values, owns, episodes = problem([40, 300, 7], 9, 4, 2, 1.0, 0)
    for own in range(3):
        spoiled = values.clone()
        spoiled[episodes == own] = 1e30
        here = owns == own
        columns = (queries[here], keys, spoiled, owns[here], episodes)
        clean = kernel_interpolation(*columns[:2], values, *columns[3:])
        assert torch.equal(kernel_interpolation(*columns), clean)


@pytest.mark.parametrize("distance", [30.0, 1e3, 1e6])
def test_a_query_far_from_all_keys_is_answered_by_the_closest_of_other_episodes(
    distance: float,
) -> None:
    keys = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    values, episodes = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 2])
    queries = torch.tensor([[distance, 0.0], [0.0, 0.0]], requires_grad=True)
    owns = torch.tensor([2, 0])
    answer = kernel_interpolation(queries, keys, values, owns, episodes)
    assert float(answer[0].detach()) == pytest.approx(2.0, abs=1e-6)
    (gradient,) = torch.autograd.grad(answer.sum(), queries)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("column", [0, 1, 2], ids=["query", "key", "value"])
def test_what_is_not_a_number_is_not_hidden(column: int) -> None:
    of = problem([5, 6], 3, 2, 1, 1.0, 0)
    row = 0 if column == 0 else int((of[4] != of[3][0]).nonzero()[0])
    of[column][row] = torch.nan
    assert kernel_interpolation(*of)[0].isnan().all()


def test_the_same_columns_give_the_same_bits() -> None:
    of = problem([300, 200, 100], 50, 8, 6, 1.0, 0)
    for first, second in zip(
        outcome(of, torch.float32, True), outcome(of, torch.float32, True), strict=True
    ):
        assert torch.equal(first, second)


@pytest.fixture
def _without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels.compiled_module.cache_clear()
    for name in ("kernels_compiled", "kernels_numba"):
        monkeypatch.delitem(sys.modules, f"imel.{name}")
        monkeypatch.delattr(imel, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    yield
    kernels.compiled_module.cache_clear()


@pytest.mark.usefixtures("_without_numba")
def test_without_numba_the_plain_form_answers() -> None:
    of = problem([30, 20], 9, 8, 2, 1.0, 0)
    assert kernels.compiled_module() is None
    single, double = outcome(of, torch.float32, True), outcome(of, torch.float64, True)
    torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-4)


def used(
    monkeypatch: pytest.MonkeyPatch,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    normalised: bool = True,
) -> bool:
    """Whether an interpolation goes through the compiled form."""
    calls: list[Tensor] = []
    original = compiled.PackedKeys.average

    def average(packed: Any, queries: Tensor, owns: Tensor | None) -> Any:
        calls.append(queries)
        return original(packed, queries, owns)

    with monkeypatch.context() as patched:
        patched.setattr(compiled.PackedKeys, "average", average)
        kernel_interpolation(queries, keys, values, normalised=normalised)
    return bool(calls)


def test_it_is_used_where_it_is_the_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = torch.randn(4, 3), torch.randn(4, 65)
    assert used(monkeypatch, narrow, narrow, narrow)
    assert not used(monkeypatch, narrow.double(), narrow.double(), narrow.double())
    assert not used(monkeypatch, narrow, narrow, wide)
    assert not used(monkeypatch, wide, wide, narrow)
    assert not used(monkeypatch, narrow, narrow, narrow.clone().requires_grad_())
    assert not used(monkeypatch, narrow, narrow, narrow, normalised=False)
    monkeypatch.setattr(kernels, "_FEW_PAIRS", 15)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert not used(monkeypatch, narrow, narrow, narrow)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_prepared_average_is_that_of_double_precision(normalised: bool) -> None:
    _, keys, values, *_ = problem([100, 200], 1, 8, 3, 0.5, 0)
    keys = keys + 3.0  # away from the origin, where squares lose digits
    prepared = PreparedAverage(keys, values, normalised)
    kept = []
    for count in (8, 8, 1, 40, 8):
        queries = keys[torch.randperm(300)[:count]] + 0.1
        distances = torch.cdist(queries.double(), keys.double()).square()
        weights = (-distances).softmax(dim=1) if normalised else (-distances).exp()
        kept.append((prepared(queries), weights @ values.double(), prepared.weights(queries)))
        torch.testing.assert_close(kept[-1][2].double(), weights, rtol=1e-4, atol=1e-6)
    for answer, expected, _ in kept:  # earlier answers survive later calls
        torch.testing.assert_close(answer.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_first_run_has_the_bits_of_the_next(tmp_path: Path) -> None:
    # Numba compiles in the first and loads from its cache in the second
    script = (
        "import torch; from imel.kernels import kernel_interpolation as average;"
        "g = torch.Generator().manual_seed(0); draw = lambda *s: torch.randn(*s, generator=g);"
        "q, k, v = draw(64, 8).requires_grad_(), draw(512, 8), draw(512, 3);"
        "y = average(3 * q, 3 * k, v, torch.arange(64) // 8, torch.arange(512) // 8);"
        "y.square().sum().backward();"
        "print(y.detach().numpy().tobytes().hex(), q.grad.numpy().tobytes().hex())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    )  # fmt: skip
    assert list(tmp_path.rglob("*.nbi"))
    assert len(first) > 1000
    assert first == second
