"""What each episode taught a policy: its coefficients as a sum over episodes, sum_e theta_e.

A step of `RidgePolicy` is linear in the improvements its experiences ask for. Every map that the
coefficients go through, each lesson goes through as well; taking a lesson back is subtraction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_CHUNK = 64
"""Rows by which the ledger grows."""
_LARGEST = 4096
"""Lessons kept apart at most."""
_BYTES = 48 << 20
"""Memory of the coefficients at most: where lessons are large, fewer are kept apart."""
_SAMPLED = 8
"""States kept of each lesson, also when its transitions have been forgotten. A power of two."""


class Lessons(nn.Module):
    """A ledger: one row for each episode, or for several that have been merged into a period.

    :param width: d_phi, the number of features
    :param rows: rows to allocate
    """

    coefficients: Tensor  # [rows, d_phi, d_a] what each lesson adds to the policy's
    episodes: Tensor  # [rows] int64, the first episode of the lesson
    counts: Tensor  # [rows] int64, episodes in it
    starts: Tensor  # [rows] int64, environment steps of the run before it
    ends: Tensor  # [rows] int64, environment steps of the run after it
    lengths: Tensor  # [rows] int64, transitions in it
    returns: Tensor  # [rows] float64, sum of its rewards
    samples: Tensor  # [rows, _SAMPLED, d_s] raw states from its beginning to its end
    _size: Tensor  # [] int64

    def __init__(self, state_dim: int, width: int, action_dim: int, rows: int = _CHUNK) -> None:
        super().__init__()
        self.register_buffer("samples", torch.zeros(rows, _SAMPLED, state_dim))
        self.register_buffer("coefficients", torch.zeros(rows, width, action_dim))
        for name in ("episodes", "counts", "starts", "ends", "lengths"):
            self.register_buffer(name, torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("returns", torch.zeros(rows, dtype=torch.float64))
        self.register_buffer("_size", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return int(self._size)

    def column(self, name: str) -> Tensor:
        """Return the rows in use of a column, as a view."""
        return self.get_buffer(name)[: len(self)]

    def _columns(self) -> list[tuple[str, Tensor]]:
        """Return all rows allocated of every column."""
        return [(name, buffer) for name, buffer in self.named_buffers() if name != "_size"]

    def record_episodes(
        self, episodes: Tensor, rewards: Tensor, states: Tensor, start: int, end: int
    ) -> None:
        """Record the episodes of new transitions, in order, gathered between two steps of a run."""
        names, member, counts = torch.unique(episodes, return_inverse=True, return_counts=True)
        sums = torch.zeros(names.shape, dtype=torch.float64, device=names.device)
        sums.index_add_(0, member, rewards.double())
        # Numbers grow, and the newest row is never merged: what is beyond it is new. An episode
        # that is still running while its row is merged goes on teaching its period
        new = names[names > self.episodes[len(self) - 1]] if len(self) else names
        self._append(new, start)
        rows = self.rows_of(names)
        self._sample(rows, states[episodes.argsort(stable=True)], counts)
        self.lengths[rows] += counts
        self.returns[rows] += sums
        self.ends[rows] = end

    def _sample(self, rows: Tensor, states: Tensor, counts: Tensor) -> None:
        """Keep every n-th state of each lesson: as few as fit into its sample.

        rows [E], states [n, d_s] of one row after the other, counts [E] of new states
        """
        before = self.lengths[rows][:, None]
        after = before + counts[:, None]
        stride = _stride(after)  # a multiple of the one before: what is needed now was kept then
        slots = torch.arange(_SAMPLED, device=rows.device)
        times = stride * torch.minimum(slots, (after - 1) // stride)  # [E, _SAMPLED]
        firsts = (counts.cumsum(0) - counts)[:, None]
        fresh = states[firsts + (times - before).clamp_min(0)]
        old = self.samples[rows[:, None], (times // _stride(before)).clamp_max(_SAMPLED - 1)]
        self.samples[rows] = torch.where((times >= before)[..., None], fresh, old)

    def _append(self, episodes: Tensor, start: int) -> None:
        """Enter new episodes; where the ledger is full, merge its oldest half in pairs before."""
        each = self.coefficients[0].numel() * self.coefficients.element_size()
        most = max(_CHUNK, min(_LARGEST, _BYTES // each))
        while len(self) + len(episodes) > most and len(self) >= 4:
            self._merge_oldest()
        size = len(self)
        rows = slice(size, size + len(episodes))
        if rows.stop > len(self.episodes):
            self._allocate(-(-rows.stop // _CHUNK) * _CHUNK)
        for _, column in self._columns():
            column[rows] = 0
        self.episodes[rows], self.starts[rows], self.counts[rows] = episodes, start, 1
        self._size.fill_(rows.stop)

    def _allocate(self, rows: int) -> None:
        """Make room for exactly so many rows; those in use that fit stay as they are."""
        for name, column in self._columns():
            resized = column.new_zeros(rows, *column.shape[1:])
            resized[: len(column)] = column[:rows]
            self.register_buffer(name, resized)

    def _merge_oldest(self) -> None:
        """Add up neighbours among the oldest half: the sum over all lessons stays as it is."""
        size = len(self)
        pairs = size // 4
        for name, column in self._columns():
            first, second = column[: 2 * pairs : 2], column[1 : 2 * pairs : 2]
            if name in ("episodes", "starts"):
                joined = torch.minimum(first, second)
            elif name == "ends":
                joined = torch.maximum(first, second)
            elif name == "samples":
                joined = torch.cat([first[:, ::2], second[:, ::2]], dim=1)
            else:
                joined = first + second
            column[: size - pairs] = torch.cat([joined, column[2 * pairs : size]])
        self._size.fill_(size - pairs)

    def rows_of(self, episodes: Tensor) -> Tensor:
        """Return the row of each episode, or of its period; they are entered by their numbers."""
        return torch.searchsorted(self.column("episodes"), episodes, right=True) - 1

    def add(self, episodes: Tensor, parts: Tensor) -> None:
        """Add what some episodes contribute to a step."""  # [E], [E, d_phi, d_a]
        self.coefficients.index_add_(0, self.rows_of(episodes), parts.to(self.coefficients.dtype))

    def transform(self, matrix: Tensor) -> None:
        """Map every lesson's coefficients: theta_e -> M theta_e."""  # [d_phi, d_phi]
        column = self.column("coefficients")
        column.copy_(matrix.to(column.dtype) @ column)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        # A ledger in a file is as long as what was taught
        loaded = state_dict.get(f"{prefix}episodes")
        if loaded is not None and loaded.ndim == 1 and len(loaded) != len(self.episodes):
            self._allocate(len(loaded))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _stride(lengths: Tensor) -> Tensor:
    """Return the least power of two by which so many states are at most _SAMPLED."""
    strides: Tensor = (lengths / _SAMPLED).clamp_min(1.0).log2().ceil().exp2().long()
    return strides
