"""Neural Processes keep the contract: with a mean of memories or attention beside z, or without."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from imel.data.experience import Context
from imel.policies.paper.attentive import AnpSettings, AttentionPath, AttentiveNeuralProcess
from imel.policies.paper.interpolator import Weighted
from imel.policies.paper.neural_process import NeuralProcess, NpSettings
from imel.testing import LearnerContract, ragged_context

SMALL: dict[str, Any] = {"hidden": (32,), "latent": 8}


class TestNeuralProcess(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> NeuralProcess:
        return NeuralProcess(state_dim, value_dim, NpSettings(**SMALL))


class TestWithMeanPath(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> NeuralProcess:
        return NeuralProcess(state_dim, value_dim, NpSettings(**SMALL, deterministic="mean"))


class TestAttentive(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> AttentiveNeuralProcess:
        return AttentiveNeuralProcess(state_dim, value_dim, AnpSettings(**SMALL, features=4))


def made(path: str = "none", **options: Any) -> NeuralProcess:
    small: dict[str, Any] = {"hidden": (8,), "latent": 4, **options}
    if path == "attention":
        return AttentiveNeuralProcess(3, 2, AnpSettings(features=2, **small)).double()
    return NeuralProcess(3, 2, NpSettings(deterministic=path, **small)).double()  # type: ignore[arg-type]


every_path = pytest.mark.parametrize("path", ["none", "mean", "attention"])


@every_path
def test_decoder_reads_the_latent_and_what_the_path_makes_of_the_context(path: str) -> None:
    model, context = made(path), ragged_context()
    conditioned = model.condition(context)
    assert isinstance(conditioned, Weighted) == (path == "attention")
    with torch.no_grad():
        rows = torch.cat([context.states, context.values], dim=1)
        summary = [model.to_latent(model.encoder(rows).mean(dim=0))[:4].expand(len(context), 4)]
        if model.path is not None:
            encoded = model.path.encoder(rows)
            weights = torch.full((len(context),) * 2, 1.0 / len(context)).double()
            if isinstance(conditioned, Weighted):
                weights = conditioned.weights(context.states)
            summary.append(weights @ encoded)
        expected = model.decoder(torch.cat([context.states, *summary], dim=1))[:, :2]
    torch.testing.assert_close(conditioned(context.states).mean, expected)
    moved = Context(context.states, context.values + 1.0, context.episodes)
    assert (model.condition(moved)(context.states).mean - expected).abs().max() > 1e-3


def test_attention_is_a_softmax_kernel_of_learned_features_but_not_the_answer() -> None:
    context, model = ragged_context(), made("attention")
    assert isinstance(model.path, AttentionPath)
    conditioned = model.condition(context)
    assert isinstance(conditioned, Weighted)
    assert not conditioned.exact
    with torch.no_grad():
        u = model.path.embed(context.states) + model.path.skip(context.states)
    squared = (u[:, None] - u[None]).square().sum(dim=2)
    torch.testing.assert_close(conditioned.weights(context.states), torch.softmax(-squared, dim=1))


@every_path
def test_leaving_out_does_not_see_the_targets_own_episode(path: str) -> None:
    context, model = ragged_context(), made(path)
    own = context.episodes == context.episodes.mode().values
    changed = torch.where(own[:, None], context.values + 5.0, context.values)
    with torch.no_grad():
        one, other = (
            model.leave_one_out(
                Context(context.states, values, context.episodes), context.rows(own)
            )
            for values in (context.values, changed)
        )
    torch.testing.assert_close(one, other)
