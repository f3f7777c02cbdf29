"""A simulated Ray cluster of two machines, of which one can be killed."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SETTINGS = {
    "worker_niceness": 0,
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


def ask_for_a_token() -> None:
    """Before Ray is first imported: it reads this once."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def two_machines(cores: int = 1) -> Iterator[tuple[Any, Any]]:
    """The cluster, with this process connected to its head, and its other machine."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cores,
            "include_dashboard": False,
            "_system_config": SETTINGS,
        },
    )
    try:
        other = cluster.add_node(num_cpus=cores)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster, other
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
