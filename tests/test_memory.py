"""The memory: what is remembered stays whole and aligned, what is forgotten goes as a rollout."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imel.data.memory import Memory
from samples import rows_for

CAPACITY = 20
COLUMNS = [
    *("states", "next_states", "actions", "means", "improved_means", "stds", "rewards"),
    *("advantages", "behaviour_means", "terminated"),
]
"""Columns in which a test's row holds a multiple of its id; `steps` holds the id itself."""


def ids_of(memory: Memory) -> list[int]:
    """The ids in memory, after checking that all columns of each row tell the same."""
    ids = memory.column("steps")
    for k, name in enumerate(COLUMNS, 2):
        column = memory.column(name)
        expected = (k * ids).reshape(-1, *[1] * (column.ndim - 1)).expand_as(column)
        assert torch.equal(column, expected.float()), name
    assert len(set(ids.tolist())) == len(ids)
    return list(ids.tolist())


class Adder:
    """Adds rollouts to a memory, counting ids, episodes and iterations."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.memory = Memory(capacity, state_dim=2, action_dim=1)
        self.next_id = self.next_episode = self.iteration = 0

    def add(self, lengths: list[int], continues: bool = False) -> list[int]:
        """Add episodes; the first of them may go on with the last one of the rollout before."""
        first = self.next_episode - int(continues and self.next_episode > 0)
        self.next_episode = first + len(lengths)
        return self.add_rows([first + i for i, n in enumerate(lengths) for _ in range(n)])

    def add_rows(self, episodes: list[int]) -> list[int]:
        """Add a row for each entry, the episode it belongs to; answers their ids."""
        ids = self.next_id + torch.arange(len(episodes))
        rows = rows_for(self.memory, len(ids), episodes=torch.tensor(episodes), steps=ids)
        for k, name in enumerate(COLUMNS, 2):
            rows[name] += (k * ids).reshape(-1, *[1] * (rows[name].ndim - 1))
        self.memory.add(rows, self.iteration)
        self.next_id += len(ids)
        self.iteration += 1
        return list(ids.tolist())


ragged = st.lists(st.integers(1, 6), min_size=1, max_size=6).filter(lambda n: sum(n) <= CAPACITY)


@settings(max_examples=30)
@given(history=st.lists(st.tuples(ragged, st.booleans()), min_size=1, max_size=12))
def test_the_latest_rollouts_that_fit_are_kept_in_time_order(
    history: list[tuple[list[int], bool]],
) -> None:
    adder = Adder()
    kept: list[list[int]] = []
    for lengths, continues in history:
        kept.append(adder.add(lengths, continues))
        while sum(map(len, kept)) > CAPACITY:
            kept.pop(0)
        assert ids_of(adder.memory) == [row for rollout in kept for row in rollout]


def test_rollouts_are_listed_and_columns_stay_in_place() -> None:
    adder = Adder()
    memory = adder.memory
    assert memory.rollouts() == []
    places = {name: memory.get_buffer(name).data_ptr() for name in memory.column_names}
    for lengths in ([5], [2, 4], [8], [3]):  # for the last one the first is forgotten
        adder.add(lengths)
    assert memory.rollouts() == [(1, slice(0, 6)), (2, slice(6, 14)), (3, slice(14, 17))]
    assert places == {name: memory.column(name).data_ptr() for name in memory.column_names}
    with pytest.raises(ValueError, match="21 transitions do not fit into 20"):
        adder.add([CAPACITY + 1])
    assert ids_of(memory) == list(range(5, 22))


def test_forgotten_episodes_and_rows_leave_the_others_in_order() -> None:
    adder = Adder()
    adder.add_rows([0, 0, 1, 1, 2])
    adder.add_rows([1, 2, 2])
    adder.memory.forget_episodes(torch.tensor([1, 7]))
    assert ids_of(adder.memory) == [0, 1, 4, 6, 7]
    adder.memory.forget_rows(torch.tensor([1, 3]))
    assert ids_of(adder.memory) == [0, 4, 7]
    assert adder.memory.rollouts() == [(0, slice(0, 2)), (1, slice(2, 3))]


def test_prior_context_is_what_was_given_and_no_real_episode() -> None:
    adder = Adder()
    memory = adder.memory
    assert not memory.holds_prior
    adder.add([9])
    for count in (12, 4):  # it can be set again
        states, means = torch.randn(count, 2), torch.randn(count, 1)
        memory.set_prior(states, means)
    assert memory.holds_prior
    assert len(memory) == 4
    assert torch.equal(memory.column("states"), states)
    for name in ("actions", "means", "improved_means"):
        assert torch.equal(memory.column(name), means)
    assert (memory.column("rewards") == 0).all()
    assert memory.column("episodes").tolist() == [-1, -2, -3, -4]
    assert (memory.column("stds") > 0).all()


@pytest.mark.parametrize("count", [1, 10, CAPACITY])
def test_prior_context_leaves_with_the_first_experience(count: int) -> None:
    adder = Adder()
    adder.memory.set_prior(torch.randn(12, 2), torch.randn(12, 1))
    added = adder.add([count])
    assert sorted(ids_of(adder.memory)) == added
    assert not adder.memory.holds_prior


def test_a_copy_and_a_file_go_on_as_the_original_would_and_share_nothing() -> None:
    original = Adder()
    for _ in range(4):
        original.add([3, 4])
    twins = [copy.copy(original), copy.copy(original)]
    twins[0].memory = copy.deepcopy(original.memory)
    twins[1].memory = Memory(CAPACITY, state_dim=2, action_dim=1)
    twins[1].memory.load_state_dict(original.memory.state_dict())
    kept, added = ids_of(original.memory), original.add([5])
    for twin in twins:
        assert ids_of(twin.memory) == kept
        assert twin.add([5]) == added
        for name in original.memory.column_names:
            assert torch.equal(twin.memory.column(name), original.memory.column(name)), name


def test_time_order_puts_episodes_together_and_marks_what_follows() -> None:
    adder = Adder(capacity=6)
    adder.add_rows([0, 0, 1, 1])
    adder.add_rows([1, 2, 2, 1])  # the first rollout leaves, so these have steps 4 to 7
    memory = adder.memory
    order, follows = memory.in_time()
    assert memory.column("episodes")[order].tolist() == [1, 1, 2, 2]
    assert memory.column("steps")[order].tolist() == [4, 7, 5, 6]
    # Steps 4 and 7 are of one episode, but not one after the other
    assert follows.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("states", "actions", "size"), [(2, 1, 72), (17, 6, 292), (257, 17, 2432)])
def test_a_transition_takes_the_bytes_the_documentation_says(
    states: int, actions: int, size: int
) -> None:
    memory = Memory(10, states, actions)
    row = sum(memory.get_buffer(name)[0].nbytes for name in memory.column_names)
    assert row == 4 * (2 * states + 5 * actions + 3) + 24 == size
