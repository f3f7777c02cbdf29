"""The attentive Neural Process keeps the contract and shows where it looked."""

from __future__ import annotations

import torch

from imel.data.experience import Context
from imel.policies.paper.attentive import AnpSettings, AttentionPath, AttentiveNeuralProcess
from imel.policies.paper.interpolator import Weighted
from imel.testing import LearnerContract, ragged_context


class TestAttentive(LearnerContract):
    def make(self, state_dim: int, value_dim: int) -> AttentiveNeuralProcess:
        options = AnpSettings(hidden=(32,), latent=8, features=4)
        return AttentiveNeuralProcess(state_dim, value_dim, options)


def small() -> AttentiveNeuralProcess:
    return AttentiveNeuralProcess(3, 2, AnpSettings(hidden=(8,), latent=4, features=2)).double()


def test_attention_is_a_share_of_each_memory_but_not_the_answer() -> None:
    context = ragged_context()
    conditioned = small().condition(context)
    assert isinstance(conditioned, Weighted)
    assert not conditioned.exact
    weights = conditioned.weights(context.states)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(context)).double())


def test_attention_falls_with_the_distance_of_features() -> None:
    context, model = ragged_context(), small()
    assert isinstance(model.path, AttentionPath)
    with torch.no_grad():
        u = model.path.features(context.states)
    squared = (u[:, None] - u[None]).square().sum(dim=2)
    weights = model.condition(context).weights(context.states)
    torch.testing.assert_close(weights, torch.softmax(-squared, dim=1))


def test_decoder_reads_what_attention_gathers() -> None:
    context, model = ragged_context(), small()
    assert isinstance(model.path, AttentionPath)
    with torch.no_grad():
        rows = torch.cat([context.states, context.values], dim=1)
        read = model.condition(context).weights(context.states) @ model.path.encoder(rows)
        mu_z = model.to_latent(model.encoder(rows).mean(dim=0))[:4].expand(len(context), 4)
        expected = model.decoder(torch.cat([context.states, mu_z, read], dim=1))[:, :2]
    torch.testing.assert_close(model.condition(context)(context.states).mean, expected)


def test_loss_does_not_see_the_targets_through_attention() -> None:
    context, model = ragged_context(), small()
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
