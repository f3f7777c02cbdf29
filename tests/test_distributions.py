"""Distributions of actions: samples, gradients, the budget of an improvement, the step's length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical as Oracle
from torch.distributions import kl_divergence

from imel.distributions import Categorical, distribution_for
from imel.distributions.categorical import _REACHABLE

SIZES = st.lists(st.integers(2, 5), min_size=1, max_size=3)


def batch(sizes: list[int], seed: int, rows: int = 40, sharp: float = 1.0) -> tuple[Any, ...]:
    """A distribution with logits, sampled actions, weights and stds."""
    generator = torch.Generator().manual_seed(seed)
    choice = Categorical(sizes, [0] * len(sizes), (len(sizes),))
    logits = sharp * torch.randn(rows, choice.width, generator=generator)
    noise = choice.noise((rows,), generator).numpy()
    actions = torch.from_numpy(choice.sample(logits.numpy(), noise, noise))
    weights = torch.randn(rows, generator=generator)
    return choice, logits, actions, weights, torch.ones_like(logits)


def parts(choice: Categorical, *columns: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(choice._parts(column.double()) for column in columns), strict=True))


def kl(choice: Categorical, one: Tensor, other: Tensor) -> Tensor:
    """KL(one, other) by torch's own distributions, summed over choices."""
    each = [kl_divergence(Oracle(logits=a), Oracle(logits=b)) for a, b in parts(choice, one, other)]
    return torch.stack(each).sum(dim=0)


def log_density(choice: Categorical, logits: Tensor, actions: Tensor) -> Tensor:
    """log pi(a|s) by torch's own distributions, summed over choices."""
    each = [
        Oracle(logits=x).log_prob(a.argmax(dim=-1))  # type: ignore[no-untyped-call]
        for x, a in parts(choice, logits, actions)
    ]
    return torch.stack(each).sum(dim=0)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 1000), st.floats(1e-4, 3.0), st.floats(0.0, 4.0))
def test_mean_kl_of_improved_logits_is_the_budget(
    sizes: list[int], seed: int, budget: float, sharp: float
) -> None:
    choice, logits, actions, weights, stds = batch(sizes, seed, sharp=sharp)
    most = choice._most(choice.gradients(weights, actions, logits), logits)
    improved, eta = choice.improve(weights, actions, logits.double(), stds, budget)
    assert eta > 0.0
    expected = min(budget, _REACHABLE * most)
    assert float(kl(choice, improved, logits).mean()) == pytest.approx(expected, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 1000))
def test_gradient_is_that_of_autograd_and_its_end_the_least_upper_bound_of_the_kl(
    sizes: list[int], seed: int
) -> None:
    choice, logits, actions, weights, _ = batch(sizes, seed)
    moved = logits.double().requires_grad_()
    objective = (weights * log_density(choice, moved, actions)).sum()
    (expected,) = torch.autograd.grad(objective, moved)
    gradients = choice.gradients(weights, actions, logits)
    torch.testing.assert_close(gradients, expected)
    gaps = torch.stack([p.topk(2).values.diff().abs().min() for p in choice._parts(gradients)])
    far = logits + 60.0 / float(gaps.min()) * gradients
    most = choice._most(gradients, logits)
    assert float(kl(choice, far, logits).mean()) == pytest.approx(most, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 1000), st.floats(1e-4, 0.1))
def test_step_has_the_mean_kl_of_the_trust_region_or_the_peak(
    sizes: list[int], seed: int, region: float
) -> None:
    choice, logits, _, _, stds = batch(sizes, seed)
    shifts = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed + 1))
    beta = choice.step_length(shifts, logits, stds, 10, region, 10 * region)
    kls = kl(choice, logits, logits + beta * shifts)
    reached = max(float(kls[-10:].mean()) / region, float(kls.max()) / (10 * region))
    assert reached == pytest.approx(1.0, rel=1e-3)
    same = torch.ones_like(logits)  # the same for every option: the policy stays as it is
    assert choice.step_length(0.0 * same, logits, stds, 5, 0.01, 0.1) == 0.0


def test_samples_have_the_probabilities_of_the_logits() -> None:
    choice = Categorical([3, 2], [0, 0], (2,))
    logits = np.tile(np.array([0.0, 1.0, -1.0, 0.5, -0.5], np.float32), (200_000, 1))
    noise = choice.noise((len(logits),), torch.Generator().manual_seed(0)).numpy()
    sampled = choice.sample(logits, noise, noise)
    expected = choice.shown(logits[0])
    np.testing.assert_allclose(sampled.mean(axis=0), expected, atol=5e-3)


def test_importance_ratio_is_that_of_the_probabilities() -> None:
    choice, logits, actions, _, stds = batch([3, 2], 5)
    ratios = choice.ratios(actions, logits, stds, logits.flip(0), stds)
    now, then = (log_density(choice, x, actions) for x in (logits, logits.flip(0)))
    torch.testing.assert_close(ratios.double(), (now - then).exp(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3, 4]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 2]),
    ],
)
def test_choices_are_encoded_and_emitted_as_the_space_has_them(space: spaces.Space[Any]) -> None:
    choice = distribution_for(space)
    space.seed(0)
    chosen = np.array([space.sample() for _ in range(20)])
    actions = choice.encode(chosen)
    assert actions.shape == (20, choice.width)
    assert (actions.sum(axis=1) == len(choice.sizes)).all()
    np.testing.assert_array_equal(choice.emit(actions), chosen)
    for action in choice.emit(actions):
        assert space.contains(action.astype(space.dtype))
    for wrong in (choice.starts.min() - 1, choice.starts.max() + max(choice.sizes), 0.5):
        with pytest.raises(ValueError, match="option"):
            choice.encode(np.full_like(chosen, wrong, dtype=float))
    # What is demonstrated is what such a policy does
    np.testing.assert_array_equal(choice.mode(choice.demonstrated(actions)), actions)


def test_words_name_options_by_probability_and_choices_by_what_is_chosen() -> None:
    single, several = Categorical([2], [0], ()), Categorical([2, 3], [0, 0], (2,))
    logits = np.log(np.array([0.25, 0.75, 0.2, 0.7, 0.1]))
    assert single.words(logits[:2], ["left", "right"]) == "right (75 %), left (25 %)"
    assert several.words(logits, list("abcde")) == "b (75 %), d (70 %)"
