"""Loops that Numba compiles: the passes of `imel.kernels_compiled` over blocks of keys.

Inner loops run along the keys of one block, over arrays of fixed length, for that is what the
compiler vectorises; a row is never taken out as an array of its own, for counting references to it
costs more than the row. Queries go in pairs, which halves what has to be read of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ids = NDArray[np.int32]
_Function = TypeVar("_Function", bound=Callable[..., Any])

BLOCK = 512
"""Keys met at a time: with values and ids 28 KiB at 8 features, which a first cache holds."""
NEVER = np.float32(-1e30)
"""The logit of a key that must not be seen: finite, so that no difference of two is undefined."""
_LOWEST = np.float32(-3e38)
_VANISHING = np.float32(1e-30)
"""A sum of weights below which they have lost precision to the smallest number there is."""
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_SATURATED = np.float32(9.0)
"""Beyond, tanh is one in single precision."""
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
    return _ZERO if x < _LEAST else value  # so that what is not a number stays so


@_part
def _logits(k: Array, bias: Array, q: Array, t: int, u: int, l0: Array, l1: Array) -> None:
    """2 q.k - |k|^2 of two queries with a block of keys."""
    for j in range(BLOCK):
        l0[j] = bias[j]
        l1[j] = bias[j]
    for a in range(0, k.shape[0], 4):
        a0, a1, a2, a3 = q[t, a], q[t, a + 1], q[t, a + 2], q[t, a + 3]
        b0, b1, b2, b3 = q[u, a], q[u, a + 1], q[u, a + 2], q[u, a + 3]
        for j in range(BLOCK):
            k0, k1, k2, k3 = k[a, j], k[a + 1, j], k[a + 2, j], k[a + 3, j]
            l0[j] += a0 * k0 + a1 * k1 + a2 * k2 + a3 * k3
            l1[j] += b0 * k0 + b1 * k1 + b2 * k2 + b3 * k3


@_part
def _exponentials(w: Array, shift: Any, own: Any, ids: Ids) -> None:
    for j in range(BLOCK):
        logit = NEVER if ids[j] == own else w[j]
        w[j] = _exp(logit - shift)


@_part
def _weights(
    k: Array, bias: Array, ids: Ids, q: Array, owns: Ids, shifts: Array,
    t: int, u: int, w0: Array, w1: Array,
) -> None:  # fmt: skip
    """exp(logit - shift) of two queries with a block of keys; zero for keys of their episodes."""
    _logits(k, bias, q, t, u, w0, w1)
    _exponentials(w0, shifts[t], owns[t], ids)
    if u > t:
        _exponentials(w1, shifts[u], owns[u], ids)


@_part
def _sum_up(v: Array, w: Array, totals: Array, answer: Array, t: int) -> None:
    total = _ZERO
    for j in range(BLOCK):
        total += w[j]
    totals[t] += total
    for a in range(0, v.shape[0], 2):
        first, second = _ZERO, _ZERO
        for j in range(BLOCK):
            first += w[j] * v[a, j]
            second += w[j] * v[a + 1, j]
        answer[t, a] += first
        answer[t, a + 1] += second


@_entry
def forward(
    queries: Array, owns: Ids, keys: Array, bias: Array, values: Array, episodes: Ids, answer: Array
) -> Any:
    """The averages into `answer`; log sum_i exp(logit_i) for each query."""
    count = queries.shape[0]
    # |q|^2: no logit is above it, so no weight overflows
    shifts = (queries * queries).sum(axis=1)
    totals = np.zeros(count, np.float32)
    w0, w1 = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    answer[:] = _ZERO
    for b in range(keys.shape[0]):
        k, v = keys[b], values[b]
        for t in range(0, count, 2):
            u = min(t + 1, count - 1)
            _weights(k, bias[b], episodes[b], queries, owns, shifts, t, u, w0, w1)
            _sum_up(v, w0, totals, answer, t)
            if u > t:
                _sum_up(v, w1, totals, answer, u)
    for t in range(count):
        if totals[t] < _VANISHING:
            totals[t] = _ZERO
            answer[t] = _ZERO
            shifts[t] = _largest(queries, owns, keys, bias, episodes, t)
            for b in range(keys.shape[0]):
                _weights(keys[b], bias[b], episodes[b], queries, owns, shifts, t, t, w0, w1)
                _sum_up(values[b], w0, totals, answer, t)
        for a in range(values.shape[1]):
            answer[t, a] /= totals[t]
    return shifts + np.log(totals)


@_part
def _largest(queries: Array, owns: Ids, keys: Array, bias: Array, episodes: Ids, t: int) -> Any:
    """The largest logit of a query so far from all keys that its weights vanish."""
    top = _LOWEST
    for b in range(keys.shape[0]):
        for j in range(BLOCK):
            logit = bias[b, j]
            for a in range(keys.shape[1]):
                logit += queries[t, a] * keys[b, a, j]
            if episodes[b, j] != owns[t] and logit > top:
                top = logit
    return top


@_part
def _times_gap(v: Array, g: Array, t: int, offset: Any, w: Array, scratch: Array) -> None:
    """p (g.v - g.y) in place of p, with g.y the offset."""
    for j in range(BLOCK):
        scratch[j] = -offset
    for a in range(0, v.shape[0], 2):
        g0, g1 = g[t, a], g[t, a + 1]
        for j in range(BLOCK):
            scratch[j] += g0 * v[a, j] + g1 * v[a + 1, j]
    for j in range(BLOCK):
        w[j] *= scratch[j]


@_part
def _to_queries(k: Array, w0: Array, w1: Array, d_queries: Array, t: int, u: int) -> None:
    for a in range(0, k.shape[0], 2):
        s0, s1, r0, r1 = _ZERO, _ZERO, _ZERO, _ZERO
        for j in range(BLOCK):
            s0 += w0[j] * k[a, j]
            s1 += w0[j] * k[a + 1, j]
            r0 += w1[j] * k[a, j]
            r1 += w1[j] * k[a + 1, j]
        d_queries[t, a] += s0
        d_queries[t, a + 1] += s1
        d_queries[u, a] += r0
        d_queries[u, a + 1] += r1


@_part
def _to_keys(d_keys: Array, d_bias: Array, q: Array, t: int, u: int, w0: Array, w1: Array) -> None:
    for j in range(BLOCK):
        d_bias[j] += w0[j] + w1[j]
    for a in range(0, d_keys.shape[0], 2):
        a0, a1, b0, b1 = q[t, a], q[t, a + 1], q[u, a], q[u, a + 1]
        for j in range(BLOCK):
            d_keys[a, j] += a0 * w0[j] + b0 * w1[j]
            d_keys[a + 1, j] += a1 * w0[j] + b1 * w1[j]


@_entry
def backward(
    queries: Array, owns: Ids, keys: Array, bias: Array, values: Array, episodes: Ids,
    log_sums: Array, gradient: Array, offsets: Array, d_keys: Array, d_bias: Array,
) -> Any:  # fmt: skip
    """dq; sum_t dlogits q_t into `d_keys` and sum_t dlogits into `d_bias`."""
    d_queries = np.zeros(queries.shape, np.float32)
    w0, w1 = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    scratch, count = np.empty(BLOCK, np.float32), queries.shape[0]
    for b in range(keys.shape[0]):
        k, v, dk, db = keys[b], values[b], d_keys[b], d_bias[b]
        for t in range(0, count, 2):
            u = min(t + 1, count - 1)
            _weights(k, bias[b], episodes[b], queries, owns, log_sums, t, u, w0, w1)
            _times_gap(v, gradient, t, offsets[t], w0, scratch)
            if u > t:
                _times_gap(v, gradient, u, offsets[u], w1, scratch)
            else:
                w1[:] = _ZERO
            _to_queries(k, w0, w1, d_queries, t, u)
            _to_keys(dk, db, queries, t, u, w0, w1)
    return d_queries


@_part
def _tanh_in_place(x: Array) -> None:
    for j in range(x.size):
        bounded = min(max(x[j], -_SATURATED), _SATURATED)
        x[j] = _ONE - _TWO / (_exp(bounded + bounded) + _ONE)


@_entry
def network(states: Array, weights: Any, biases: Any, skip: Array) -> Any:
    """A tanh network with a linear path beside it; one state after the other."""
    answer = np.empty((states.shape[0], skip.shape[1]), np.float32)
    last = len(weights) - 1
    for t in range(states.shape[0]):
        given = states[t]
        for layer in range(last):
            weight = weights[layer]
            hidden = biases[layer].copy()
            for i in range(weight.shape[0]):
                x = given[i]
                for j in range(weight.shape[1]):
                    hidden[j] += x * weight[i, j]
            _tanh_in_place(hidden)
            given = hidden
        # Large terms of opposite signs, as trends have, cancel: summed in double precision
        total = biases[last].astype(np.float64)
        for i in range(weights[last].shape[0]):
            for j in range(total.shape[0]):
                total[j] += given[i] * weights[last][i, j]
        for i in range(skip.shape[0]):
            for j in range(total.shape[0]):
                total[j] += states[t, i] * skip[i, j]
        answer[t] = total
    return answer


@_entry
def pack(
    keys: Array, values: Array, centre: Array, key_blocks: Array, bias: Array, value_blocks: Array
) -> None:
    """2 k, -|k|^2 and v into blocks, k from the centre."""
    for i in range(keys.shape[0]):
        block, place = i // BLOCK, i % BLOCK
        square = _ZERO
        for a in range(keys.shape[1]):
            x = keys[i, a] - centre[a]
            square += x * x
            key_blocks[block, a, place] = x + x
        bias[block, place] = -square
        for a in range(values.shape[1]):
            value_blocks[block, a, place] = values[i, a]


@_entry
def unpack(key_blocks: Array, d_blocks: Array, d_bias: Array, d_keys: Array) -> None:
    """dk = 2 sum_t dlogits q_t - 2 k sum_t dlogits, row by row."""
    for i in range(d_keys.shape[0]):
        block, place = i // BLOCK, i % BLOCK
        pull = d_bias[block, place]
        for a in range(d_keys.shape[1]):
            along = d_blocks[block, a, place]
            d_keys[i, a] = along + along - key_blocks[block, a, place] * pull
