"""Kernel interpolation against a naive loop, numerical gradients and scikit-learn."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel
from torch import Tensor

from imel.data.arithmetic import denormals_flushed
from imel.policies.paper import mki
from imel.policies.paper.mki import kernel_interpolation, kernel_weights
from samples import RAGGED


class Problem(NamedTuple):
    """The arguments of an interpolation, in order."""

    queries: Tensor  # [7, 3]
    keys: Tensor  # [N, 3]
    values: Tensor  # [N, 2]
    query_episodes: Tensor | None  # [7]
    key_episodes: Tensor | None  # [N]

    def own_episode(self, query: int, key: int) -> bool:
        if self.query_episodes is None or self.key_episodes is None:
            return False
        return bool(self.query_episodes[query] == self.key_episodes[key])

    def differentiable(self) -> Problem:
        """The same with fresh queries, keys and values that ask for a gradient."""
        return self._replace(
            queries=self.queries.clone().requires_grad_(),
            keys=self.keys.clone().requires_grad_(),
            values=self.values.clone().requires_grad_(),
        )


def problem(masked: bool = True) -> Problem:
    """Random queries and keys of ragged episodes; one query is of an episode no key belongs to."""
    generator = torch.Generator().manual_seed(0)
    count = sum(RAGGED)
    queries, keys, values = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((7, 3), (count, 3), (count, 2))
    )
    ids = torch.arange(len(RAGGED)).repeat_interleave(torch.tensor(RAGGED))
    key_episodes = ids[torch.randperm(count, generator=generator)]
    query_episodes = torch.tensor([0, 3, 3, 1, 3, 99, 4])
    episodes = (query_episodes, key_episodes) if masked else (None, None)
    return Problem(queries, keys, values, *episodes)


def naive(of: Problem, normalised: bool) -> Tensor:
    """sum_i w_i y_i by loops, over the keys of other episodes."""
    answer = torch.zeros(of.queries.shape[0], of.values.shape[1], dtype=torch.float64)
    for t, query in enumerate(of.queries):
        total = 0.0
        for i, key in enumerate(of.keys):
            if of.own_episode(t, i):
                continue
            weight = math.exp(-sum(float(q - k) ** 2 for q, k in zip(query, key, strict=True)))
            answer[t] += weight * of.values[i]
            total += weight
        if normalised:
            answer[t] /= total
    return answer


@pytest.fixture(params=[64, 3, 1], ids=["one block", "several blocks", "single rows"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mki, "_ROWS", request.param)


masks = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
norms = pytest.mark.parametrize("normalised", [True, False], ids=["softmax", "plain sum"])


@pytest.mark.usefixtures("_blocks")
@masks
@norms
def test_answer_is_that_of_a_naive_loop(masked: bool, normalised: bool) -> None:
    of = problem(masked)
    torch.testing.assert_close(kernel_interpolation(*of, normalised), naive(of, normalised))


@pytest.mark.usefixtures("_blocks")
@masks
@norms
def test_gradients_are_those_of_finite_differences(masked: bool, normalised: bool) -> None:
    of = problem(masked).differentiable()

    def interpolate(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return kernel_interpolation(
            queries, keys, values, of.query_episodes, of.key_episodes, normalised
        )

    assert torch.autograd.gradcheck(interpolate, of[:3])


@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["queries", "keys", "values"])
def test_each_gradient_can_be_asked_for_alone(wanted: int) -> None:
    every, alone = problem().differentiable(), problem().differentiable()
    columns = (alone.queries, alone.keys, alone.values)
    for i, column in enumerate(columns):
        column.requires_grad_(i == wanted)
    for of in (every, alone):
        kernel_interpolation(*of).square().sum().backward()  # type: ignore[no-untyped-call]
    expected = (every.queries, every.keys, every.values)[wanted].grad
    assert expected is not None
    torch.testing.assert_close(columns[wanted].grad, expected)
    assert all(columns[i].grad is None for i in range(3) if i != wanted)


def test_weights_are_nadaraya_watson() -> None:
    of = problem(masked=False)
    kernel = rbf_kernel(of.queries.numpy(), of.keys.numpy(), gamma=1.0)
    shares = kernel / kernel.sum(axis=1, keepdims=True)
    plain = kernel_weights(of.queries, of.keys, normalised=False)
    np.testing.assert_allclose(plain.numpy(), kernel, rtol=1e-10)
    weights = kernel_weights(of.queries, of.keys)
    np.testing.assert_allclose(weights.numpy(), shares, rtol=1e-10)
    answer = kernel_interpolation(*of)
    np.testing.assert_allclose(answer.numpy(), shares @ of.values.numpy(), rtol=1e-10)


@norms
def test_inputs_are_left_as_they_were(normalised: bool) -> None:
    of, untouched = problem(), problem()
    kernel_interpolation(*of, normalised)
    kernel_weights(of.queries, of.keys, normalised)
    torch.testing.assert_close(list(of), list(untouched), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e12])
def test_far_queries_are_finite_and_answered_by_the_closest_key(distance: float) -> None:
    keys = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    values = torch.tensor([[1.0], [2.0], [3.0]])
    queries = torch.tensor([[distance, 0.0], [0.0, distance]], requires_grad=True)
    answer = kernel_interpolation(queries, keys, values)
    assert answer.flatten().tolist() == [2.0, 3.0]
    (gradient,) = torch.autograd.grad(answer.sum(), queries)
    assert torch.isfinite(gradient).all()
    plain = kernel_weights(queries.detach(), keys, normalised=False)
    assert torch.equal(plain, torch.zeros(2, 3))


@norms
def test_float32_agrees_with_float64(normalised: bool) -> None:
    of = problem()
    single = of._replace(queries=of.queries.float(), keys=of.keys.float(), values=of.values.float())
    answer = kernel_interpolation(*single, normalised)
    assert answer.dtype == torch.float32
    exact = kernel_interpolation(*of, normalised)
    torch.testing.assert_close(answer.double(), exact, rtol=1e-4, atol=1e-5)


def test_episodes_of_one_side_only_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes"):
        kernel_interpolation(*problem()._replace(query_episodes=None))
    with pytest.raises(ValueError, match="episodes"):
        kernel_interpolation(*problem()._replace(key_episodes=None))


def test_denormals_are_flushed_within_and_kept_outside() -> None:
    def product() -> float:
        return float(torch.tensor([1e-30]) * torch.tensor([1e-12]))

    assert product() > 0.0
    with suppress(ValueError), denormals_flushed():
        assert product() == 0.0
        raise ValueError("ends it too")
    assert product() > 0.0
