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

from imel.kernels_cuda import FusedMemories, fused_interpolation
from imel.kernels_triton import interpolation_pass

_FEATURES, _VALUES, _EPISODE = 16, 16, 500
_SIZES = (16384, 65536, 262144, 1048576)
_SAMPLED = 128
_EXPONENTIALS_PER_CLOCK = 16  # of one multiprocessor, by NVIDIA's tables for Ampere and Hopper
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
    """Times the time of the exponentials alone."""
    bits_repeat: bool | None = None


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
        return cls(
            *(column[order].to(dtype) for column in (queries, keys, values)), episodes[order]
        )

    def leaves(self) -> Problem:
        """The same, asking for gradients."""
        features = [x.clone().requires_grad_() for x in self[:3]]
        return Problem(*features, self.episodes)

    def answer(self) -> Tensor:
        """The fused answer."""
        return fused_interpolation(
            self.queries, self.keys, self.values, self.episodes, self.episodes
        )


def errors(size: int, precision: str) -> dict[str, float]:
    """Relative errors of the answer and the gradients at sampled queries, against float64."""
    exact = Problem.of(size, _dtype(precision))
    fused = exact.leaves()
    rows = torch.arange(0, size, max(1, size // _SAMPLED), device="cuda")
    answer = fused.answer()
    gradient = torch.zeros_like(answer)
    gradient[rows] = torch.randn(len(rows), _VALUES, device="cuda").to(answer.dtype)
    answer.backward(gradient)  # type: ignore[no-untyped-call]
    queries, keys, values = (x.double().requires_grad_() for x in exact[:3])
    logits = 2.0 * queries[rows] @ keys.T - keys.square().sum(dim=1)
    own = exact.episodes[rows, None] == exact.episodes
    reference = logits.masked_fill(own, -torch.inf).softmax(dim=1) @ values
    reference.backward(gradient[rows].double())
    pairs = {
        "answer": (answer[rows], reference),
        "d_queries": (fused.queries.grad, queries.grad),
        "d_keys": (fused.keys.grad, keys.grad),
        "d_values": (fused.values.grad, values.grad),
    }
    return {name: _relative(found, exact) for name, (found, exact) in pairs.items()}


def _relative(found: Tensor | None, exact: Tensor | None) -> float:
    assert found is not None
    assert exact is not None
    return float((found.double() - exact).norm() / exact.norm())


def fit_figures(size: int, precision: str, floor: Callable[[int, int], float]) -> list[Figure]:
    """Times of the leave-one-episode-out pass over a whole memory."""
    torch.set_float32_matmul_precision("highest" if precision == "bfloat16" else precision)
    problem = Problem.of(size, _dtype(precision))
    leaves, gradient = problem.leaves(), torch.ones_like(problem.queries[:, :_VALUES])

    def both() -> tuple[Tensor | None, ...]:
        for leaf in leaves[:3]:
            leaf.grad = None
        leaves.answer().backward(gradient)  # type: ignore[no-untyped-call]
        return tuple(leaf.grad for leaf in leaves[:3])

    repeat = None
    if size <= _SIZES[1]:
        pairs = zip(both(), both(), strict=True)
        repeat = all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)
    times = {"forward": milliseconds(problem.answer), "forward and backward": milliseconds(both)}
    return [
        Figure(what, size, size, precision, time, time / floor(size, size), repeat)
        for what, time in times.items()
    ]


def acting_figures(
    states: int, size: int, precision: str, floor: Callable[[int, int], float]
) -> list[Figure]:
    """Times of answering some states from a memory whose operands are laid out once."""
    torch.set_float32_matmul_precision("highest" if precision == "bfloat16" else precision)
    problem = Problem.of(size, _dtype(precision))
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
    return [
        Figure(what, states, size, precision, time, time / floor(states, size))
        for what, time in times.items()
    ]


def milliseconds(work: Callable[[], object], repetitions: int = 3) -> float:
    """Median time on the GPU, after one run to warm up."""
    work()
    times = []
    for _ in range(repetitions):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _dtype(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def clock_under_load() -> float:
    """The multiprocessors' clock in Hz while the kernel runs."""
    problem = Problem.of(_SIZES[2], torch.bfloat16)
    problem.answer()
    for _ in range(20):
        problem.answer()
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    seen = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    torch.cuda.synchronize()
    return 1e6 * float(seen.split()[0])


def compiled_variants() -> int:
    """Kernels compiled so far in this process."""
    return sum(len(caches[0]) for caches in interpolation_pass.device_caches.values())


def measure(quick: bool) -> dict[str, object]:
    """All figures, printed as they come."""
    properties = torch.cuda.get_device_properties(0)
    clock = clock_under_load()

    def floor(queries: int, memories: int) -> float:
        rate = _EXPONENTIALS_PER_CLOCK * properties.multi_processor_count * clock
        return 1e3 * queries * memories / rate

    print(f"{properties.name}, {properties.multi_processor_count} SMs at {clock / 1e9:.3f} GHz")
    sizes = _SIZES[:2] if quick else _SIZES
    found: dict[str, dict[str, float]] = {}
    figures: list[Figure] = []
    compiled: dict[str, list[int]] = {}
    for precision in _PRECISIONS:
        for size in (4096, sizes[-1]):
            torch.set_float32_matmul_precision("highest" if precision == "bfloat16" else precision)
            found[f"{precision} {size}"] = errors(size, precision)
            print(
                f"errors {precision} {size}:",
                {k: f"{v:.1e}" for k, v in found[f"{precision} {size}"].items()},
                flush=True,
            )
        if precision == "medium":  # the kernel of bfloat16, fed from float32
            continue
        counts = [compiled_variants()]
        for size in sizes:
            rows = fit_figures(size, precision, floor)
            figures += rows
            for row in rows:
                _print(row)
        for states in (64, 1024):
            rows = acting_figures(states, sizes[-1], precision, floor)
            figures += rows
            for row in rows:
                _print(row)
        compiled[precision] = [*counts, compiled_variants()]
    return {
        "device": properties.name,
        "clock_hz": clock,
        "torch": torch.__version__,
        "errors": found,
        "figures": [asdict(figure) for figure in figures],
        "compiled_variants": compiled,
    }


def _print(row: Figure) -> None:
    print(
        f"{row.what:34} {row.queries:>8} x {row.memories:<8} {row.precision:9} "
        f"{row.milliseconds:9.3f} ms {row.floors:6.2f} floors"
        + ("" if row.bits_repeat is None else f"  bits repeat: {row.bits_repeat}"),
        flush=True,
    )


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m imel.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--quick", action="store_true", help="up to 65,536 memories only")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    figures = measure(arguments.quick)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
