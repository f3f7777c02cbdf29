"""Joining a Ray cluster, or starting one on this machine: the one place where Ray is started."""

from __future__ import annotations

import logging
import socket
from typing import Any

from imel.errors import ImelError, one_line
from imel.extras import require

LOCAL = "local"
_SECONDS_TO_ANSWER = 10.0


def connect(address: str = LOCAL) -> Any:
    """Ray's module, connected: to a cluster of this process's own if the address is "local".

    Another is "auto" (a cluster this machine belongs to), host:port, or ray://host:port. A process
    that is connected already stays where it is.
    """
    ray = require("ray", "ray")
    if ray.is_initialized():
        return ray
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    # Ray asks for a token by default in a cluster of its own: whoever reaches one without can run
    # code on it
    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        if colon:  # at once refuse what Ray would go on trying to reach for ten minutes
            place = (host.strip("[]"), int(port))
            socket.create_connection(place, timeout=_SECONDS_TO_ANSWER).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # no route, a wrong token, a version that does not match
        raise ImelError(f"cannot connect to Ray at '{address}': {one_line(error)}") from None
    return ray


def cores(ray: Any) -> int:
    """The cores of all machines that are in the cluster now."""
    return int(ray.cluster_resources().get("CPU", 0))
