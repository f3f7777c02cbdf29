"""The memory: what is remembered stays whole and aligned, what is forgotten goes as a unit."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import product
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, uniform
from torch import Tensor

from imel.memory import Forgetting, ForgettingUnit, Memory, MemorySettings
from small import BATCH, small_model

CAPACITY = 20
every_mode = pytest.mark.parametrize(
    "mode",
    [
        MemorySettings(forgetting=forgetting, forgetting_unit=unit)
        for forgetting, unit in product(get_args(Forgetting), get_args(ForgettingUnit))
    ],
    ids=lambda mode: f"{mode.forgetting}-{mode.forgetting_unit}",
)


def rows_of(ids: list[int], episodes: list[int]) -> dict[str, Tensor]:
    """Rows whose every column tells the row's id."""
    number = torch.tensor(ids, dtype=torch.float32)
    vector = torch.stack([number, number + 0.5], dim=1)
    return {
        "states": vector,
        "next_states": 2 * vector,
        "actions": 3 * vector[:, :1],
        "means": 4 * vector[:, :1],
        "improved_means": 5 * vector[:, :1],
        "stds": 6 * vector[:, :1],
        "rewards": 7 * number,
        "advantages": 8 * number,
        "behaviour_means": 9 * vector[:, :1],
        "settled_means": 11 * vector[:, :1],
        "terminated": 10 * number,
        "episodes": torch.tensor(episodes),
        "steps": torch.tensor(ids),
    }


def ids_of(memory: Memory) -> list[int]:
    """The ids in memory, after checking that all columns of each row tell the same."""
    ids = memory.column("steps").tolist()
    for name, column in rows_of(ids, memory.column("episodes").tolist()).items():
        assert torch.equal(memory.column(name), column), name
    assert len(set(ids)) == len(ids)
    return ids


class Adder:
    """Adds rollouts to a memory, counting ids, episodes and iterations."""

    def __init__(self, settings: MemorySettings, capacity: int = CAPACITY, seed: int = 0) -> None:
        self.memory = Memory(capacity, state_dim=2, action_dim=1)
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.next_id = self.next_episode = self.iteration = 0

    def add(self, lengths: list[int], continues: bool = False) -> list[int]:
        """Add episodes; the first of them may go on with the last one of the rollout before."""
        first = self.next_episode - int(continues and self.next_episode > 0)
        self.next_episode = first + len(lengths)
        return self.add_rows([first + i for i, n in enumerate(lengths) for _ in range(n)])

    def add_rows(self, episodes: list[int]) -> list[int]:
        """Add a row for each entry, the episode it belongs to; answers their ids."""
        ids = list(range(self.next_id, self.next_id + len(episodes)))
        self.memory.add(rows_of(ids, episodes), self.iteration, self.settings, self.generator)
        self.next_id += len(ids)
        self.iteration += 1
        return ids


ragged = st.lists(st.integers(1, 6), min_size=1, max_size=6).filter(lambda n: sum(n) <= CAPACITY)
histories = st.lists(st.tuples(ragged, st.booleans()), min_size=1, max_size=12)


def by_id(memory: Memory, name: str) -> dict[int, float]:
    return dict(zip(ids_of(memory), memory.column(name).tolist(), strict=True))


@every_mode
@given(history=histories)
@settings(max_examples=30)
def test_whole_units_leave_in_order_and_no_more_than_must(
    mode: MemorySettings, history: list[tuple[list[int], bool]]
) -> None:
    adder = Adder(mode)
    memory = adder.memory
    label = "episodes" if mode.forgetting_unit == "episode" else "iterations"
    for lengths, continues in history:
        unit = by_id(memory, label)
        key: dict[float, float] = {}  # of a unit, the highest of its rows
        for row, row_key in by_id(memory, "keys").items():
            key[unit[row]] = max(row_key, key.get(unit[row], row_key))
        added = adder.add(lengths, continues)
        after = by_id(memory, label)

        assert len(after) <= CAPACITY
        assert set(added) <= set(after) <= set(added) | set(unit)
        gone = Counter(unit[row] for row in unit if row not in after)
        stayed = {unit[row] for row in unit if row in after}
        going_on = {after[row] for row in added}
        torn = set(gone) & going_on
        assert stayed & set(gone) <= torn
        excess = len(unit) + len(added) - CAPACITY
        if excess <= 0:
            assert not gone
            continue
        if torn:  # a unit that goes on in the new rows is torn last, no further than needed
            assert stayed <= going_on
            assert gone.total() == excess
            continue
        highest = max(key[u] for u in gone)
        assert all(key[u] >= highest for u in stayed - going_on)
        last = [size for u, size in gone.items() if key[u] == highest]
        assert gone.total() - max(last) < excess <= gone.total()


@settings(max_examples=30)
@given(history=st.lists(ragged, min_size=1, max_size=12))
def test_fifo_keeps_the_latest_rollouts_that_fit(history: list[list[int]]) -> None:
    adder = Adder(MemorySettings())
    kept: list[list[int]] = []
    for lengths in history:
        kept.append(adder.add(lengths))
        while sum(map(len, kept)) > CAPACITY:
            kept.pop(0)
        assert sorted(ids_of(adder.memory)) == [row for rollout in kept for row in rollout]


def test_an_episode_is_as_old_as_its_newest_part() -> None:
    adder = Adder(MemorySettings(forgetting_unit="episode"))
    adder.add_rows([0] * 6 + [1] * 4)
    adder.add_rows([0] * 5)
    adder.add_rows([2] * 9)
    assert Counter(adder.memory.column("episodes").tolist()) == {0: 11, 2: 9}


@pytest.mark.parametrize("forgetting", get_args(Forgetting))
def test_an_episode_without_end_loses_its_oldest_part(forgetting: Forgetting) -> None:
    adder = Adder(MemorySettings(forgetting=forgetting, forgetting_unit="episode"))
    for _ in range(7):
        adder.add_rows([0] * 6)
    assert sorted(ids_of(adder.memory)) == list(range(7 * 6 - CAPACITY, 7 * 6))


def test_what_an_episode_loses_goes_by_time_wherever_it_lies() -> None:
    adder = Adder(MemorySettings(forgetting_unit="episode"))
    adder.add_rows([0] * 10)
    adder.add_rows([1] * 2 + [0] * 8)
    adder.add_rows([0] * 3)  # where episode 1 was, and where the first row was: not in order
    for count in (9, 8, 1):
        adder.add_rows([0] * count)
    assert sorted(ids_of(adder.memory)) == list(range(21, 41))


@pytest.mark.parametrize("unit", get_args(ForgettingUnit))
def test_reservoir_keeps_a_uniform_sample_of_the_past(unit: ForgettingUnit) -> None:
    rollouts, room = 400, 80
    kept: list[int] = []
    for seed in range(3):
        mode = MemorySettings(forgetting="reservoir", forgetting_unit=unit)
        adder = Adder(mode, capacity=room, seed=seed)
        for _ in range(rollouts):
            adder.add([1])
        assert rollouts - 1 in ids_of(adder.memory)  # the newest is always there
        kept += set(ids_of(adder.memory)) - {rollouts - 1}
    assert len(kept) == 3 * (room - 1)
    assert kstest(kept, uniform(0, rollouts - 1).cdf).pvalue > 1e-3


@pytest.mark.parametrize("first", [0, -25])  # logged data have iterations below zero
def test_of_the_newest_a_reservoir_forgets_nothing_if_told(first: int) -> None:
    mode = MemorySettings(forgetting="reservoir", newest_kept=6)
    seen: set[int] = set()
    for seed in range(30):
        adder = Adder(mode, capacity=10, seed=seed)
        adder.iteration = first
        for _ in range(20):
            adder.add([2])
        kept = set(ids_of(adder.memory))
        assert set(range(34, 40)) <= kept
        assert len(kept) == 10
        seen |= kept
    assert seen >= set(range(34))  # and of those before, any may be kept


def test_if_all_of_a_reservoir_is_newest_it_forgets_the_oldest() -> None:
    adder = Adder(MemorySettings(forgetting="reservoir", newest_kept=100), capacity=10)
    for _ in range(20):
        adder.add([2])
    assert set(ids_of(adder.memory)) == set(range(30, 40))


def test_reservoir_draws_one_key_for_an_episode_of_several_rollouts() -> None:
    adder = Adder(MemorySettings(forgetting="reservoir", forgetting_unit="episode"))
    adder.add_rows([0] * 3)
    adder.add_rows([0] * 3)
    assert len(set(adder.memory.column("keys").tolist())) == 1


@pytest.mark.parametrize("forgetting", get_args(Forgetting))
def test_an_episode_that_goes_on_is_not_torn(forgetting: Forgetting) -> None:
    for seed in range(8):
        mode = MemorySettings(forgetting=forgetting, forgetting_unit="episode")
        adder = Adder(mode, capacity=8, seed=seed)
        adder.add_rows([0, 0, 0, 1, 1])
        adder.add_rows([0, 0, 0, 0])
        assert Counter(adder.memory.column("episodes").tolist()) == {0: 7}


def test_columns_are_views_into_buffers_that_stay_in_place() -> None:
    adder = Adder(MemorySettings())
    adder.add([5])
    memory = adder.memory
    before = {name: memory.column(name).data_ptr() for name in memory.column_names}
    assert before["states"] == memory.states.data_ptr()
    for _ in range(5):
        adder.add([7])
    assert before == {name: memory.column(name).data_ptr() for name in memory.column_names}
    memory.column("states")[0] = 99.0
    assert (memory.states[0] == 99.0).all()


def test_prior_context_is_what_was_given_and_no_real_episode() -> None:
    memory = Memory(CAPACITY, state_dim=2, action_dim=1)
    assert not memory.holds_prior
    states, means = torch.randn(4, 2), torch.randn(4, 1)
    memory.set_prior(states, means)
    assert memory.holds_prior
    assert len(memory) == 4
    assert torch.equal(memory.column("states"), states)
    for name in ("actions", "means", "improved_means"):
        assert torch.equal(memory.column(name), means)
    episodes = memory.column("episodes")
    assert (episodes < 0).all()
    assert torch.unique(episodes).numel() == 4
    assert (memory.column("stds") > 0).all()


@every_mode
@pytest.mark.parametrize("count", [1, 10, CAPACITY])
def test_prior_context_leaves_with_the_first_experience(mode: MemorySettings, count: int) -> None:
    adder = Adder(mode)
    adder.memory.set_prior(torch.randn(12, 2), torch.randn(12, 1))
    added = adder.add([count])
    assert sorted(ids_of(adder.memory)) == added
    assert not adder.memory.holds_prior


def test_prior_context_can_be_set_again() -> None:
    adder = Adder(MemorySettings())
    adder.add([9])
    adder.memory.set_prior(torch.zeros(3, 2), torch.zeros(3, 1))
    assert len(adder.memory) == 3
    assert adder.memory.holds_prior
    assert (adder.memory.column("rewards") == 0).all()


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    adder = Adder(MemorySettings())
    kept = adder.add([5])
    with pytest.raises(ValueError, match="21 transitions do not fit into 20"):
        adder.add([CAPACITY + 1])
    with pytest.raises(ValueError, match="21 prior points do not fit into 20"):
        adder.memory.set_prior(torch.zeros(21, 2), torch.zeros(21, 1))
    assert ids_of(adder.memory) == kept


def test_a_batch_of_the_whole_capacity_replaces_everything() -> None:
    adder = Adder(MemorySettings())
    adder.add([3])
    added = adder.add([CAPACITY])
    assert sorted(ids_of(adder.memory)) == added


def test_state_dict_round_trip_goes_on_as_the_original_would() -> None:
    original = Adder(MemorySettings(forgetting="reservoir", forgetting_unit="episode"))
    for _ in range(4):
        original.add([3, 4])
    restored = copy.copy(original)
    restored.memory = Memory(CAPACITY, state_dim=2, action_dim=1)
    restored.memory.load_state_dict(original.memory.state_dict())
    restored.generator = original.generator.clone_state()
    assert ids_of(restored.memory) == ids_of(original.memory)
    assert original.add([5]) == restored.add([5])
    for name in original.memory.column_names:
        assert torch.equal(restored.memory.column(name), original.memory.column(name)), name


def test_a_deep_copy_shares_nothing() -> None:
    adder = Adder(MemorySettings())
    kept = adder.add([5])
    twin = copy.deepcopy(adder.memory)
    adder.add([5])
    assert ids_of(twin) == kept
    assert twin.states.data_ptr() != adder.memory.states.data_ptr()


def test_time_order_puts_episodes_together_and_marks_what_follows() -> None:
    adder = Adder(MemorySettings(), capacity=6)
    adder.add_rows([0, 0, 1, 1])
    adder.add_rows([1, 2, 2, 1])  # the first rollout leaves, so these have steps 4 to 7
    memory = adder.memory
    order, follows = memory.in_time()
    assert memory.column("episodes")[order].tolist() == [1, 1, 2, 2]
    assert memory.column("steps")[order].tolist() == [4, 7, 5, 6]
    # Steps 4 and 7 are of one episode, but not one after the other
    assert follows.tolist() == [False, False, True, False]


def test_the_newest_rows_are_those_of_the_last_iterations() -> None:
    adder = Adder(MemorySettings())
    adder.add([3])
    adder.add([4])
    memory = adder.memory
    assert set(memory.column("iterations")[memory.newest(4)].tolist()) == {1}
    assert sorted(memory.newest(100).tolist()) == list(range(7))


@pytest.mark.parametrize(("states", "actions", "size"), [(2, 1, 84), (17, 6, 324), (257, 17, 2508)])
def test_a_transition_takes_the_bytes_the_documentation_says(
    states: int, actions: int, size: int
) -> None:
    memory = Memory(10, states, actions)
    row = sum(memory.get_buffer(name)[0].nbytes for name in memory.column_names)
    assert row == 4 * (2 * states + 6 * actions + 3) + 32 == size


def test_a_longer_run_takes_no_more_memory() -> None:
    model = small_model()

    def held() -> int:
        tensors = [*model.policy.state_dict().values(), *model.critic.state_dict().values()]
        return sum(tensor.nbytes for tensor in tensors)

    before = held()
    for _ in range(4):  # the memory is full after two batches
        model.learn(2 * BATCH, reset_num_timesteps=False)
        assert held() == before
