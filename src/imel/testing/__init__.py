"""Contract suites: what a user's own policy or interpolator is put through by pytest.

    from imel.testing import PolicyContract

    class TestMine(PolicyContract):
        policy_class = MyPolicy

Assertions are shown in full with `pytest.register_assert_rewrite("imel.testing")` in conftest.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from imel import IMeL
from imel.checkpoints import RunCheckpoints, checkpoints_in
from imel.data.experience import Context
from imel.policies.base import Policy
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
    """Return random states with random values, in episodes of the given lengths."""
    generator, count = torch.Generator().manual_seed(seed), sum(lengths)
    # Ids are neither consecutive nor sorted, rows of an episode not contiguous: as in a memory
    ids = torch.tensor([(7 * i) % 31 for i in range(len(lengths))])
    episodes = ids.repeat_interleave(torch.tensor(list(lengths)))
    order = torch.randperm(count, generator=generator)
    states, values = (
        torch.randn(count, width, generator=generator, dtype=dtype)
        for width in (state_dim, value_dim)
    )
    return Context(states, values, episodes[order])


def smooth_context(episodes: int = 12, length: int = 20) -> Context:
    """Return episodes that visit a smooth field of two states, as random walks from anywhere."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randn(episodes, 1, 2, generator=generator)
    walks = starts + 0.3 * torch.randn(episodes, length, 2, generator=generator).cumsum(dim=1)
    states = walks.reshape(-1, 2).clamp(-3.0, 3.0)
    values = torch.stack([torch.sin(2.0 * states[:, 0]), torch.tanh(states[:, 1])], dim=1)
    return Context(states, values, torch.arange(episodes).repeat_interleave(length))


def columns(prediction: Prediction, rows: slice = slice(None)) -> list[Tensor]:
    return [column[rows] for column in prediction if column is not None]


def assert_finite(prediction: Prediction) -> None:
    assert all(torch.isfinite(column).all() for column in columns(prediction))
    assert prediction.std is None or (prediction.std > 0).all()


class InterpolatorContract(ABC):
    """For interpolators, in float64 but where a test is about float32: agreement is agreement."""

    @abstractmethod
    def make(self, state_dim: int, value_dim: int) -> Interpolator:
        """A small one, with weights from the global generator."""

    def made(self) -> Interpolator:
        """One that fits `ragged_context`, in float64."""
        return self.make(3, 2).double()

    def queries(self) -> Tensor:
        return torch.randn(6, 3, dtype=torch.float64)

    def test_neither_the_order_of_memories_nor_that_of_states_matters(self) -> None:
        model, context, queries = self.made(), ragged_context(), self.queries()
        shuffled, conditioned = context.rows(torch.randperm(len(context))), model.condition(context)
        batch = conditioned(queries)
        assert not batch.mean.requires_grad
        torch.testing.assert_close(columns(model.condition(shuffled)(queries)), columns(batch))
        for row in (slice(i, i + 1) for i in range(len(queries))):
            torch.testing.assert_close(columns(conditioned(queries[row])), columns(batch, row))
        with torch.no_grad():
            one, other = (model.leave_one_out(each, context) for each in (shuffled, context))
        torch.testing.assert_close(columns(one), columns(other))

    def test_leave_one_out_is_conditioning_on_the_other_episodes(self) -> None:
        model, context = self.made(), ragged_context()
        # Beside the memories themselves: states never seen, of an episode in memory or of none
        new, ids = ragged_context((1, 1, 1, 1), seed=1), torch.tensor([0, -5, 8, 1000])
        assert torch.isin(ids, context.episodes).tolist() == [True, False, False, False]
        states, values = torch.cat([context.states, new.states]), [context.values, new.values]
        targets = Context(states, torch.cat(values), torch.cat([context.episodes, ids]))
        with torch.no_grad():
            answer = model.leave_one_out(context, targets)
        for row in (slice(i, i + 1) for i in range(len(targets))):
            others = model.condition(context.rows(context.episodes != targets.episodes[row]))
            torch.testing.assert_close(columns(answer, row), columns(others(targets.states[row])))

    @pytest.mark.parametrize(("state_dim", "value_dim"), [(1, 1), (17, 6), (2, 3)])
    def test_any_shape_of_context_is_answered(self, state_dim: int, value_dim: int) -> None:
        model = self.make(state_dim, value_dim)
        for lengths in ((1,), (1, 1), (40, 2), (3,) * 70):
            context = ragged_context(lengths, state_dim, value_dim, dtype=torch.float32)
            answer = model.condition(context)(torch.randn(4, state_dim))
            assert answer.mean.shape == (4, value_dim)
            assert_finite(answer)
            if len(lengths) > 1:
                with torch.no_grad():
                    assert_finite(model.leave_one_out(context, context))

    @pytest.mark.parametrize("distance", [10.0, 1e3, 1e6])
    def test_states_far_from_every_memory_have_finite_answers(self, distance: float) -> None:
        model, context = self.make(3, 2), ragged_context(dtype=torch.float32)
        far = Context(distance * torch.randn(5, 3), torch.zeros(5, 2), torch.full((5,), 7))
        assert_finite(model.condition(context)(far.states))
        loss = model.loss(context, far, torch.Generator())
        assert torch.isfinite(loss)
        gradients = torch.autograd.grad(loss, [*model.parameters()]) if model.learns else []
        assert all(torch.isfinite(gradient).all() for gradient in gradients)

    def test_state_round_trip(self) -> None:
        model, other, context, queries = self.made(), self.made(), ragged_context(), self.queries()
        expected = model.condition(context)(queries)
        if model.learns:
            assert not torch.allclose(other.condition(context)(queries).mean, expected.mean)
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(columns(other.condition(context)(queries)), columns(expected))


class LearnerContract(InterpolatorContract):
    """For those with something to fit."""

    def test_every_weight_has_a_finite_gradient_and_the_generator_decides_the_loss(self) -> None:
        model, context = self.made(), ragged_context()
        loss, same = (
            model.loss(context, context, torch.Generator().manual_seed(3)) for _ in range(2)
        )
        assert torch.equal(loss, same)
        gradients = torch.autograd.grad(loss, [*model.parameters()])  # refuses unused weights
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert any((gradient != 0).any() for gradient in gradients)

    def test_training_on_a_smooth_field_lowers_the_error_on_episodes_left_out(self) -> None:
        model, context = self.make(2, 2), smooth_context()
        rows = torch.arange(len(context))
        before = leave_one_out_error(model, context, rows) or 0.0
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        settings = FitSettings(gradient_steps=100, targets_per_step=64)
        fit_leave_one_out(model, optimizer, context, settings, torch.Generator().manual_seed(0))
        assert 0.0 < (leave_one_out_error(model, context, rows) or 0.0) < 0.9 * before


class ExactContract(InterpolatorContract):
    """For those whose answer is a weighted average of the remembered values."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_weights_are_shares_and_times_the_values_they_are_the_mean(
        self, dtype: torch.dtype
    ) -> None:
        context, queries = ragged_context(dtype=dtype), self.queries().to(dtype)
        conditioned = self.made().to(dtype).condition(context)
        assert isinstance(conditioned, Weighted)
        assert conditioned.exact
        weights, mean = conditioned.weights(queries), conditioned(queries).mean
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(6, dtype=dtype))
        torch.testing.assert_close(mean, weights @ context.values, rtol=1e-5, atol=1e-5)
        added = conditioned.contributions(queries)
        torch.testing.assert_close(added.sum(dim=1), mean, rtol=1e-5, atol=1e-5)

    def test_constant_field_is_reproduced_and_one_value_counts_by_its_weight(self) -> None:
        model, context, queries = self.made(), ragged_context(), self.queries()
        constant = torch.tensor([0.3, -2.0], dtype=torch.float64).expand(len(context), 2)
        flat = Context(context.states, constant, context.episodes)
        conditioned = model.condition(flat)
        assert isinstance(conditioned, Weighted)
        torch.testing.assert_close(conditioned(queries).mean, constant[:6])
        with torch.no_grad():
            torch.testing.assert_close(model.leave_one_out(flat, flat).mean, constant)
        values = constant.clone()
        values[4] += 10.0
        moved = model.condition(Context(context.states, values, context.episodes))(queries).mean
        share = conditioned.weights(queries)[:, 4:5]
        torch.testing.assert_close(moved - constant[:6], (10.0 * share).expand(-1, 2))


class PolicyContract:
    """A policy is learned, saved, resumed, explained and reduced on two small tasks."""

    policy_class: ClassVar[type[Policy]]
    settings: ClassVar[dict[str, Any]] = {"rollout_size": 256, "n_envs": 2}
    """Settings under which three iterations take a moment."""

    @pytest.fixture(params=["Pendulum-v1", "CartPole-v1"])
    def model(self, request: pytest.FixtureRequest) -> IMeL:
        """A model after three iterations."""
        return self.made(request.param).learn(3 * 256)

    def made(self, env_id: str) -> IMeL:
        """Return a model that has learned nothing yet."""
        return IMeL(self.policy_class, env_id, seed=0, **self.settings)

    def states(self, model: IMeL) -> torch.Tensor:
        """Return some remembered states, or random ones where the memory is empty."""
        states = model.policy.memory.column("states")[:8]
        return states if len(states) else torch.randn(8, model.policy.state_dim)

    def test_an_iteration_moves_the_policy_and_a_seed_decides_how(self, model: IMeL) -> None:
        states, env_id = self.states(model), model.get_env().get_attr("spec")[0].id  # type: ignore[union-attr]
        answers = model.policy.act(states)
        for answer in answers:
            assert answer.shape == (8, model.policy.action_dim)
            assert torch.isfinite(answer).all()
            assert not answer.requires_grad
        again, fresh = self.made(env_id).learn(3 * 256), self.made(env_id)
        assert torch.equal(answers[0], again.policy.act(states)[0])
        assert not torch.allclose(answers[0], fresh.policy.act(states)[0])

    def test_a_saved_policy_acts_as_before(self, model: IMeL, tmp_path: Path) -> None:
        model.save(tmp_path / "model")
        loaded = IMeL.load(tmp_path / "model", policy_class=self.policy_class)
        assert loaded.settings == model.settings
        answers = (each.policy.act(self.states(model)) for each in (model, loaded))
        assert all(torch.equal(*columns) for columns in zip(*answers, strict=True))

    def test_a_resumed_run_ends_like_the_whole_one(self, tmp_path: Path) -> None:
        whole = self.made("Pendulum-v1")
        whole.learn(6 * 256, RunCheckpoints(tmp_path, every=2, keep=9))
        first = checkpoints_in(tmp_path)[0]
        resumed = IMeL.resume(first, "Pendulum-v1", policy_class=self.policy_class)
        again = RunCheckpoints(tmp_path, every=2)
        resumed.learn(resumed.remaining_timesteps, again, reset_num_timesteps=False)
        mine, theirs = whole.learner.tensors(), resumed.learner.tensors()
        assert mine.keys() == theirs.keys()
        assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []

    def test_an_explanation_has_the_policys_mean_and_a_sentence(self, model: IMeL) -> None:
        states = self.states(model)
        explained = model.policy.explain(states, model.dimension_names)
        for why, mean in zip(explained, model.policy.act(states)[0].numpy(), strict=True):
            np.testing.assert_allclose(why.mean, mean, rtol=1e-4, atol=1e-4)
            assert why.sentence()

    def test_a_policy_without_part_of_its_experience_is_another_one(self, model: IMeL) -> None:
        policy, states = model.policy, self.states(model)
        before = policy.act(states)[0]
        if policy.lessons is not None:
            reduced = policy.without(lessons=policy.lessons.column("episodes")[:1].tolist())
            assert not torch.equal(reduced.act(states)[0], before)
        else:
            assert len(policy.without(rows=[0]).memory) == len(policy.memory) - 1
        assert torch.equal(policy.act(states)[0], before)
