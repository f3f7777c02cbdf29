"""Mean Kernel Interpolation keeps the contract, and its kernel does what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel
from torch import Tensor

from imel.data.experience import Context
from imel.policies.paper import mki
from imel.policies.paper.mki import (
    MeanKernelInterpolation,
    MkiSettings,
    kernel_interpolation,
    kernel_weights,
)
from imel.testing import ExactContract, LearnerContract, ragged_context
from samples import RAGGED

Problem = tuple[Tensor, Tensor, Tensor]
norms = pytest.mark.parametrize("normalised", [True, False], ids=["softmax", "plain sum"])
masks = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])


class TestMki(LearnerContract, ExactContract):
    def make(self, state_dim: int, value_dim: int) -> MeanKernelInterpolation:
        return MeanKernelInterpolation(state_dim, value_dim, MkiSettings(features=4, hidden=(16,)))


class TestPlainSum(LearnerContract):
    """The paper's formula without a normaliser: no average, so no exact contract."""

    def make(self, state_dim: int, value_dim: int) -> MeanKernelInterpolation:
        options = MkiSettings(features=4, hidden=(16,), kernel_scale=0.5, normalised=False)
        return MeanKernelInterpolation(state_dim, value_dim, options)


def problem() -> tuple[Problem, tuple[Tensor, Tensor]]:
    """Random queries, keys of ragged episodes and values; one query's episode has no key."""
    generator, count = torch.Generator().manual_seed(0), sum(RAGGED)
    columns = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((7, 3), (count, 3), (count, 2))
    )
    ids = torch.arange(len(RAGGED)).repeat_interleave(torch.tensor(RAGGED))
    key_episodes = ids[torch.randperm(count, generator=generator)]
    queries, keys, values = columns
    return (queries, keys, values), (torch.tensor([0, 3, 3, 1, 3, 99, 4]), key_episodes)


def naive(of: Problem, episodes: tuple[Tensor, Tensor] | None, normalised: bool) -> Tensor:
    """sum_i w_i y_i by loops, over the keys of other episodes."""
    queries, keys, values = of
    answer = torch.zeros(len(queries), values.shape[1], dtype=torch.float64)
    for t, query in enumerate(queries):
        total = 0.0
        for i, key in enumerate(keys):
            if episodes is not None and episodes[0][t] == episodes[1][i]:
                continue
            weight = math.exp(-float((query - key).square().sum()))
            answer[t] += weight * values[i]
            total += weight
        answer[t] /= total if normalised else 1.0
    return answer


@pytest.mark.parametrize("rows", [64, 3, 1], ids=["one block", "several blocks", "single rows"])
@masks
@norms
def test_answer_is_that_of_a_naive_loop(
    rows: int, masked: bool, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mki, "_ROWS", rows)
    (of, episodes), (untouched, _) = problem(), problem()
    known = episodes if masked else None
    answer = kernel_interpolation(*of, known, normalised)
    torch.testing.assert_close(answer, naive(of, known, normalised))
    assert all(map(torch.equal, of, untouched))


def test_weights_are_nadaraya_watson() -> None:
    (queries, keys, _), _ = problem()
    kernel = rbf_kernel(queries.numpy(), keys.numpy(), gamma=1.0)
    shares = kernel / kernel.sum(axis=1, keepdims=True)
    plain = kernel_weights(queries, keys, normalised=False)
    np.testing.assert_allclose(plain.numpy(), kernel, rtol=1e-10)
    np.testing.assert_allclose(kernel_weights(queries, keys).numpy(), shares, rtol=1e-10)


def test_float32_keeps_its_precision_when_all_features_are_far_from_zero() -> None:
    torch.manual_seed(1)
    model = MeanKernelInterpolation(3, 2, MkiSettings(hidden=(8,)))
    context = ragged_context(dtype=torch.float32)
    shifted = Context(context.states + 300.0, context.values, context.episodes)
    single = model.condition(shifted)(shifted.states).mean
    double = Context(shifted.states.double(), shifted.values.double(), shifted.episodes)
    exact = model.double().condition(double)(double.states).mean
    torch.testing.assert_close(single.double(), exact, rtol=0.0, atol=1e-3)
