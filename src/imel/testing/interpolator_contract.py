"""What every interpolator must do: suites that a test class inherits, with `make` filled in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from imel.data.experience import Context
from imel.policies.paper.fit import fit_leave_one_out, leave_one_out_error
from imel.policies.paper.interpolator import Interpolator, Prediction, Weighted
from imel.policies.paper.paper_policy import FitSettings


def ragged_context(
    lengths: Sequence[int] = (5, 1, 9, 3, 7),
    state_dim: int = 3,
    value_dim: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Context:
    """Return random states with random values, in episodes of the given lengths.

    Ids are neither consecutive nor sorted, and rows of an episode are not contiguous: a memory
    promises none of that.
    """
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    ids = torch.tensor([(7 * i) % 31 for i in range(len(lengths))])
    episodes = ids.repeat_interleave(torch.tensor(list(lengths)))
    order = torch.randperm(count, generator=generator)
    return Context(
        torch.randn(count, state_dim, generator=generator, dtype=dtype),
        torch.randn(count, value_dim, generator=generator, dtype=dtype),
        episodes[order],
    )


def smooth_context(episodes: int = 12, length: int = 20, seed: int = 0) -> Context:
    """Return episodes that visit a smooth field of two states, as random walks from anywhere."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randn(episodes, 1, 2, generator=generator)
    walks = starts + 0.3 * torch.randn(episodes, length, 2, generator=generator).cumsum(dim=1)
    states = walks.reshape(-1, 2).clamp(-3.0, 3.0)
    values = torch.stack([torch.sin(2.0 * states[:, 0]), torch.tanh(states[:, 1])], dim=1)
    return Context(states, values, torch.arange(episodes).repeat_interleave(length))


def assert_same(one: Prediction, other: Prediction) -> None:
    torch.testing.assert_close(one.mean, other.mean)
    assert (one.std is None) == (other.std is None)
    if one.std is not None:
        torch.testing.assert_close(one.std, other.std)


def assert_finite(prediction: Prediction) -> None:
    assert torch.isfinite(prediction.mean).all()
    if prediction.std is not None:
        assert torch.isfinite(prediction.std).all()
        assert (prediction.std > 0).all()


class InterpolatorContract(ABC):
    """Float64 unless the test is about float32: then agreement means agreement."""

    @abstractmethod
    def make(self, state_dim: int, value_dim: int) -> Interpolator:
        """A small one, with weights from the global generator."""

    def made(self) -> Interpolator:
        """One that fits `ragged_context`, in float64."""
        return self.make(3, 2).double()

    def queries(self, count: int = 6) -> Tensor:
        return torch.randn(count, 3, dtype=torch.float64)

    def test_order_of_memories_does_not_matter(self) -> None:
        model, context, queries = self.made(), ragged_context(), self.queries()
        shuffled = context.rows(torch.randperm(len(context)))
        assert_same(model.condition(shuffled)(queries), model.condition(context)(queries))
        with torch.no_grad():
            assert_same(
                model.leave_one_out(shuffled, context), model.leave_one_out(context, context)
            )

    def test_batch_of_states_is_answered_like_each_alone(self) -> None:
        conditioned, queries = self.made().condition(ragged_context()), self.queries()
        batch = conditioned(queries)
        for i in range(len(queries)):
            std = None if batch.std is None else batch.std[i : i + 1]
            assert_same(conditioned(queries[i : i + 1]), Prediction(batch.mean[i : i + 1], std))

    @pytest.mark.parametrize("unknown", [-5, 8, 1000])
    def test_leave_one_out_is_conditioning_on_the_other_episodes(self, unknown: int) -> None:
        model, context = self.made(), ragged_context()
        # Beside the memories themselves: states never seen, of an episode in memory or of none
        new = ragged_context(lengths=(3, 3), seed=1)
        targets = Context(
            torch.cat([context.states, new.states]),
            torch.cat([context.values, new.values]),
            torch.cat([context.episodes, torch.where(new.episodes > 0, unknown, new.episodes)]),
        )
        assert unknown not in context.episodes
        with torch.no_grad():
            answer = model.leave_one_out(context, targets)
        for i in range(len(targets)):
            target = targets.rows(torch.tensor([i]))
            others = model.condition(context.without_episodes(target.episodes))
            std = None if answer.std is None else answer.std[i : i + 1]
            assert_same(Prediction(answer.mean[i : i + 1], std), others(target.states))

    def test_loss_is_decided_by_its_generator(self) -> None:
        model, context = self.made(), ragged_context()
        with torch.no_grad():
            one, same = (
                model.loss(context, context, torch.Generator().manual_seed(3)) for _ in range(2)
            )
        assert torch.equal(one, same)

    def test_one_memory_is_enough(self) -> None:
        context = ragged_context(lengths=(1,))
        assert_finite(self.made().condition(context)(self.queries()))

    @pytest.mark.parametrize(("state_dim", "value_dim"), [(1, 1), (17, 6), (2, 3)])
    def test_any_shape_of_context_is_answered(self, state_dim: int, value_dim: int) -> None:
        model = self.make(state_dim, value_dim)
        for lengths in ((1, 1), (40, 2), (3,) * 70):
            context = ragged_context(lengths, state_dim, value_dim, dtype=torch.float32)
            answer = model.condition(context)(torch.randn(4, state_dim))
            assert answer.mean.shape == (4, value_dim)
            assert_finite(answer)
            with torch.no_grad():
                assert_finite(model.leave_one_out(context, context))

    @pytest.mark.parametrize("distance", [10.0, 1e3, 1e6])
    def test_states_far_from_every_memory_have_finite_answers(self, distance: float) -> None:
        model, context = self.make(3, 2), ragged_context(dtype=torch.float32)
        far = distance * torch.randn(5, 3)
        assert_finite(model.condition(context)(far))
        targets = Context(far, torch.zeros(5, 2), torch.full((5,), 7))
        loss = model.loss(context, targets, torch.Generator())
        assert torch.isfinite(loss)
        if model.learns:
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = (weight.grad for weight in model.parameters())
            assert all(torch.isfinite(g).all() for g in gradients if g is not None)

    def test_answers_are_cut_off_from_the_gradient(self) -> None:
        answer = self.made().condition(ragged_context())(self.queries())
        assert not answer.mean.requires_grad

    def test_state_round_trip(self) -> None:
        model, other, context, queries = self.made(), self.made(), ragged_context(), self.queries()
        expected = model.condition(context)(queries)
        if model.learns:
            assert not torch.allclose(other.condition(context)(queries).mean, expected.mean)
        other.load_state_dict(model.state_dict())
        assert_same(other.condition(context)(queries), expected)


class LearnerContract(InterpolatorContract):
    """For those with something to fit."""

    def test_every_weight_has_a_finite_gradient(self) -> None:
        model, context = self.made(), ragged_context()
        assert model.learns
        loss = model.loss(context, context, torch.Generator().manual_seed(0))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in model.parameters()]
        assert all(gradient is not None for gradient in gradients)
        assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None)
        assert any((gradient != 0).any() for gradient in gradients if gradient is not None)

    def test_training_on_a_smooth_field_lowers_loss_and_error_on_episodes_left_out(self) -> None:
        model, context = self.make(2, 2), smooth_context()

        def measure() -> tuple[float, float]:
            error = leave_one_out_error(model, context, torch.arange(len(context)))
            assert error is not None
            with torch.no_grad():
                loss = model.loss(context, context, torch.Generator().manual_seed(0))
            return float(loss), error

        loss, error = measure()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        settings = FitSettings(gradient_steps=100, targets_per_step=64)
        fit_leave_one_out(model, optimizer, context, settings, torch.Generator().manual_seed(0))
        fitted_loss, fitted_error = measure()
        assert fitted_loss < loss
        assert fitted_error < 0.9 * error


class ExactContract(InterpolatorContract):
    """For those whose answer is a weighted average of the remembered values."""

    def weighted(self, context: Context) -> Weighted:
        conditioned = self.made().condition(context)
        assert isinstance(conditioned, Weighted)
        assert conditioned.exact
        return conditioned

    def test_weights_are_shares_that_sum_to_one(self) -> None:
        weights = self.weighted(ragged_context()).weights(self.queries())
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(6, dtype=torch.float64))

    def test_mean_is_the_weights_times_the_values(self) -> None:
        context = ragged_context(dtype=torch.float32)
        conditioned, queries = self.make(3, 2).condition(context), torch.randn(6, 3)
        assert isinstance(conditioned, Weighted)
        expected = conditioned.weights(queries) @ context.values
        torch.testing.assert_close(conditioned(queries).mean, expected, rtol=1e-5, atol=1e-5)

    def test_contributions_sum_to_the_mean(self) -> None:
        conditioned, queries = self.weighted(ragged_context()), self.queries()
        added = conditioned.contributions(queries)
        assert added.shape == (6, len(ragged_context()), 2)
        torch.testing.assert_close(added.sum(dim=1), conditioned(queries).mean)

    def test_a_memory_alone_is_the_answer_everywhere(self) -> None:
        context = ragged_context(lengths=(1,))
        answer = self.weighted(context)(self.queries()).mean
        torch.testing.assert_close(answer, context.values.expand(6, 2))

    def test_constant_field_is_reproduced(self) -> None:
        context = ragged_context()
        constant = torch.tensor([0.3, -2.0], dtype=torch.float64).expand(len(context), 2)
        flat = Context(context.states, constant, context.episodes)
        torch.testing.assert_close(self.weighted(flat)(self.queries()).mean, constant[:6])
        with torch.no_grad():
            torch.testing.assert_close(self.made().leave_one_out(flat, flat).mean, constant)

    def test_one_value_changes_the_answer_by_its_weight(self) -> None:
        context, queries = ragged_context(), self.queries()
        model = self.made()
        conditioned = model.condition(context)
        assert isinstance(conditioned, Weighted)
        values = context.values.clone()
        values[4] += 10.0
        moved = model.condition(Context(context.states, values, context.episodes))(queries).mean
        share = conditioned.weights(queries)[:, 4:5]
        torch.testing.assert_close(moved - conditioned(queries).mean, (10.0 * share).expand(-1, 2))
