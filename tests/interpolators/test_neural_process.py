"""Neural Processes keep the contract, with and without the deterministic path."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from imel.data.experience import Context
from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.neural_process import Latent, NeuralProcess, NpSettings
from imel.testing import LearnerContract, ragged_context

Path = Literal["none", "mean"]


class TestNeuralProcess(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> NeuralProcess:
        return NeuralProcess(state_dim, value_dim, NpSettings(hidden=(32,), latent=8))


class TestWithMeanPath(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> NeuralProcess:
        options = NpSettings(hidden=(32,), latent=8, deterministic="mean")
        return NeuralProcess(state_dim, value_dim, options)


def model_with(deterministic: Path = "none", min_value_std: float = 0.05) -> NeuralProcess:
    options = NpSettings(
        hidden=(8,), latent=4, min_value_std=min_value_std, deterministic=deterministic
    )
    return NeuralProcess(3, 2, options).double()


def test_memories_have_no_weights_and_it_says_so_by_its_type() -> None:
    assert not isinstance(model_with().condition(ragged_context()), Weighted)


def test_sigma_never_falls_below_its_floor() -> None:
    model, context = model_with(min_value_std=0.3), ragged_context()
    with torch.no_grad():
        model.decoder[-1].bias[2:] = -1e3  # type: ignore[operator]
    std = model.condition(context)(context.states).std
    assert std is not None
    torch.testing.assert_close(std, torch.full_like(std, 0.3))


def test_sigma_of_the_latent_is_bounded_away_from_zero() -> None:
    latent = model_with().latent(1e3 * torch.randn(50, 8, dtype=torch.float64))
    assert (latent.std >= 0.1).all()
    assert (latent.std <= 1.0).all()


def test_latent_divergence_is_that_of_normal_distributions() -> None:
    one = Latent(torch.randn(5, 4), 0.1 + torch.rand(5, 4))
    other = Latent(torch.randn(5, 4), 0.1 + torch.rand(5, 4))
    expected = kl_divergence(Normal(*one), Normal(*other)).sum(dim=1)
    torch.testing.assert_close(one.kl(other), expected)
    torch.testing.assert_close(one.kl(one), torch.zeros(5))


def test_latent_samples_are_draws_of_the_generator() -> None:
    latent = Latent(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.1]))
    sample = latent.sample((6, 2), torch.Generator().manual_seed(4))
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(sample, latent.mean + latent.std * noise)


@pytest.mark.parametrize("deterministic", ["none", "mean"])
def test_answer_depends_on_the_context(deterministic: Path) -> None:
    model, context = model_with(deterministic), ragged_context()
    moved = Context(context.states, context.values + 1.0, context.episodes)
    one, other = (model.condition(c)(context.states).mean for c in (context, moved))
    assert (one - other).abs().max() > 1e-3


def test_mean_path_adds_the_mean_of_encoded_memories() -> None:
    model, context = model_with("mean"), ragged_context()
    assert model.path is not None
    with torch.no_grad():
        rows = torch.cat([context.states, context.values], dim=1)
        read = model.path.encoder(rows).mean(dim=0)  # type: ignore[operator]
        mu_z = model.to_latent(model.encoder(rows).mean(dim=0))[:4]
        summary = torch.cat([mu_z, read]).expand(len(context), -1)
        expected = model.decoder(torch.cat([context.states, summary], dim=1))[:, :2]
    torch.testing.assert_close(model.condition(context)(context.states).mean, expected)


def test_loss_does_not_see_the_targets_through_the_mean_path() -> None:
    model, context = model_with("mean"), ragged_context()
    own = context.episodes == context.episodes.mode().values
    changed = torch.where(own[:, None], context.values + 5.0, context.values)
    assert model.path is not None
    with torch.no_grad():
        reads = [
            model.path.leave_one_out(
                Context(context.states, values, context.episodes), context.rows(own)
            )
            for values in (context.values, changed)
        ]
    torch.testing.assert_close(reads[0], reads[1])
