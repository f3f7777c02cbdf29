"""The ledger of lessons: whatever happens to the coefficients, their sum over lessons follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from imel import IMeL
from imel.explain import explain, policy_without
from imel.policies import Policy, RidgePolicy
from imel.policies.ridge import ledger
from imel.policies.ridge.ledger import Lessons
from samples import rows_for
from small import BATCH, STATES, small_model

WIDTH, ACTIONS, STATE_DIM, ROLLOUT = 3, 2, 3, 24


def attend(lessons: Lessons, episodes: list[int], step: int = 0) -> None:
    numbers = torch.tensor(episodes)
    states = torch.arange(step, step + len(numbers))[:, None].float()
    lessons.record_episodes(numbers, torch.ones(len(numbers)), states, step, step + len(numbers))


class Student:
    """A policy that is taught random lessons."""

    def __init__(self) -> None:
        observations = spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
        actions = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        small: dict[str, Any] = {"memory_size": 3 * ROLLOUT, "features": 12, "penalty": 0.3}
        self.policy = RidgePolicy(observations, actions, **small)
        self.iteration = self.episodes = 0
        self.generator = torch.Generator().manual_seed(0)
        self.update(7)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def update(self, number: int) -> None:
        """Take a rollout of some episodes into memory, and go a step along improvements."""
        policy, memory, count = self.policy, self.policy.memory, 1 + number % 12
        states = (1 + 0.3 * count) * self.random(ROLLOUT, STATE_DIM) + 0.1 * count
        # The first episode goes on from the rollout before
        episodes = max(0, self.episodes - 1) + torch.arange(ROLLOUT) * count // ROLLOUT
        columns = {"states": states, "episodes": episodes, "rewards": torch.ones(ROLLOUT)}
        rows = rows_for(memory, ROLLOUT, **columns, steps=torch.arange(ROLLOUT))
        memory.add(rows, self.iteration)
        policy.normaliser.update(states)
        start = self.iteration * ROLLOUT
        policy.lessons.record_episodes(episodes, rows["rewards"], states, start, start + ROLLOUT)
        policy.design.update(memory)
        self.iteration, self.episodes = self.iteration + 1, int(episodes[-1]) + 1
        policy.move(*policy.step(self.random(len(memory), ACTIONS)), scale=0.5)

    def normalise(self, _: int) -> None:
        """Let the normaliser follow what has been seen."""
        self.policy.refresh_normaliser()

    def merge(self, _: int) -> None:
        """Make periods of the oldest lessons."""
        if len(self.policy.lessons) >= 4:
            self.policy.lessons._merge_oldest()

    def forget(self, number: int) -> None:
        """Take some lessons back, and go on with what is left."""
        known = self.policy.lessons.column("episodes")
        taken = known[torch.randperm(len(known), generator=self.generator)[: 1 + number % 3]]
        self.policy = policy_without(self.policy, lessons=taken.tolist())


operations = st.tuples(
    st.sampled_from(["update", "normalise", "merge", "forget"]), st.integers(0, 40)
)


@settings(max_examples=60)
@given(st.lists(operations, min_size=1, max_size=20))
def test_lessons_sum_to_the_mean_after_any_sequence_of_what_happens_to_a_policy(
    sequence: list[tuple[str, int]],
) -> None:
    student = Student()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_LARGEST", 64)  # so that periods are made by themselves as well
        for name, number in sequence:
            getattr(student, name)(number)
    lessons, states = student.policy.lessons, student.random(5, STATE_DIM)
    means = student.policy.act(states)[0].numpy()
    for why, mean in zip(explain(student.policy, states.numpy()), means, strict=True):
        added = why.lessons.contributions
        scale = max(1.0, float(np.abs(added).sum()))
        np.testing.assert_allclose(added.sum(axis=0), mean, atol=1e-4 * scale)
    assert len(lessons) <= 64
    assert int(lessons.column("counts").sum()) == student.episodes
    assert int(lessons.column("lengths").sum()) == student.iteration * ROLLOUT
    assert float(lessons.column("returns").sum()) == student.iteration * ROLLOUT
    assert (lessons.column("episodes").diff() > 0).all()
    assert (lessons.column("starts") < lessons.column("ends")).all()


def test_an_episode_of_a_merged_period_goes_on_teaching_it() -> None:
    lessons = Lessons(1, WIDTH, ACTIONS)
    attend(lessons, [0, 1, 2, 3])
    lessons._merge_oldest()
    attend(lessons, [1, 4], step=4)
    lessons.add(torch.tensor([1]), torch.ones(1, WIDTH, ACTIONS))
    assert lessons.column("episodes").tolist() == [0, 2, 3, 4]
    assert lessons.column("counts").tolist() == [2, 1, 1, 1]
    assert lessons.column("lengths").tolist() == lessons.column("returns").tolist() == [3, 1, 1, 1]
    assert lessons.column("coefficients")[:, 0, 0].tolist() == [1, 0, 0, 0]
    assert lessons.column("starts").tolist() == [0, 0, 0, 4]
    assert lessons.column("ends").tolist() == [6, 4, 4, 6]


@pytest.mark.parametrize("rollouts", [[100], [30, 50, 20], [1] * 100])
def test_a_lesson_keeps_states_from_its_beginning_to_its_end(rollouts: list[int]) -> None:
    lessons, step = Lessons(1, WIDTH, ACTIONS), 0
    for length in rollouts:
        attend(lessons, [0, 1] * length, step)  # at every step of the run a state of one of them
        step += 2 * length
    for row in (0, 1):
        kept = (lessons.column("samples")[row, :, 0] - row) / 2  # steps of the episode
        assert kept.tolist() == [0, 16, 32, 48, 64, 80, 96, 96]


def test_a_period_keeps_states_of_both_halves_and_a_short_episode_repeats_its_own() -> None:
    lessons = Lessons(1, WIDTH, ACTIONS)
    attend(lessons, [0, 0, 1, 1, 2, 3], step=10)
    assert lessons.column("samples")[:2, :, 0].tolist() == [[10, *[11] * 7], [12, *[13] * 7]]
    lessons._merge_oldest()
    assert lessons.column("samples")[0, :, 0].tolist() == [10, 11, 11, 11, 12, 13, 13, 13]


def error_of_the_sum(policy: Any) -> float:
    states = torch.from_numpy(STATES)
    features = policy.features(policy.normaliser(states))
    added = torch.einsum("tp,lpa->ta", features, policy.lessons.column("coefficients"))
    return float((added - policy.act(states)[0]).abs().max())


def test_lessons_sum_to_the_policy_after_learning_saving_and_loading(tmp_path: Path) -> None:
    model = small_model().learn(40 * BATCH)  # the normaliser has moved six times
    error = error_of_the_sum(model.policy)
    assert error < 1e-5
    model.save(tmp_path / "model")
    taken = small_model(seed=1)
    taken.set_parameters(model.get_parameters())
    alone = Policy.load(str(tmp_path / "model.safetensors"))
    policies: list[Any] = [model.policy, IMeL.load(tmp_path / "model").policy, alone, taken.policy]
    for policy in policies:
        assert len(policy.lessons) == 160 > 64, "the ledger has grown"
        assert error_of_the_sum(policy) == error
