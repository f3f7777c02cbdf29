"""What every policy must do together with its update: a suite that a test class inherits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from imel import IMeL
from imel.checkpoints import RunCheckpoints, checkpoints_in
from imel.policies.base import Policy


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
