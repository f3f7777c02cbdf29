"""Acting through an approximate index: near the exact answer, made anew, and never silent."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from imel.errors import SettingsError
from imel.experience import Context
from imel.interpolators.anchored import AnchoredTrend
from imel.interpolators.index import IndexedAverage
from imel.interpolators.mki import ConditionedKernel, MeanKernelInterpolation, MkiOptions
from imel.kernels import PreparedAverage
from imel.policy import MkiPolicy
from small import BATCH, STATES, LogBook, small_model

pytest.importorskip("faiss")


def field(count: int, seed: int = 0) -> Context:
    """Memories of a smooth field over three dimensions."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(count, 3, generator=generator)
    return Context(states, torch.sin(2.0 * states), torch.arange(count) // 10)


def test_answers_are_near_the_exact_ones_and_the_error_says_how_near() -> None:
    context, queries = field(20_000), field(50, seed=1).states
    keys = 4.0 * context.states
    indexed = IndexedAverage(keys, context.values)
    exact = PreparedAverage(keys, context.values)(4.0 * queries)
    answer = indexed(4.0 * queries)
    distance = (answer - exact).norm(dim=1).median()
    spread = exact.var(dim=0, unbiased=False).sum().sqrt()
    assert indexed.error(4.0 * queries) == pytest.approx(float(distance / spread), rel=1e-4)
    assert 0.0 < indexed.error(4.0 * queries) < 0.005


def test_the_answer_is_the_weighted_sum_of_values() -> None:
    context = field(3_000)
    indexed = IndexedAverage(context.states, context.values)
    weights = indexed.weights(context.states[:7])
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(7))
    assert int((weights > 0).sum(dim=1).max()) <= 256
    torch.testing.assert_close(weights @ context.values, indexed(context.states[:7]))


@pytest.mark.parametrize("count", [1, 2, 38, 100])
def test_a_memory_too_small_for_clusters_is_answered_exactly(count: int) -> None:
    context = field(count)
    indexed = IndexedAverage(context.states, context.values)
    exact = PreparedAverage(context.states, context.values)
    queries = field(5, seed=1).states
    torch.testing.assert_close(indexed(queries), exact(queries), rtol=1e-4, atol=1e-5)


def test_conditioning_again_follows_features_that_have_moved() -> None:
    context, queries = field(500), field(20, seed=1).states
    torch.manual_seed(0)
    model = MeanKernelInterpolation(3, 3, MkiOptions(acting_index="faiss"))
    before = model.condition(context)(queries).mean
    with torch.no_grad():
        model.L.mul_(3.0)
    after = model.condition(context)
    exact = MeanKernelInterpolation(3, 3, MkiOptions())
    exact.load_state_dict(model.state_dict())
    expected = exact.condition(context)(queries).mean
    assert float((before - expected).abs().max()) > 0.05
    torch.testing.assert_close(after(queries).mean, expected, rtol=1e-3, atol=1e-3)


def test_a_run_with_an_index_logs_its_error_and_one_without_does_not() -> None:
    pages = []
    for options in ({"acting_index": "faiss"}, {}):
        model = small_model(update="plain", policy_kwargs=options)
        book = LogBook.of(model)
        model.learn(BATCH)
        pages.append(book.pages[0])
    assert 0.0 <= pages[0]["memory/index_error"] < 0.01
    assert "memory/index_error" not in pages[1]


def test_the_index_of_an_anchored_policy_is_of_its_newest_memories() -> None:
    options = {"acting_index": "faiss", "waves": 8}
    indexed = small_model(anchor_size=BATCH, policy_kwargs=options).learn(2 * BATCH)
    policy, states = indexed.policy, torch.as_tensor(STATES)
    assert isinstance(policy, MkiPolicy)
    policy.kernel_share.fill_(1.0)
    policy.fitted()
    exact = MkiPolicy(
        policy.observation_space,
        policy.action_space,
        memory_size=2 * BATCH,
        waves=8,
        update="anchored",
        anchor_size=BATCH,
    )
    exact.load_state_dict(policy.state_dict())
    torch.testing.assert_close(policy.act(states)[0], exact.act(states)[0], rtol=1e-3, atol=1e-3)
    conditioned = policy.acting.interpolate
    assert isinstance(conditioned, AnchoredTrend)
    assert isinstance(conditioned.kernel, ConditionedKernel)
    normal = policy.normaliser(states)
    assert conditioned.kernel.weights(normal).shape == (len(STATES), BATCH)
    assert conditioned.kernel.index_error(normal) is not None
    total = conditioned.contributions(normal).sum(dim=1)
    torch.testing.assert_close(total, policy.act(states)[0], rtol=0.0, atol=1e-5)


def test_a_policy_with_an_index_can_be_copied() -> None:
    context, queries = field(500), field(20, seed=1).states
    conditioned = MeanKernelInterpolation(3, 3, MkiOptions(acting_index="faiss")).condition(context)
    twin = copy.deepcopy(conditioned)
    torch.testing.assert_close(twin(queries).mean, conditioned(queries).mean)


def test_what_an_index_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match="normalised"):
        MeanKernelInterpolation(2, 1, MkiOptions(acting_index="faiss", normalised=False))


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(SettingsError, match=r"imel\[index\]"):
        MeanKernelInterpolation(2, 1, MkiOptions(acting_index="faiss"))
