"""Leave-one-episode-out training: who is left out, when it is skipped, and that it learns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from imel.data.experience import Context
from imel.policies.paper.fit import Fit, fit_leave_one_out, leave_one_out_error
from imel.policies.paper.interpolator import Interpolator
from imel.policies.paper.mki import MeanKernelInterpolation, MkiSettings
from imel.policies.paper.nearest import NearestNeighbours, NearestSettings
from imel.policies.paper.neural_process import NeuralProcess, NpSettings
from imel.policies.paper.paper_policy import FitSettings, LeaveOut
from imel.testing import ragged_context, smooth_context
from samples import RAGGED

ragged = ragged_context(dtype=torch.float32)


def small_mki(state_dim: int = 2) -> MeanKernelInterpolation:
    return MeanKernelInterpolation(state_dim, 2, MkiSettings(features=4, hidden=(16,)))


def fit(
    model: Interpolator, context: Context, settings: FitSettings, seed: int = 0, rate: float = 1e-2
) -> Fit | None:
    parameters = list(model.parameters()) or [torch.nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    return fit_leave_one_out(model, optimizer, context, settings, generator)


def weights_of(model: Interpolator) -> Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


class Spy(MeanKernelInterpolation):
    """Notes the targets of each gradient step."""

    def __init__(self) -> None:
        super().__init__(3, 2, MkiSettings(features=2, hidden=(8,)))
        self.asked: list[Context] = []

    def loss(self, context: Context, targets: Context, generator: torch.Generator) -> Tensor:
        self.asked.append(targets)
        return super().loss(context, targets, generator)


modes = pytest.mark.parametrize("leave_out", ["sampled", "each-episode"])


@modes
def test_where_there_is_nothing_to_fit_it_is_skipped(leave_out: LeaveOut) -> None:
    model, alone = small_mki(state_dim=3), ragged_context(lengths=(9,), dtype=torch.float32)
    before, settings = weights_of(model), FitSettings(leave_out=leave_out)
    assert fit(model, alone, settings) is None, "one episode leaves nothing in"
    assert fit(model, ragged, FitSettings(gradient_steps=0, leave_out=leave_out)) is None
    assert torch.equal(weights_of(model), before)
    assert fit(NearestNeighbours(3, 2, NearestSettings()), ragged, settings) is None
    assert leave_one_out_error(model, alone, torch.arange(9)) is None


def test_reported_loss_is_the_mean_over_the_gradient_steps() -> None:
    model, context = small_mki(), smooth_context()
    # With a rate of zero each step sees the loss of the first
    settings = FitSettings(gradient_steps=3, targets_per_step=len(context))
    error = leave_one_out_error(model, context, torch.arange(len(context)))
    outcome = fit(model, context, settings, rate=0.0)
    assert outcome is not None
    assert outcome.loss == pytest.approx(error)
    assert outcome.gradient_steps == 3


def test_each_episode_is_left_out_once_in_an_epoch() -> None:
    model = Spy()
    outcome = fit(model, ragged, FitSettings(gradient_steps=3, leave_out="each-episode"))
    assert outcome is not None
    assert outcome.gradient_steps == len(model.asked) == 3 * len(RAGGED)
    for epoch in (model.asked[:5], model.asked[5:10], model.asked[10:]):
        assert all(len(targets.episodes.unique()) == 1 for targets in epoch)  # type: ignore[no-untyped-call]
        assert sorted(len(targets) for targets in epoch) == sorted(RAGGED)
        assert len({int(targets.episodes[0]) for targets in epoch}) == len(RAGGED)


def test_sampled_targets_are_distinct_memories_of_many_episodes() -> None:
    model = Spy()
    fit(model, ragged, FitSettings(gradient_steps=30, targets_per_step=10))
    rows = {tuple(state.tolist()): i for i, state in enumerate(ragged.states)}
    times = torch.zeros(len(ragged))
    for targets in model.asked:
        asked = [rows[tuple(state.tolist())] for state in targets.states]
        assert len(set(asked)) == 10
        assert torch.equal(ragged.values[asked], targets.values)
        assert torch.equal(ragged.episodes[asked], targets.episodes)
        times[asked] += 1
    assert len(model.asked) == 30
    assert (times > 0).all()
    fit(model, ragged, FitSettings(gradient_steps=1, targets_per_step=10_000))
    assert len(model.asked[-1]) == len(ragged), "at most the whole context"


@pytest.mark.parametrize("neural", [True, False], ids=["np", "mki"])
def test_fit_is_decided_by_its_generator(neural: bool) -> None:
    first: Interpolator = small_mki()
    if neural:
        first = NeuralProcess(2, 2, NpSettings(hidden=(8,), latent=4))
    same, other = copy.deepcopy(first), copy.deepcopy(first)
    context, settings = smooth_context(), FitSettings(gradient_steps=3, targets_per_step=16)
    outcome = fit(first, context, settings, seed=7)
    torch.rand(5)  # a draw from the global generator makes no difference
    assert fit(same, context, settings, seed=7) == outcome
    assert fit(other, context, settings, seed=8) != outcome
    assert torch.equal(weights_of(first), weights_of(same))
    assert not torch.equal(weights_of(first), weights_of(other))


def test_long_gradients_are_shortened() -> None:
    steps, first = [], small_mki()
    for limit in (1e-3, 1e9):
        model, settings = copy.deepcopy(first), FitSettings(gradient_steps=1, max_grad_norm=limit)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        generator = torch.Generator().manual_seed(0)
        fit_leave_one_out(model, optimizer, smooth_context(), settings, generator)
        steps.append(weights_of(model) - weights_of(first))
    short, long = steps
    assert float(short.norm()) == pytest.approx(1e-3, rel=1e-2)
    assert float(long.norm()) > 1e-2
    torch.testing.assert_close(short / short.norm(), long / long.norm(), rtol=1e-2, atol=1e-3)


def test_leave_one_out_error_is_the_mean_squared_error_without_the_own_episode() -> None:
    model, context = NearestNeighbours(3, 2, NearestSettings(neighbours=3)), ragged_context()
    rows, total = torch.tensor([0, 7, 11, 20]), 0.0
    for row in rows:
        others = model.condition(context.rows(context.episodes != context.episodes[row]))
        answer = others(context.states[row : row + 1]).mean[0]
        total += float((answer - context.values[row]).square().sum())
    assert leave_one_out_error(model, context, rows) == pytest.approx(total / (4 * 2))
