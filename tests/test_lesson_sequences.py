"""Lessons sum to the deterministic mean, whatever happens to a policy and in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from imel.explain import explain, policy_without
from imel.policies import RidgePolicy
from imel.policies.ridge import ledger

ROLLOUT, STATES, ACTIONS = 24, 3, 2


class Student:
    """A policy that is taught random lessons."""

    def __init__(self) -> None:
        observations = spaces.Box(-np.inf, np.inf, (STATES,), np.float32)
        actions = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self.policy = RidgePolicy(
            observations, actions, memory_size=3 * ROLLOUT, features=12, penalty=0.3
        )
        self.iteration = self.episodes = 0
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def update(self, count: int) -> None:
        """Take a rollout of some episodes into memory, and go a step along improvements."""
        policy, memory = self.policy, self.policy.memory
        rows = {
            name: torch.zeros(ROLLOUT, *memory.get_buffer(name).shape[1:])
            for name in memory.column_names
            if name != "iterations"
        }
        count = 1 + count % 12
        rows["states"] = (1 + 0.3 * count) * self.random(ROLLOUT, STATES) + 0.1 * count
        rows["episodes"] = self.episodes + torch.arange(ROLLOUT) * count // ROLLOUT
        rows["steps"] = torch.arange(ROLLOUT)
        memory.add(rows, self.iteration)
        policy.normaliser.update(rows["states"])
        start = self.iteration * ROLLOUT
        policy.lessons.record_episodes(
            rows["episodes"], rows["rewards"], rows["states"], start, start + ROLLOUT
        )
        policy.design.update(memory)
        self.iteration, self.episodes = self.iteration + 1, self.episodes + count
        episodes, parts = policy.step(self.random(len(memory), ACTIONS))
        policy.move(episodes, parts, scale=0.5)

    def normalise(self, _: int) -> None:
        """Let the normaliser follow what has been seen."""
        if len(self.policy.memory):
            self.policy.refresh_normaliser()

    def merge(self, _: int) -> None:
        """Make periods of the oldest lessons."""
        if len(self.policy.lessons) >= 4:
            self.policy.lessons._merge_oldest()

    def forget(self, number: int) -> None:
        """Take some lessons back, and go on with what is left."""
        known = self.policy.lessons.column("episodes")
        if len(known):
            taken = known[torch.randperm(len(known), generator=self.generator)[: 1 + number % 3]]
            self.policy = policy_without(self.policy, lessons=taken.tolist())


operations = st.lists(
    st.tuples(st.sampled_from(["update", "normalise", "merge", "forget"]), st.integers(0, 40)),
    min_size=2,
    max_size=16,
)


@settings(max_examples=40)
@given(operations)
def test_lessons_sum_to_the_mean_after_any_sequence_of_what_happens_to_a_policy(
    sequence: list[tuple[str, int]],
) -> None:
    student = Student()
    student.update(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_LARGEST", 64)  # so that periods are made by themselves as well
        for name, number in sequence:
            getattr(student, name)(number)
    states = student.random(5, STATES)
    means = student.policy.act(states)[0].numpy()
    for state, mean in zip(states.numpy(), means, strict=True):
        why = explain(student.policy, state)
        scale = max(1.0, float(np.abs(why.lessons.contributions).sum()))
        added = why.lessons.contributions.sum(axis=0)
        np.testing.assert_allclose(added, mean, atol=1e-4 * scale)
