"""Mean Kernel Interpolation keeps the contract, and its kernel does what it says."""

from __future__ import annotations

import torch

from imel.data.experience import Context
from imel.policies.paper.mki import MeanKernelInterpolation, MkiSettings
from imel.testing import ExactContract, LearnerContract, ragged_context


class TestMki(LearnerContract, ExactContract):
    def make(self, state_dim: int, value_dim: int) -> MeanKernelInterpolation:
        return MeanKernelInterpolation(state_dim, value_dim, MkiSettings(features=4, hidden=(16,)))


class TestPlainSum(LearnerContract):
    """The paper's formula without a normaliser: no average, so no exact contract."""

    def make(self, state_dim: int, value_dim: int) -> MeanKernelInterpolation:
        options = MkiSettings(features=4, hidden=(16,), kernel_scale=0.5, normalised=False)
        return MeanKernelInterpolation(state_dim, value_dim, options)


def model_with(**options: float | bool) -> MeanKernelInterpolation:
    return MeanKernelInterpolation(3, 2, MkiSettings(hidden=(8,), **options)).double()  # type: ignore[arg-type]


def test_plain_sum_grows_with_the_memory_and_the_average_does_not() -> None:
    context = ragged_context()
    twice = context.rows(torch.arange(len(context)).repeat(2))
    for normalised, factor in ((True, 1.0), (False, 2.0)):
        model = model_with(normalised=normalised, kernel_scale=0.5)
        once = model.condition(context)(context.states).mean
        torch.testing.assert_close(model.condition(twice)(context.states).mean, factor * once)


def test_plain_sum_vanishes_far_from_every_memory() -> None:
    model = model_with(normalised=False)
    far = torch.full((1, 3), 1e4, dtype=torch.float64)
    assert torch.equal(model.condition(ragged_context())(far).mean, torch.zeros(1, 2).double())


def test_a_sharp_kernel_answers_with_the_memory_at_the_state() -> None:
    context = ragged_context()
    answer = model_with(kernel_scale=1e3).condition(context)(context.states).mean
    torch.testing.assert_close(answer, context.values)


def test_a_flat_kernel_answers_with_the_mean_of_all() -> None:
    context = ragged_context()
    answer = model_with(kernel_scale=0.0).condition(context)(context.states).mean
    torch.testing.assert_close(answer, context.values.mean(dim=0).expand_as(answer))


def test_float32_keeps_its_precision_when_all_features_are_far_from_zero() -> None:
    torch.manual_seed(1)
    model = MeanKernelInterpolation(3, 2, MkiSettings(hidden=(8,)))
    context = ragged_context(dtype=torch.float32)
    shifted = Context(context.states + 300.0, context.values, context.episodes)
    single = model.condition(shifted)(shifted.states).mean
    double = Context(shifted.states.double(), shifted.values.double(), shifted.episodes)
    exact = model.double().condition(double)(double.states).mean
    torch.testing.assert_close(single.double(), exact, rtol=0.0, atol=1e-3)
