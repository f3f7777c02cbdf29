"""The kernel average by itself: acting on memories of any size, and leaving every episode out.

The memories are made up: episodes of 500 steps that wander through 16 features, with six values
that follow from them and noise, and a kernel so sharp that an answer rests on some 15 memories.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from statistics import median
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from imel import kernels
from imel.interpolators.base import effective_neighbours
from imel.interpolators.index import IndexedAverage
from imel.kernels import PreparedAverage, denormals_flushed, kernel_interpolation, kernel_logits

_FEATURES, _VALUES, _EPISODE = 16, 6, 500
_NEIGHBOURS = 15.0
_SECONDS = 1.0
"""How long a latency is sampled for."""
_QUERIES = 64
_TILE = (256, 2048)

Figures = dict[str, float]


@cache
def wandering(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and queries from an episode that is not among the keys."""
    generator = np.random.default_rng(0)
    episodes = -(-count // _EPISODE) + 1
    state = generator.normal(size=(episodes, _FEATURES))
    walk = np.empty((episodes, _EPISODE, _FEATURES), np.float32)
    for step in range(_EPISODE):
        state = 0.98 * state + 0.2 * generator.normal(size=state.shape)
        walk[:, step] = state
    keys = torch.from_numpy(walk[:-1].reshape(-1, _FEATURES)[:count])
    queries = torch.from_numpy(walk[-1, :: _EPISODE // _QUERIES][:_QUERIES])
    mixing = torch.from_numpy(generator.normal(size=(_FEATURES, _VALUES))).float()
    noise = torch.from_numpy(generator.normal(size=(count, _VALUES))).float()
    values = torch.tanh(0.5 * keys @ mixing) + 0.3 * noise
    scale = _sharpness(queries[:8], keys)
    return keys * scale, values, queries * scale


def _sharpness(queries: Tensor, keys: Tensor) -> float:
    """The factor at which answers rest on as many memories as they are to."""
    low, high = 0.05, 50.0
    for _ in range(16):
        middle = (low * high) ** 0.5
        weights = kernel_logits(middle * queries, middle * keys).softmax(dim=1)
        wide = float(effective_neighbours(weights).mean()) > _NEIGHBOURS
        low, high = (middle, high) if wide else (low, middle)
    return float((low * high) ** 0.5)


def acting(size: int, form: str) -> Figures:
    """Microseconds for one state and for eight, and the error where an answer is not exact."""
    keys, values, queries = wandering(size)
    started = time.process_time()
    average = IndexedAverage(keys, values) if form == "index" else PreparedAverage(keys, values)
    figures = {"prepare_seconds": time.process_time() - started}
    with torch.inference_mode(), denormals_flushed():
        for count in (1, 8):
            batch = queries[:count].contiguous()
            figures[f"microseconds_{count}"] = 1e6 * _seconds(lambda b=batch: average(b))  # type: ignore[misc]
    if isinstance(average, IndexedAverage):
        figures["error"] = average.error(queries)
    return figures


def leaving_out(count: int, form: str) -> Figures:
    """Seconds of a forward, and a forward and backward pass over all memories."""
    keys, values, _ = wandering(count)
    features = keys.clone().requires_grad_()
    episodes = torch.arange(count) // _EPISODE

    def answer() -> Tensor:
        if form == "matrix":
            return full_matrix(features, values, episodes)
        return kernel_interpolation(features, features, values, episodes, episodes)

    def both() -> None:
        features.grad = None
        answer().square().sum().backward()  # type: ignore[no-untyped-call]

    with without_numba(form == "torch"), denormals_flushed():
        _warm_up(form)
        before = peak_mb()
        both()
        figures = {"extra_mb": peak_mb() - before}
        with torch.no_grad():
            figures["forward_seconds"] = _seconds(answer)
        figures["both_seconds"] = _seconds(both)
    return figures


def _warm_up(form: str) -> None:
    """Let what is compiled be compiled, and libraries take their buffers."""
    few = torch.randn(64, _FEATURES).requires_grad_()
    values, episodes = torch.randn(64, _VALUES), torch.arange(64) // 8
    if form == "matrix":
        answer = full_matrix(few, values, episodes)
    else:
        answer = kernel_interpolation(few, few, values, episodes, episodes)
    answer.sum().backward()  # type: ignore[no-untyped-call]


def full_matrix(features: Tensor, values: Tensor, episodes: Tensor) -> Tensor:
    """As one would first write it."""
    logits = kernel_logits(features, features)
    own = episodes[:, None] == episodes[None, :]
    return logits.masked_fill(own, -torch.inf).softmax(dim=1) @ values


def floor(count: int) -> Figures:
    """Seconds that one exponential a pair and the products alone would take on this core.

    Products: logits and values forward; g.v, dq and dk backward. Each on a tile that stays in
    cache, into memory that is there.
    """
    rows, columns = _TILE
    weights, queries, keys, values = (
        torch.randn(shape)
        for shape in ((rows, columns), (rows, _FEATURES), (columns, _FEATURES), (columns, _VALUES))
    )
    answers, out = torch.randn(rows, _VALUES), torch.empty(rows, columns)
    d_queries, d_keys = torch.empty(rows, _FEATURES), torch.empty(columns, _FEATURES)
    work: list[Callable[[], object]] = [
        lambda: torch.exp(weights, out=out),
        lambda: torch.mm(queries, keys.T, out=out),
        lambda: torch.mm(weights, values, out=answers),
    ]
    backward: list[Callable[[], object]] = [
        lambda: torch.mm(answers, values.T, out=out),
        lambda: torch.mm(weights, keys, out=d_queries),
        lambda: torch.mm(weights.T, queries, out=d_keys),
    ]
    tiles = count**2 / (rows * columns)
    forward = sum(_seconds(function) for function in work) * tiles
    return {
        "forward_seconds": forward,
        "both_seconds": forward + sum(_seconds(function) for function in backward) * tiles,
    }


@contextmanager
def without_numba(really: bool) -> Iterator[None]:
    """If `really`, as where there is none."""
    original = kernels.compiled_module
    with patch.object(kernels, "compiled_module", (lambda: None) if really else original):
        yield


def _seconds(function: Callable[[], object]) -> float:
    """The median time of a call."""
    function()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < _SECONDS and len(times) < 2000):
        before = time.process_time()
        function()
        times.append(time.process_time() - before)
    return median(times)


def peak_mb() -> float:
    """The most memory this process has had."""
    try:
        # Unlike getrusage's, it is not inherited from the process that started this one
        with open("/proc/self/status", encoding="utf-8") as file:
            sizes = [line.split()[1] for line in file if line.startswith("VmHWM")]
        return int(sizes[0]) / 1024
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
