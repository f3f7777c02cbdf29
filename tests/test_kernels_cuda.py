"""The fused kernel against float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with PyTorch for CUDA")

import interpreted
from imel import kernels, kernels_launch, kernels_layout
from imel.bench.gpu_check import (
    CASES,
    TOLERANCES,
    Case,
    errors,
    plain_interpolation,
    relative_error,
)
from imel.kernels_cuda import FusedMemories, fits, fused_interpolation
from imel.kernels_launch import Tiles, tile_shape
from imel.kernels_layout import FAR as FAR_AWAY
from imel.kernels_layout import LEFT, PADDING, RIGHT, Carried, Layout

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
FAR = next(case for case in CASES if case.far)
SMALL = Case(9, 140, 3, 2)
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _high_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not ON_GPU:
        interpreted.put_right(monkeypatch)
        monkeypatch.setattr(kernels_layout, "_LAID_OUT_ROWS", 128)  # the interpreter counts calls
        tiles = Tiles(128, 64, 4, 2)
        monkeypatch.setattr(kernels_launch, "tile_shape", lambda *layouts_and_sums: tiles)
        # Several groups of tiles even in small problems
        monkeypatch.setattr(kernels_launch, "_GROUPED", {1: 1, 2: 1, 3: 1})
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("case", [case for case in CASES if not case.far], ids=str)
def test_answers_and_gradients_are_those_of_float64(case: Case) -> None:
    found = errors(case, DEVICE)
    assert max(found.values()) < TOLERANCES["high"], found


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_the_matmul_precision_says_how_exact_it_is(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    found = errors(SMALL, DEVICE)
    assert max(found.values()) < TOLERANCES[precision], found
    finer = {"medium": "high", "highest": None}[precision]
    assert finer is None or max(found.values()) > TOLERANCES[finer]


def test_a_query_far_from_all_memories_is_answered_by_the_nearest() -> None:
    torch.set_float32_matmul_precision("highest")
    found = errors(FAR, DEVICE)
    # Its logits are thousands, of which float32 keeps three decimals
    assert max(found.values()) < 1e-3, found


def test_memories_of_the_own_episode_have_no_weight_at_all() -> None:
    of = SMALL.inputs(DEVICE)
    assert of.query_episodes is not None
    assert of.key_episodes is not None
    own = of.query_episodes == of.query_episodes[0]
    hidden = of.key_episodes == of.query_episodes[0]
    assert hidden.any()
    # The plain sum, since an average depends on all values through where they are centred
    answer = fused_interpolation(*of, normalised=False)
    values = torch.where(hidden[:, None], of.values + 1e3, of.values)
    changed = fused_interpolation(*of._replace(values=values), normalised=False)
    assert torch.equal(changed[own], answer[own])
    assert not torch.equal(changed[~own], answer[~own])


def test_only_the_gradients_asked_for_are_made() -> None:
    of = SMALL.inputs(DEVICE)
    whole, values_alone = of.leaves(torch.float32), of.leaves(torch.float32)
    values_alone.queries.requires_grad_(False)
    values_alone.keys.requires_grad_(False)
    for leaves in (whole, values_alone):
        torch.autograd.backward(fused_interpolation(*leaves).sum())
    assert values_alone.queries.grad is None
    assert values_alone.keys.grad is None
    assert whole.values.grad is not None
    assert values_alone.values.grad is not None
    torch.testing.assert_close(values_alone.values.grad, whole.values.grad)


def test_equally_near_bfloat16_memories_are_averaged_without_bias() -> None:
    features = torch.zeros(140, 3, dtype=torch.bfloat16, device=DEVICE)
    values = torch.ones(140, 1, dtype=torch.bfloat16, device=DEVICE)
    values[:68] = -1.0  # 4 / 140 on average, which is less than their last bits can tell
    answer = fused_interpolation(features[:1], features, values)
    assert answer.dtype == torch.bfloat16
    assert float(answer) == pytest.approx(4 / 140, rel=2**-8)


def test_small_distances_far_from_the_centre_are_told_apart() -> None:
    torch.set_float32_matmul_precision("highest")
    of = Case(9, 140, 3, 2, masked=False).inputs(DEVICE)
    sides = torch.where(torch.arange(140, device=DEVICE) % 2 == 0, 50.0, -50.0)
    moved = of._replace(
        queries=of.queries + 50.0, keys=of.keys + sides[:, None], values=of.values - 2.0
    )
    exact = plain_interpolation(moved.leaves(torch.float64), normalised=True)
    # Squares are of the order of ten thousand, of which float32 itself keeps three decimals
    assert relative_error(fused_interpolation(*moved), exact) < 3e-3


def test_memories_laid_out_once_answer_as_the_interpolation_does() -> None:
    of = Case(9, 140, 3, 50, masked=False).inputs(DEVICE)
    memories = FusedMemories(of.keys, of.values)
    assert torch.equal(memories(of.queries), fused_interpolation(*of))
    assert memories(of.queries[:0]).shape == (0, 50)


def test_nothing_asked_is_answered_with_nothing() -> None:
    of = SMALL.inputs(DEVICE)
    assert fused_interpolation(of.queries[:0], of.keys, of.values).shape == (0, 2)


def test_second_derivatives_are_refused() -> None:
    leaves = SMALL.inputs(DEVICE).leaves(torch.float32)
    answer = fused_interpolation(*leaves)
    (gradient,) = torch.autograd.grad(answer.square().sum(), leaves.queries, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())


def test_features_too_wide_for_the_kernel_are_known() -> None:
    torch.set_float32_matmul_precision("highest")
    assert fits(32, torch.float32)
    assert not fits(33, torch.float32)
    assert fits(128, torch.bfloat16)
    assert not fits(129, torch.bfloat16)


# Left and right part of each product, by the number of parts of a number
PRODUCTS = {1: ["00"], 2: ["00", "01", "10"], 3: ["00", "11", "01", "10", "02", "20"]}


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("dim", [1, 3, 8, 11])
def test_every_part_of_every_number_is_where_its_product_needs_it(dim: int, parts: int) -> None:
    layout = Layout(dim, parts, extras=6)
    numbers, centre = torch.randn(100, dim).to(DEVICE), torch.randn(dim).to(DEVICE)
    order = torch.randperm(100).to(DEVICE)
    for side in (LEFT, RIGHT):
        rows = layout.rows(numbers, side, order, 0, Carried(3, beyond=FAR_AWAY), centre, 2.0)
        rest, pieces = 2.0 * (numbers[order] - centre), []
        for _ in range(parts):
            pieces.append(rest.bfloat16())
            rest = rest - pieces[-1].float()
        kept = sum((piece.double() for piece in pieces), start=torch.zeros(100, dim).to(DEVICE))
        carried = layout.carried(rows, 3)
        torch.testing.assert_close(carried[:100], -0.5 * kept.square().sum(dim=1).float())
        assert (carried[100:] < -9e29).all()
        extra = rows[:, layout.extra : layout.extra + 6]
        assert (extra[:100, :3] == 1).all()
        assert (extra[100:, :3] == 0).all()
        parts_alone = torch.cat([rows[:, : layout.extra], rows[:, layout.extra + 6 :]], dim=1)
        assert (parts_alone[100:] == 0).all()
        for place, product in enumerate(PRODUCTS[parts]):
            columns = parts_alone[:100, place * layout.stride :][:, : layout.stride]
            assert torch.equal(columns[:, :dim], pieces[int(product[side])])
            assert (columns[:, dim:] == 0).all()
        assert (parts_alone[:, len(PRODUCTS[parts]) * layout.stride :] == 0).all()


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("sums", [(True, False), (False, True), (True, True)])
def test_tiles_fill_the_padded_rows(parts: int, sums: tuple[bool, bool]) -> None:
    for dim in (1, 8, 16, 32):
        features, values = Layout(dim, parts, extras=6), Layout(dim, min(parts, 2), extras=3)
        tiles = tile_shape(features, values, *sums)
        assert PADDING % tiles.rows == 0
        assert PADDING % tiles.columns == 0


def test_an_unfused_path_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels._is_fused.cache_clear()
    with pytest.warns(UserWarning, match="300 features is not fused"):
        assert not kernels._is_fused(300, torch.float32)
    with monkeypatch.context() as without_triton:
        without_triton.setattr(kernels, "find_spec", lambda name: None)
        with pytest.warns(UserWarning, match="without Triton"):
            assert not kernels._is_fused(4, torch.float32)
    kernels._is_fused.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels._is_fused(4, torch.float32)
        assert not kernels._is_fused(4, torch.float64)  # as asked for: it is the exact path
    kernels._is_fused.cache_clear()


@needs_gpu
def test_tensors_on_a_gpu_go_through_the_fused_kernel() -> None:
    of = CASES[1].inputs("cuda")
    assert torch.equal(kernels.kernel_interpolation(*of), fused_interpolation(*of))


@needs_gpu
def test_other_sizes_neither_recompile_nor_change_bits() -> None:
    from imel.bench.gpu import compiled_variants

    before, counts = fused_interpolation(*CASES[1].inputs("cuda")), []
    for queries, keys in ((130, 131), (1, 129), (257, 1024), (4096, 5000)):
        of = Case(queries, keys, 16, 16).inputs("cuda")
        leaves = of.leaves(torch.float32)
        torch.autograd.backward(fused_interpolation(*leaves).sum())
        counts.append(compiled_variants())
    assert len(set(counts)) == 1
    assert torch.equal(fused_interpolation(*CASES[1].inputs("cuda")), before)


@needs_gpu
def test_runs_on_the_gpu_begin_as_on_the_cpu() -> None:
    from imel.bench.gpu_check import check_runs

    check_runs(total_timesteps=2048)
