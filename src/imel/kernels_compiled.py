"""The kernel average of `imel.kernels` compiled by Numba: nothing is stored but the answer.

torch needs a pass over all weights for each of product, softmax and average. Here a block of keys
stays in the processor's first cache while all queries meet it: logits, weights and sums of a block
are made and used up before the next one. The backward pass makes the weights again from each
query's log-sum.

Used where Numba is installed (the extra `fast`) and it pays; `imel.kernels` decides, and has the
form in plain torch that always works. Both agree to rounding.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from imel import kernels_numba as loops
from imel.kernels_numba import BLOCK, NEVER, Array, Ids


class PackedKeys:
    """Keys, their bias, values and episodes in blocks, padded with keys that are never seen."""

    def __init__(self, keys: Tensor, values: Tensor, episodes: Tensor | None = None) -> None:
        self.count, self.value_dim = values.shape
        blocks, width = -(-self.count // BLOCK), keys.shape[1]
        # Distances do not change with the origin; near the keys' centre they lose less precision
        self.centre = keys.mean(dim=0)
        self.keys = np.zeros((blocks, width + -width % 8, BLOCK), np.float32)
        self.values = np.zeros((blocks, self.value_dim + self.value_dim % 2, BLOCK), np.float32)
        self.bias = np.full((blocks, BLOCK), NEVER)
        loops.pack(
            _array(keys), _array(values), self.centre.numpy(), self.keys, self.bias, self.values
        )
        self.episodes = np.zeros((blocks, BLOCK), np.int32)
        if episodes is not None:
            self.episodes.reshape(-1)[: self.count] = episodes.numpy()

    def queries(self, queries: Tensor) -> Array:
        """Queries from the same origin and of the same padded width."""
        padded = np.zeros((len(queries), self.keys.shape[1]), np.float32)
        np.subtract(queries.numpy(), self.centre.numpy(), out=padded[:, : queries.shape[1]])
        return padded

    def average(self, queries: Tensor, owns: Tensor | None = None) -> tuple[Tensor, Array]:
        """sum_i w_i y_i at each query, over episodes other than its own, and the log-sums."""
        answer = np.empty((len(queries), self.values.shape[1]), np.float32)
        log_sums = loops.forward(
            self.queries(queries), _ids(owns, len(queries)),
            self.keys, self.bias, self.values, self.episodes, answer,
        )  # fmt: skip
        return torch.from_numpy(answer[:, : self.value_dim]), log_sums

    def gradients(
        self, queries: Tensor, owns: Tensor | None, log_sums: Array, gradient: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """dq and dk for the gradient of the answers y."""
        padded = np.zeros((len(queries), self.values.shape[1]), np.float32)
        padded[:, : self.value_dim] = gradient.numpy()
        d_blocks, d_bias = np.zeros_like(self.keys), np.zeros_like(self.bias)
        d_queries = loops.backward(
            self.queries(queries), _ids(owns, len(queries)),
            self.keys, self.bias, self.values, self.episodes, log_sums,
            padded, (gradient * y).sum(dim=1).numpy(), d_blocks, d_bias,
        )  # fmt: skip
        d_keys = np.empty((self.count, queries.shape[1]), np.float32)
        loops.unpack(self.keys, d_blocks, d_bias, d_keys)
        return torch.from_numpy(d_queries[:, : queries.shape[1]]), torch.from_numpy(d_keys)


def compile_elsewhere() -> None:
    """Have another process compile what is not in Numba's cache yet, so that this one loads it.

    Code that was just compiled and the same code loaded from the cache differ in the last bits: a
    first run could not be repeated by a second.
    """
    # Numba has no public word for "is it cached"; an index of older sources is read as empty
    average: tuple[Any, ...] = (loops.pack, loops.forward, loops.backward, loops.unpack)
    entries = (*average, loops.network)
    if not all(entry._cache._cache_file._load_index() for entry in entries):
        words = "from imel import kernels_compiled; kernels_compiled.use_once()"
        subprocess.run([sys.executable, "-c", words], check=False, capture_output=True)


def use_once() -> None:
    """Go through all loops once, which compiles them; the network as deep as it is by default."""
    keys = torch.zeros(2, 1)
    packed = PackedKeys(keys, keys, torch.arange(2))
    answer, log_sums = packed.average(keys, torch.arange(2))
    packed.gradients(keys, torch.arange(2), log_sums, answer, answer)
    weights, biases = (_array(torch.zeros(1, 1)),) * 3, (_array(torch.zeros(1)),) * 3
    network(torch.zeros(1, 1), weights, biases, weights[0])


def _array(columns: Tensor) -> Array:
    return cast("Array", columns.contiguous().numpy())


def _ids(owns: Tensor | None, count: int) -> Ids:
    # Without episodes all keys are of episode 0, and no query is
    return np.ones(count, np.int32) if owns is None else owns.numpy().astype(np.int32)


def network(states: Tensor, weights: Any, biases: Any, skip: Array) -> Tensor:
    """Outputs of a tanh network with a linear path beside it, for a few states."""
    return torch.from_numpy(loops.network(states.numpy(), weights, biases, skip))


class CompiledInterpolation(torch.autograd.Function):
    """The normalised kernel average, differentiable in queries and keys."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        query_episodes: Tensor | None,
        key_episodes: Tensor | None,
    ) -> Tensor:
        """The averages."""
        packed = PackedKeys(keys, values, key_episodes)
        answer, log_sums = packed.average(queries, query_episodes)
        ctx.save_for_backward(queries, query_episodes, answer)
        ctx.packed, ctx.log_sums = packed, log_sums
        return answer

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dq and dk."""
        queries, owns, answer = ctx.saved_tensors
        found = ctx.packed.gradients(queries, owns, ctx.log_sums, gradients[0], answer)
        return (*found, None, None, None)
