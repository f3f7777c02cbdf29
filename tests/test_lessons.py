"""The ledger of lessons: whatever happens to the coefficients, their sum over lessons follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imel import IMeL
from imel.policies import Policy, RidgePolicy
from imel.policies.ridge import ledger
from imel.policies.ridge.ledger import Lessons
from small import BATCH, STATES, points

WIDTH, ACTIONS = 3, 2


def ridge_model(seed: int = 0) -> IMeL:
    return IMeL(
        "RidgePolicy",
        points(),
        seed=seed,
        rollout_size=BATCH,
        memory_size=2 * BATCH,
        critic_epochs=1,
    )


def attend(lessons: Lessons, episodes: list[int], step: int = 0) -> None:
    numbers = torch.tensor(episodes)
    states = torch.arange(step, step + len(numbers))[:, None].float()
    lessons.record_episodes(numbers, torch.ones(len(numbers)), states, step, step + len(numbers))


class Twin:
    """A ledger beside plain coefficients that go through the same operations."""

    def __init__(self) -> None:
        self.lessons = Lessons(1, WIDTH, ACTIONS)
        self.coefficients = torch.zeros(WIDTH, ACTIONS, dtype=torch.float64)
        self.known = self.transitions = self.steps = 0
        self.generator = torch.Generator().manual_seed(0)

    def attend(self, arriving: int) -> None:
        running = range(max(0, self.known - 3), self.known)  # some go on from the rollout before
        self.known += arriving
        episodes = [*running, *range(self.known - arriving, self.known)] * 2
        attend(self.lessons, episodes, self.steps)
        self.transitions += len(episodes)
        self.steps += len(episodes)

    def teach(self, count: int) -> None:
        chosen = torch.randperm(self.known, generator=self.generator)[:count]
        parts = torch.randn(len(chosen), WIDTH, ACTIONS, generator=self.generator)
        self.lessons.add(chosen, parts)
        self.coefficients += parts.double().sum(dim=0)

    def transform(self, percent: int) -> None:
        noise = torch.randn(WIDTH, WIDTH, generator=self.generator, dtype=torch.float64)
        matrix = torch.eye(WIDTH) + percent / 300 * noise
        self.lessons.transform(matrix)
        self.coefficients = matrix @ self.coefficients

    def merge(self, _: int) -> None:
        if len(self.lessons) >= 4:
            self.lessons._merge_oldest()


operations = st.lists(
    st.tuples(st.sampled_from(["attend", "teach", "transform", "merge"]), st.integers(1, 40)),
    min_size=1,
    max_size=25,
)


@given(operations)
def test_the_sum_over_lessons_goes_through_whatever_the_coefficients_go_through(
    sequence: list[tuple[str, int]],
) -> None:
    twin = Twin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_LARGEST", 64)  # so that periods are made by themselves as well
        for name, number in sequence:
            getattr(twin, name)(number)
    lessons = twin.lessons
    column = lessons.column("coefficients").double()
    scale = max(1.0, float(column.abs().sum()))
    torch.testing.assert_close(column.sum(dim=0), twin.coefficients, rtol=0, atol=1e-6 * scale)
    assert int(lessons.column("counts").sum()) == twin.known
    assert int(lessons.column("lengths").sum()) == twin.transitions
    assert float(lessons.column("returns").sum()) == twin.transitions
    assert len(lessons) <= 64
    episodes, starts, ends = (lessons.column(name) for name in ("episodes", "starts", "ends"))
    assert (episodes.diff() > 0).all()
    assert (starts < ends).all()


def test_an_episode_of_a_merged_period_goes_on_teaching_it() -> None:
    lessons = Lessons(1, WIDTH, ACTIONS)
    attend(lessons, [0, 1, 2, 3])
    lessons._merge_oldest()
    attend(lessons, [1, 4], step=4)
    lessons.add(torch.tensor([1]), torch.ones(1, WIDTH, ACTIONS))

    assert lessons.column("episodes").tolist() == [0, 2, 3, 4]
    assert lessons.column("counts").tolist() == [2, 1, 1, 1]
    assert lessons.column("lengths").tolist() == [3, 1, 1, 1]
    assert lessons.column("coefficients")[:, 0, 0].tolist() == [1, 0, 0, 0]
    assert lessons.column("ends").tolist() == [6, 4, 4, 6]


def test_a_period_has_the_steps_returns_and_lengths_of_all_its_episodes() -> None:
    lessons = Lessons(1, WIDTH, ACTIONS)
    attend(lessons, [0, 0, 1, 2], step=10)
    attend(lessons, [2, 3], step=14)
    lessons._merge_oldest()

    assert len(lessons) == 3
    assert lessons.column("starts").tolist() == [10, 10, 14]
    assert lessons.column("ends").tolist() == [14, 16, 16]
    assert lessons.column("returns").tolist() == [3.0, 2.0, 1.0]


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


def error_of_the_sum(policy: RidgePolicy) -> float:
    states = torch.from_numpy(STATES)
    features = policy.features(policy.normaliser(states))
    added = torch.einsum("tp,lpa->ta", features, policy.lessons.column("coefficients"))
    return float((added - policy.act(states)[0]).abs().max())


def policy_of(model: IMeL) -> RidgePolicy:
    assert isinstance(model.policy, RidgePolicy)
    return model.policy


def test_lessons_sum_to_the_deterministic_policy_after_learning_saving_and_loading(
    tmp_path: Path,
) -> None:
    model = ridge_model().learn(40 * BATCH)  # the normaliser has moved six times
    policy = policy_of(model)
    assert len(policy.lessons) == 160 > 64, "the ledger has grown"
    assert error_of_the_sum(policy) < 1e-5
    model.save(tmp_path / "model")
    again = policy_of(IMeL.load(tmp_path / "model", env=points()))
    alone = Policy.load(str(tmp_path / "model.safetensors"))
    assert isinstance(alone, RidgePolicy)
    for loaded in (again, alone):
        assert len(loaded.lessons) == 160
        assert error_of_the_sum(loaded) == error_of_the_sum(policy)


def test_lessons_sum_to_the_policy_after_periods_were_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "_LARGEST", 64)
    policy = policy_of(ridge_model().learn(40 * BATCH))

    assert len(policy.lessons) <= 64
    assert int(policy.lessons.column("counts").sum()) == 160
    assert error_of_the_sum(policy) < 1e-5


def test_a_model_takes_the_parameters_of_one_with_more_lessons() -> None:
    taught, other = ridge_model().learn(40 * BATCH), ridge_model(seed=1)
    other.set_parameters(taught.get_parameters())

    assert len(policy_of(other).lessons) == 160
    np.testing.assert_array_equal(
        other.predict(STATES, deterministic=True)[0], taught.predict(STATES, deterministic=True)[0]
    )
