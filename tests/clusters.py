"""A simulated Ray cluster of two machines, of which one can be killed, and environments for it."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from toy import FloatArray, PointEnv, ScriptedEnv

SETTINGS = {
    "worker_niceness": 0,
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


class Raises(PointEnv):
    def step(self, action: FloatArray) -> Any:
        if self._point[0] > 0.985:  # which depends on seeds alone
            raise RuntimeError("the arm fell off")
        return super().step(action)


class Drifts(PointEnv):
    """Draws from a generator that no seed reaches."""

    def _draw(self) -> FloatArray:
        self._point = np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
        return self._point


class Slow(ScriptedEnv):
    def step(self, action: FloatArray) -> Any:
        time.sleep(0.01)
        return super().step(action)


for _kind in ("Raises", "Drifts", "Slow"):
    gymnasium.register(f"Ray{_kind}-v0", f"clusters:{_kind}")


def prepare() -> None:
    """Before Ray is first imported: ask for a token, and let workers import this module."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@contextmanager
def two_machines(cores: int = 1) -> Iterator[tuple[Any, Any]]:
    """The cluster, with this process connected to its head, and its other machine."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": cores, "include_dashboard": False, "_system_config": SETTINGS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        other = cluster.add_node(num_cpus=cores)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster, other
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
