"""Whether a GPU answers as it should: `python -m imel.bench.gpu --check`.

The fused kernel against float64 where it could go wrong, and whole runs of IMeL on the GPU against
the same runs on the CPU. Raises where something is off.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from imel.algorithm import IMeL
from imel.kernels import kernel_interpolation
from imel.kernels_cuda import FusedMemories, fused_interpolation

TOLERANCES = {"medium": 2e-2, "high": 1e-4, "highest": 5e-5}
"""Relative errors of answers and gradients that float32 numbers may have, by matmul precision."""

_STATES = np.random.default_rng(0).uniform(-1.0, 1.0, (64, 3)).astype(np.float32)
"""Observations of the pendulum."""


class Inputs(NamedTuple):
    """The arguments of an interpolation."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    query_episodes: Tensor | None
    key_episodes: Tensor | None

    def leaves(self, dtype: torch.dtype) -> Inputs:
        """The same in another precision, asking for gradients."""
        numbers = [x.detach().to(dtype).clone().requires_grad_() for x in self[:3]]
        return self._replace(queries=numbers[0], keys=numbers[1], values=numbers[2])


@dataclass(frozen=True)
class Case:
    """A problem to be answered: its shape, and what is special about it."""

    queries: int
    keys: int
    features: int
    values: int
    masked: bool = True
    normalised: bool = True
    far: float = 0.0
    """How far away from all keys the first queries are."""

    def inputs(self, device: str) -> Inputs:
        """Queries and keys of ragged episodes, out of order."""
        draw = torch.Generator().manual_seed(self.keys)
        queries, keys = (
            0.7 * torch.randn(count, self.features, generator=draw)
            for count in (self.queries, self.keys)
        )
        queries[:3] += self.far
        values = torch.randn(self.keys, self.values, generator=draw) + 2.0
        # Some queries are of an episode that no key is of
        episodes = [
            torch.randint(0, most, (count,), generator=draw).square()
            for most, count in ((9, self.queries), (7, self.keys))
        ]
        own = [ids.to(device) if self.masked else None for ids in episodes]
        return Inputs(queries.to(device), keys.to(device), values.to(device), own[0], own[1])


CASES = (
    Case(37, 300, 3, 2),
    Case(130, 131, 16, 16),
    Case(70, 140, 10, 13, masked=False, normalised=False),
    Case(20, 150, 8, 1, normalised=False),
    Case(20, 150, 8, 3, far=15.0),
    Case(5, 140, 4, 50),
)


def errors(case: Case, device: str) -> dict[str, float]:
    """Relative errors of the answer and the gradients against float64."""
    single, double = (case.inputs(device).leaves(dtype) for dtype in (torch.float32, torch.float64))
    answer = fused_interpolation(*single, normalised=case.normalised)
    exact = plain_interpolation(double, case.normalised)
    gradient = torch.randn_like(answer)
    torch.autograd.backward(answer, gradient)
    torch.autograd.backward(exact, gradient.double())
    return {
        "answer": relative_error(answer, exact),
        "d_queries": relative_error(single.queries.grad, double.queries.grad),
        "d_keys": relative_error(single.keys.grad, double.keys.grad),
        "d_values": relative_error(single.values.grad, double.values.grad),
    }


def plain_interpolation(of: Inputs, normalised: bool) -> Tensor:
    """What the kernel is to compute, as one would first write it."""
    logits = -(of.queries[:, None] - of.keys[None]).square().sum(dim=2)
    if of.query_episodes is not None and of.key_episodes is not None:
        own = of.query_episodes[:, None] == of.key_episodes
        logits = logits.masked_fill(own, -torch.inf)
    return (logits.softmax(dim=1) if normalised else logits.exp()) @ of.values


def relative_error(found: Tensor | None, exact: Tensor | None) -> float:
    """|found - exact| / |exact|, over all numbers together."""
    assert found is not None
    assert exact is not None
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


def check_kernel() -> None:
    """Every case at every precision, and that IMeL's function is the fused one."""
    before = torch.get_float32_matmul_precision()
    for precision, tolerance in TOLERANCES.items():
        torch.set_float32_matmul_precision(precision)
        for case in CASES:
            found = errors(case, "cuda")
            print(f"{precision:8} {case}:", {name: f"{error:.0e}" for name, error in found.items()})
            # Far away logits are thousands, of which float32 keeps three decimals
            allowed = tolerance if not case.far else 100.0 * tolerance
            assert max(found.values()) < allowed, "the kernel is less exact than it should be"
    torch.set_float32_matmul_precision(before)
    of = CASES[1].inputs("cuda")
    assert torch.equal(kernel_interpolation(*of), fused_interpolation(*of))
    free = of._replace(query_episodes=None, key_episodes=None)
    plain = plain_interpolation(free.leaves(torch.float64), normalised=True)
    answer = FusedMemories(of.keys, of.values)(of.queries)
    assert relative_error(answer, plain) < TOLERANCES["highest"]


def check_runs(total_timesteps: int) -> None:
    """A run on the GPU begins as on the CPU, is saved, and goes on the same from the file."""
    for preset in ("plain", "anchored"):
        first, last, seconds = {}, {}, {}
        for device in ("cpu", "cuda"):
            model = IMeL("MkiPolicy", "Pendulum-v1", preset=preset, seed=0, device=device)
            start = time.perf_counter()
            model.learn(model.settings.batch_size)
            first[device] = model.predict(_STATES, deterministic=True)[0]
            model.learn(total_timesteps, reset_num_timesteps=False)
            seconds[device] = time.perf_counter() - start
            last[device] = float(np.mean([episode["r"] for episode in model.ep_info_buffer or ()]))
            _check_file(model, device)
        difference = float(np.abs(first["cpu"] - first["cuda"]).max())
        print(
            f"{preset:8} after one iteration actions differ by {difference:.1e}; "
            f"return over {total_timesteps} steps {last['cpu']:.0f} on the CPU, "
            f"{last['cuda']:.0f} on the GPU; {seconds['cpu']:.1f} s and {seconds['cuda']:.1f} s"
        )
        assert difference < 0.02, "the GPU's run is not the CPU's"


def _check_file(model: IMeL, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.imel"
        model.save(path)
        again = IMeL.load(path, device=device)
    actions, loaded = (some.predict(_STATES, deterministic=True)[0] for some in (model, again))
    assert np.array_equal(actions, loaded), "a saved model acts differently"
