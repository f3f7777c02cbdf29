"""The kernel average of `imel.kernels` compiled by Numba: one pass, nothing stored but the answer.

torch needs a pass over all weights for each of product, softmax and average. Here a block of keys
stays in the processor's first cache while all queries meet it: logits, weights and sums of a block
are made and used up before the next one, with a running maximum that keeps the exponential in
range. The backward pass makes the weights again from each query's log-sum. Inner loops run along
the keys of one block, over arrays of fixed length, for that is what the compiler vectorises.

Used where Numba is installed (the extra `fast`) and it pays; `imel.kernels` decides, and has the
form in plain torch that always works. Both agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]
Ids = NDArray[np.int64]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_BLOCK = 256
"""Keys met at a time: with their values 24 KiB at 16 features, which a first cache holds."""
_HALF, _QUARTER, _EIGHTH = _BLOCK // 2, _BLOCK // 4, _BLOCK // 8
_NEVER = np.float32(-1e30)
"""The logit of a key that must not be seen: finite, so that no difference of two is undefined."""
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_HALF_ONE, _LOG2_E, _LEAST = np.float32(0.5), np.float32(1.4426950408889634), np.float32(-87.0)
# Minimax coefficients of 2^f on [-1/2, 1/2]
_C2, _C3, _C4 = np.float32(2.4022651e-1), np.float32(5.5504109e-2), np.float32(9.6181291e-3)
_C1, _C5, _C6 = np.float32(6.9314718e-1), np.float32(1.3333558e-3), np.float32(1.5403530e-4)
_EXPONENT_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


# Sums may be reordered, which vectors need; what is not a number must stay so
_FLAGS = {"reassoc", "contract", "nsz", "arcp"}


def _entry(function: _Function) -> _Function:
    """Compiled once for all runs."""
    return cast("_Function", njit(fastmath=_FLAGS, cache=True, nogil=True)(function))


def _part(function: _Function) -> _Function:
    # Not cached: the compiler could then not merge it into its callers, and calls are dear here
    return cast("_Function", njit(fastmath=_FLAGS)(function))


@_part
def _exp(x: Any) -> Any:
    """e^x, and zero below the smallest normal number: 2^n from the exponent's bits, 2^f."""
    y = max(x, _LEAST) * _LOG2_E
    n = np.floor(y + _HALF_ONE)
    f = y - n
    power = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    bits = np.int32((np.int32(n) + _EXPONENT_BIAS) << _MANTISSA_BITS)
    value = power * bits.view(np.float32)
    return value if x > _LEAST else _ZERO


@_part
def _largest(x: Array, scratch: Array) -> Any:
    # Folded, because the compiler does not vectorise a running maximum
    for j in range(_HALF):
        scratch[j] = x[j] if x[j] > x[j + _HALF] else x[j + _HALF]
    for j in range(_QUARTER):
        scratch[j] = scratch[j] if scratch[j] > scratch[j + _QUARTER] else scratch[j + _QUARTER]
    for j in range(_EIGHTH):
        scratch[j] = scratch[j] if scratch[j] > scratch[j + _EIGHTH] else scratch[j + _EIGHTH]
    top = scratch[0]
    for j in range(1, _EIGHTH):
        top = scratch[j] if scratch[j] > top else top
    return top


@_part
def _begin_logits(out: Array, bias: Array, q: Array, k: Array) -> None:
    q0, q1, q2, q3, q4, q5, q6, q7 = q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]
    k0, k1, k2, k3, k4, k5, k6, k7 = k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]
    for j in range(_BLOCK):
        low = q0 * k0[j] + q1 * k1[j] + q2 * k2[j] + q3 * k3[j]
        high = q4 * k4[j] + q5 * k5[j] + q6 * k6[j] + q7 * k7[j]
        out[j] = bias[j] + low + high


@_part
def _continue_logits(out: Array, q: Array, k: Array) -> None:
    q0, q1, q2, q3, q4, q5, q6, q7 = q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]
    k0, k1, k2, k3, k4, k5, k6, k7 = k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]
    for j in range(_BLOCK):
        low = q0 * k0[j] + q1 * k1[j] + q2 * k2[j] + q3 * k3[j]
        high = q4 * k4[j] + q5 * k5[j] + q6 * k6[j] + q7 * k7[j]
        out[j] += low + high


@_part
def _add_two(out: Array, c0: Any, c1: Any, x0: Array, x1: Array) -> None:
    for j in range(_BLOCK):
        out[j] += c0 * x0[j] + c1 * x1[j]


@_part
def _dot_two(w: Array, x0: Array, x1: Array) -> Any:
    a, b = _ZERO, _ZERO
    for j in range(_BLOCK):
        a += w[j] * x0[j]
        b += w[j] * x1[j]
    return a, b


@_part
def _dot_four(w: Array, x: Array) -> Any:
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
    for j in range(_BLOCK):
        a += w[j] * x0[j]
        b += w[j] * x1[j]
        c += w[j] * x2[j]
        d += w[j] * x3[j]
    return a, b, c, d


@_part
def _spread(y0: Array, y1: Array, w0: Array, w1: Array, a: Array, b: Array) -> None:
    a0, a1, b0, b1 = a[0], a[1], b[0], b[1]
    for j in range(_BLOCK):
        y0[j] += a0 * w0[j] + b0 * w1[j]
        y1[j] += a1 * w0[j] + b1 * w1[j]


@_part
def _hide(out: Array, own: Any, episodes: Ids) -> None:
    for j in range(_BLOCK):
        if episodes[j] == own:
            out[j] = _NEVER


@_part
def _logits(q: Array, keys: Array, bias: Array, own: Any, episodes: Ids, out: Array) -> None:
    """2 q.k - |k|^2 of a block; no own episode is met where there are no episodes."""
    _begin_logits(out, bias, q[:8], keys[:8])
    for a in range(8, keys.shape[0], 8):
        _continue_logits(out, q[a : a + 8], keys[a : a + 8])
    if episodes.size:
        _hide(out, own, episodes)


@_part
def _exponentials(x: Array, top: Any) -> Any:
    total = _ZERO
    for j in range(_BLOCK):
        weight = _exp(x[j] - top)
        x[j] = weight
        total += weight
    return total


@_part
def _times_exponentials(out: Array, x: Array, top: Any) -> None:
    for j in range(_BLOCK):
        out[j] *= _exp(x[j] - top)


@_entry
def _forward(
    queries: Array, owns: Ids, keys: Array, bias: Array, values: Array, episodes: Ids, answer: Array
) -> Any:
    """The averages into `answer`; log sum_i exp(logit_i) for each query."""
    tops = np.full(queries.shape[0], np.float32(-3e38), np.float32)
    totals = np.zeros(queries.shape[0], np.float32)
    weights, scratch = np.empty(_BLOCK, np.float32), np.empty(_HALF, np.float32)
    answer[:] = _ZERO
    for block in range(keys.shape[0]):
        for t in range(queries.shape[0]):
            _logits(queries[t], keys[block], bias[block], owns[t], episodes[block], weights)
            top = _largest(weights, scratch)
            if top > tops[t]:
                shrink = _exp(tops[t] - top)
                totals[t] *= shrink
                answer[t] *= shrink
                tops[t] = top
            totals[t] += _exponentials(weights, tops[t])
            for a in range(0, values.shape[1], 2):
                first, second = _dot_two(weights, values[block, a], values[block, a + 1])
                answer[t, a] += first
                answer[t, a + 1] += second
    for t in range(queries.shape[0]):
        answer[t] /= totals[t]
    return tops + np.log(totals)


@_part
def _d_logits(
    q: Array, own: Any, keys: Array, bias: Array, values: Array, episodes: Ids,
    log_sum: Any, g: Array, offset: Any, weights: Array, out: Array,
) -> None:  # fmt: skip
    """p (g.v - g.y), with g.y the offset."""
    _logits(q, keys, bias, own, episodes, weights)
    out[:] = -offset
    for a in range(0, values.shape[0], 2):
        _add_two(out, g[a], g[a + 1], values[a], values[a + 1])
    _times_exponentials(out, weights, log_sum)


@_entry
def _backward(
    queries: Array, owns: Ids, keys: Array, bias: Array, values: Array, episodes: Ids,
    log_sums: Array, gradient: Array, offsets: Array, d_keys: Array, d_bias: Array,
) -> Any:  # fmt: skip
    """dq; sum_t dlogits q_t into `d_keys` and sum_t dlogits into `d_bias`, two queries a time."""
    d_queries = np.zeros(queries.shape, np.float32)
    weights = np.empty(_BLOCK, np.float32)
    first, second = np.empty(_BLOCK, np.float32), np.zeros(_BLOCK, np.float32)
    count = queries.shape[0]
    for block in range(keys.shape[0]):
        k, b, v, e = keys[block], bias[block], values[block], episodes[block]
        for t in range(0, count, 2):
            u = min(t + 1, count - 1)
            _d_logits(queries[t], owns[t], k, b, v, e, log_sums[t], gradient[t], offsets[t],
                      weights, first)  # fmt: skip
            if u > t:
                _d_logits(queries[u], owns[u], k, b, v, e, log_sums[u], gradient[u], offsets[u],
                          weights, second)  # fmt: skip
            else:
                second[:] = _ZERO
            _add_two(d_bias[block], _ONE, _ONE, first, second)
            for a in range(0, queries.shape[1], 4):
                k_four = k[a : a + 4]
                for row, h in ((t, first), (u, second)):
                    s0, s1, s2, s3 = _dot_four(h, k_four)
                    d_queries[row, a] += s0
                    d_queries[row, a + 1] += s1
                    d_queries[row, a + 2] += s2
                    d_queries[row, a + 3] += s3
                _spread(d_keys[block, a], d_keys[block, a + 1], first, second,
                        queries[t, a : a + 2], queries[u, a : a + 2])  # fmt: skip
                _spread(d_keys[block, a + 2], d_keys[block, a + 3], first, second,
                        queries[t, a + 2 : a + 4], queries[u, a + 2 : a + 4])  # fmt: skip
    return d_queries


@_entry
def _pack(
    keys: Array, values: Array, centre: Array, key_blocks: Array, bias: Array, value_blocks: Array
) -> None:
    for i in range(keys.shape[0]):
        block, place = i // _BLOCK, i % _BLOCK
        square = _ZERO
        for a in range(keys.shape[1]):
            x = keys[i, a] - centre[a]
            square += x * x
            key_blocks[block, a, place] = x + x
        bias[block, place] = -square
        for a in range(values.shape[1]):
            value_blocks[block, a, place] = values[i, a]


@_entry
def _unpack(key_blocks: Array, d_blocks: Array, d_bias: Array, d_keys: Array) -> None:
    """dk = 2 sum_t dlogits q_t - 2 k sum_t dlogits, row by row."""
    for i in range(d_keys.shape[0]):
        block, place = i // _BLOCK, i % _BLOCK
        pull = d_bias[block, place]
        for a in range(d_keys.shape[1]):
            along = d_blocks[block, a, place]
            d_keys[i, a] = along + along - key_blocks[block, a, place] * pull


class PackedKeys:
    """Keys, their bias, values and episodes in blocks, padded with keys that are never seen."""

    def __init__(self, keys: Tensor, values: Tensor, episodes: Tensor | None = None) -> None:
        self.count, self.value_dim = values.shape
        blocks, width = -(-self.count // _BLOCK), keys.shape[1]
        # Distances do not change with the origin; near the keys' centre they lose less precision
        self.centre = keys.mean(dim=0)
        self.keys = np.zeros((blocks, width + -width % 8, _BLOCK), np.float32)
        self.values = np.zeros((blocks, self.value_dim + self.value_dim % 2, _BLOCK), np.float32)
        self.bias = np.full((blocks, _BLOCK), _NEVER)
        _pack(_array(keys), _array(values), self.centre.numpy(), self.keys, self.bias, self.values)
        self.episodes = np.zeros((blocks, 0 if episodes is None else _BLOCK), np.int64)
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
        log_sums = _forward(
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
        d_queries = _backward(
            self.queries(queries), _ids(owns, len(queries)),
            self.keys, self.bias, self.values, self.episodes, log_sums,
            padded, (gradient * y).sum(dim=1).numpy(), d_blocks, d_bias,
        )  # fmt: skip
        d_keys = np.empty((self.count, queries.shape[1]), np.float32)
        _unpack(self.keys, d_blocks, d_bias, d_keys)
        return torch.from_numpy(d_queries[:, : queries.shape[1]]), torch.from_numpy(d_keys)


def _array(columns: Tensor) -> Array:
    return cast("Array", columns.contiguous().numpy())


def _ids(owns: Tensor | None, count: int) -> Ids:
    return np.zeros(count, np.int64) if owns is None else owns.contiguous().numpy()


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
