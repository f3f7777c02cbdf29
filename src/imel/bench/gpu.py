"""How fast and how exact the fused GPU kernel is: `python -m imel.bench.gpu --out figures.json`.

All against all with every query's own episode left out, as in a fit over the whole memory, and
acting against a large memory. Times are medians over repetitions by CUDA events, errors are
relative to float64; the floor is the time the special-function units need for the exponentials.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from imel.bench.gpu_check import check_kernel, check_runs, relative_error
from imel.kernels_cuda import FusedMemories, fused_interpolation
from imel.kernels_triton import interpolation_pass

_FEATURES, _VALUES, _EPISODE = 16, 16, 500
_SIZES = (16384, 65536, 262144, 1048576)
_SAMPLED = 128
_EXPONENTIALS_PER_CLOCK = 16  # of one multiprocessor, by NVIDIA's tables for Ampere and Hopper
_BASE_CLOCK = 1.755e9
_PRECISIONS = ("bfloat16", "medium", "high", "highest")


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    queries: int
    memories: int
    precision: str
    milliseconds: float
    floors: float
    """Times what the exponentials alone take at the clock measured under load."""
    floors_at_base: float
    """The same at the clock of 1.755 GHz."""
    bits_repeat: bool | None = None

    def __str__(self) -> str:
        repeats = "" if self.bits_repeat is None else f"  bits repeat: {self.bits_repeat}"
        return (
            f"{self.what:33} {self.queries:>8} x {self.memories:<8} {self.precision:9}"
            f"{self.milliseconds:9.3f} ms  {self.floors:6.2f} floors "
            f"({self.floors_at_base:.2f} at 1.755 GHz){repeats}"
        )


class Clock(NamedTuple):
    """What the special-function units can do."""

    hertz: float
    multiprocessors: int

    def figure(
        self, what: str, queries: int, memories: int, precision: str, time: float,
        repeat: bool | None = None,
    ) -> Figure:  # fmt: skip
        """A time in milliseconds beside the time of its exponentials."""
        cycles = queries * memories / (_EXPONENTIALS_PER_CLOCK * self.multiprocessors)
        floors = [time * clock / (1e3 * cycles) for clock in (self.hertz, _BASE_CLOCK)]
        return Figure(what, queries, memories, precision, time, floors[0], floors[1], repeat)


class Problem(NamedTuple):
    """Memories of many episodes and as many queries."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    episodes: Tensor

    @classmethod
    def of(cls, size: int, dtype: torch.dtype = torch.float32) -> Problem:
        """Features as spread as those of a fitted kernel: some dozens of memories count."""
        draw = torch.Generator("cuda").manual_seed(size)
        keys = 0.7 * torch.randn(size, _FEATURES, device="cuda", generator=draw)
        queries = keys + 0.1 * torch.randn(size, _FEATURES, device="cuda", generator=draw)
        values = torch.randn(size, _VALUES, device="cuda", generator=draw)
        episodes = torch.arange(size, device="cuda") // _EPISODE
        order = torch.randperm(size, device="cuda", generator=draw)
        queries, keys, values = (x[order].to(dtype) for x in (queries, keys, values))
        return cls(queries, keys, values, episodes[order])

    def leaves(self) -> Problem:
        """The same, asking for gradients."""
        queries, keys, values = (x.clone().requires_grad_() for x in self[:3])
        return Problem(queries, keys, values, self.episodes)

    def answer(self) -> Tensor:
        """The fused answer."""
        return fused_interpolation(
            self.queries, self.keys, self.values, self.episodes, self.episodes
        )


def errors(size: int, precision: str) -> dict[str, float]:
    """Relative errors of the answer and the gradients at sampled queries, against float64."""
    exact = Problem.of(size, _chosen(precision))
    fused = exact.leaves()
    rows = torch.arange(0, size, max(1, size // _SAMPLED), device="cuda")
    answer = fused.answer()
    gradient = torch.zeros_like(answer)
    gradient[rows] = torch.randn(len(rows), _VALUES, device="cuda").to(answer.dtype)
    torch.autograd.backward(answer, gradient)
    queries, keys, values = (x.double().requires_grad_() for x in exact[:3])
    logits = 2.0 * queries[rows] @ keys.T - keys.square().sum(dim=1)
    own = exact.episodes[rows, None] == exact.episodes
    reference = logits.masked_fill(own, -torch.inf).softmax(dim=1) @ values
    torch.autograd.backward(reference, gradient[rows].double())
    pairs = {
        "answer": (answer[rows], reference),
        "d_queries": (fused.queries.grad, queries.grad),
        "d_keys": (fused.keys.grad, keys.grad),
        "d_values": (fused.values.grad, values.grad),
    }
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def fit_figures(size: int, precision: str, clock: Clock) -> list[Figure]:
    """Times of the leave-one-episode-out pass over a whole memory."""
    problem = Problem.of(size, _chosen(precision))
    leaves, gradient = problem.leaves(), torch.ones_like(problem.queries[:, :_VALUES])

    def both() -> tuple[Tensor | None, ...]:
        for leaf in leaves[:3]:
            leaf.grad = None
        torch.autograd.backward(leaves.answer(), gradient)
        return tuple(leaf.grad for leaf in leaves[:3])

    repeat = None
    if size <= _SIZES[1]:
        pairs = zip(both(), both(), strict=True)
        repeat = all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)
    times = {"forward": milliseconds(problem.answer), "forward and backward": milliseconds(both)}
    return [clock.figure(what, size, size, precision, time, repeat) for what, time in times.items()]


def acting_figures(states: int, size: int, precision: str, clock: Clock) -> list[Figure]:
    """Times of answering some states from a memory whose operands are laid out once."""
    problem = Problem.of(size, _chosen(precision))
    memories = FusedMemories(problem.keys, problem.values)
    queries = problem.queries[:states]
    bias = problem.keys.square().sum(dim=1)

    def plain() -> Tensor:
        return (
            torch.addmm(bias, queries, problem.keys.T, beta=-1.0, alpha=2.0).softmax(1)
            @ problem.values
        )

    times = {"acting": milliseconds(lambda: memories(queries))}
    if states <= 128:
        times["acting, plain matmul and softmax"] = milliseconds(plain)
    return [clock.figure(what, states, size, precision, time) for what, time in times.items()]


def milliseconds(work: Callable[[], object]) -> float:
    """Median time on the GPU over three runs, or over more where they are short."""
    times: list[float] = []
    while len(times) < 3 or (len(times) < 20 and sum(times) < 100.0):
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _chosen(precision: str) -> torch.dtype:
    if precision == "bfloat16":
        return torch.bfloat16
    torch.set_float32_matmul_precision(precision)
    return torch.float32


def clock_under_load() -> Clock:
    """The multiprocessors' clock while the kernel runs."""
    problem = Problem.of(_SIZES[2], torch.bfloat16)
    for _ in range(20):
        problem.answer()
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    seen = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    torch.cuda.synchronize()
    count = torch.cuda.get_device_properties(0).multi_processor_count
    return Clock(1e6 * float(seen.split()[0]), count)


def compiled_variants() -> int:
    """Kernels compiled so far in this process."""
    return sum(len(caches[0]) for caches in interpolation_pass.device_caches.values())


def measure(sizes: tuple[int, ...]) -> dict[str, object]:
    """All figures, printed as they come."""
    name, clock = torch.cuda.get_device_name(), clock_under_load()
    print(f"{name}, {clock.multiprocessors} multiprocessors at {clock.hertz / 1e9:.3f} GHz")
    found: dict[str, dict[str, float]] = {}
    figures: list[Figure] = []
    compiled: dict[str, list[int]] = {}
    for precision in _PRECISIONS:
        for size in (4096, sizes[-1]):
            these = found[f"{precision} {size}"] = errors(size, precision)
            print(f"errors {precision} {size}:", {k: f"{v:.1e}" for k, v in these.items()})
        if precision == "medium":  # the kernel of bfloat16, fed from float32
            continue
        before = compiled_variants()
        rows = [row for size in sizes for row in fit_figures(size, precision, clock)]
        for states in (64, 1024):
            rows += acting_figures(states, sizes[-1], precision, clock)
        print(*rows, sep="\n", flush=True)
        figures += rows
        compiled[precision] = [before, compiled_variants()]
    return {
        "device": name,
        "clock_hz": clock.hertz,
        "torch": torch.__version__,
        "errors": found,
        "figures": [asdict(figure) for figure in figures],
        "compiled_variants_before_and_after_all_sizes": compiled,
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m imel.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--quick", action="store_true", help="up to 65,536 memories only")
    parser.add_argument("--check", action="store_true", help="check answers instead of timing them")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    if arguments.check:
        check_kernel()
        check_runs(total_timesteps=5_000)
        return
    figures = measure(_SIZES[:2] if arguments.quick else _SIZES)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
