"""What must hold of the improvement for any batch of experiences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from imel.distributions import Gaussian
from imel.distributions.gaussian import (
    StdMode,
    adapted_std,
    improved_means,
    improved_stds,
    next_std,
    std_gradient,
    step_size,
)
from samples import Batch, log_density, mean_kl


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Batches as a rollout makes them: each sigma its own, actions a few sigmas off their means."""
    steps, dims = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stds = rng.uniform(0.02, 1.0, (steps, dims))
    means = rng.uniform(-1.0, 1.0, (steps, dims))
    columns = (
        rng.normal(size=steps) * draw(st.sampled_from([1e-6, 1.0, 1e6])),
        means + stds * rng.normal(size=(steps, dims)),
        means,
        stds,
    )
    return Batch(*(torch.as_tensor(column, dtype=torch.float32) for column in columns))


def improve(batch: Batch, kl_budget: float) -> Tensor:
    return improved_means(*batch, step_size(*batch, kl_budget))


@given(batches(), st.floats(0.1, 20.0))
def test_mean_kl_of_improved_means_is_the_budget(batch: Batch, kl_budget: float) -> None:
    kl = mean_kl(improve(batch, kl_budget), batch.means, batch.stds)
    assert kl == pytest.approx(kl_budget, rel=1e-4)


@given(batches(), st.one_of(st.floats(1e-12, 1e12), st.sampled_from([1e30, 1e-30])))
def test_improved_means_do_not_depend_on_the_scale_of_advantages(batch: Batch, c: float) -> None:
    unit = batch._replace(advantages=batch.advantages / batch.advantages.abs().max())
    scaled = unit._replace(advantages=c * unit.advantages)
    torch.testing.assert_close(improve(scaled, 2.0), improve(unit, 2.0), rtol=1e-4, atol=1e-5)
    eta = step_size(*scaled, 2.0)
    assert math.isfinite(eta)
    assert torch.isfinite(improved_stds(*scaled, eta, "advantage")).all()


@given(batches())
def test_means_move_toward_good_actions_and_away_from_bad_ones(batch: Batch) -> None:
    moved = improve(batch, 1.0).double() - batch.means.double()
    toward = moved * (batch.actions - batch.means).double()  # [T, d_a]
    good = batch.advantages[:, None] > 0
    # A step too small for float32 is no step; none goes the wrong way
    assert (torch.where(good, toward, -toward) >= 0).all()
    assert toward.abs().max() > 0


@pytest.mark.parametrize(
    "change",
    [
        {"advantages": torch.zeros(6)},
        {"actions": torch.zeros(6, 2)},
        {"advantages": torch.tensor([0, 0, 1.0, 0, 0, 0]), "actions": torch.eye(6, 2)},
        *({"advantages": torch.tensor([value, *[1.0] * 5])} for value in (math.nan, math.inf)),
    ],
    ids=["no advantage", "every action its mean", "advantage only at the mean", "nan", "inf"],
)
def test_degenerate_batch_stays_where_it_is(change: dict[str, Tensor]) -> None:
    batch = Batch(torch.ones(6), torch.ones(6, 2), torch.zeros(6, 2), torch.full((6, 2), 0.3))
    batch = batch._replace(**change)
    eta = step_size(*batch, 5.0)
    assert eta == 0.0
    assert torch.equal(improved_means(*batch, eta), batch.means)


@given(batches(), st.sampled_from(["advantage", "paper"]), st.floats(0.1, 50.0))
def test_sigma_stays_between_its_floor_and_twice_what_it_was(
    batch: Batch, mode: StdMode, kl_budget: float
) -> None:
    stars, previous = improved_stds(*batch, step_size(*batch, kl_budget), mode), batch.stds.mean(0)
    sigma = next_std(stars, previous, min_std=0.05)
    assert (sigma >= 0.05).all()
    assert (sigma <= (2.0 * previous).clamp_min(0.05)).all()
    for value in (math.nan, math.inf, -math.inf):
        stars[0] = value
        assert torch.equal(next_std(stars, previous, min_std=0.0), previous)


@given(batches(), st.floats(0.2, 5.0), st.floats(-1.0, 1.0))
def test_importance_ratios_are_those_of_the_densities(
    batch: Batch, stretch: float, shift: float
) -> None:
    means, stds = batch.means + shift * batch.stds, batch.stds * stretch
    ratios = Gaussian(1).ratios(batch.actions, means, stds, batch.means, batch.stds)
    now = log_density(batch.actions.double(), means.double(), stds.double())
    then = log_density(*(column.double() for column in batch[1:]))
    expected = (now - then).sum(dim=1).exp()
    torch.testing.assert_close(ratios.double(), expected, rtol=1e-3, atol=1e-6)


def test_importance_ratios_stay_finite_however_far_apart_policies_are() -> None:
    near, far, std = torch.zeros(1, 3), torch.full((1, 3), 1e4), torch.full((1, 3), 0.01)
    assert torch.isfinite(Gaussian(3).ratios(near, near, std, far, std)).all()
    assert float(Gaussian(3).ratios(near, far, std, near, std)) < 1e-20


@given(batches())
def test_std_gradient_is_that_of_the_surrogate_in_units_of_the_fisher_information(
    batch: Batch,
) -> None:
    advantages, actions, means = (column.double() for column in batch[:3])
    log_std = batch.stds.double().log().requires_grad_()
    density = log_density(actions, means, log_std.exp()).sum(dim=1)
    (gradient,) = torch.autograd.grad((advantages * density).sum(), log_std)
    # The Fisher information of log sigma is two
    expected = gradient.sum(dim=0) / len(advantages) / 2.0
    ours = std_gradient(advantages, actions, means, batch.stds.double())
    scale = float(advantages.abs().max())
    torch.testing.assert_close(ours / scale, expected / scale, rtol=1e-6, atol=1e-9)


def test_sigma_follows_its_gradient_within_bounds() -> None:
    std = torch.tensor([0.4, 0.4, 0.4, 0.4, 0.1])
    gradient = torch.tensor([0.07, 0.02, -5.0, math.nan, 5.0])
    moved = adapted_std(std, gradient, min_std=0.05, max_std=0.42)
    expected = torch.tensor([0.42, 0.4 * math.exp(0.02), 0.4 * math.exp(-0.2), 0.4, 0.1])
    expected[-1] *= math.exp(0.2)  # no batch moves sigma by more than a fifth
    torch.testing.assert_close(moved, expected)
    floored = adapted_std(std[:1], gradient[2:3], min_std=0.39, max_std=0.42)
    torch.testing.assert_close(floored, torch.tensor([0.39]))


@given(batches(), st.floats(1e-4, 10.0), st.integers(1, 30))
def test_a_step_has_the_mean_kl_of_the_trust_region_or_the_peak(
    batch: Batch, region: float, new: int
) -> None:
    shifts, stds, gaussian = (
        (batch.actions - batch.means).double(),
        batch.stds.double(),
        Gaussian(1),
    )
    moved, still = Normal(batch.means + shifts, stds), Normal(batch.means.double(), stds)
    kls = gaussian.kls(shifts, batch.means, stds)
    torch.testing.assert_close(kls, kl_divergence(moved, still).sum(dim=-1), atol=1e-5, rtol=1e-4)
    beta = gaussian.step_length(shifts, batch.means, stds, new, region, 3 * region)
    kls = gaussian.kls(beta * shifts, batch.means, stds)
    reached = max(float(kls[-new:].mean()) / region, float(kls.max()) / (3 * region))
    assert reached == pytest.approx(1.0, rel=1e-6)
    assert gaussian.step_length(0.0 * shifts, batch.means, stds, new, region, region) == 0.0
