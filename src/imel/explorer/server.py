"""The explorer as a web server on this machine: from a request to an answer, and where it listens.

A page on the web may send requests to this machine, and may point a name of its own at it (DNS
rebinding). So the Host must be one the server was started for, and the Origin its own.

Arrays are sent as one run of bytes, so that a hundred thousand memories are a moment:

    uint32 length of the header | header: JSON, padded with spaces | arrays ...

all little-endian. The header's `arrays` names what follows, `[[name, [shape], bytes], ...]`, in
order: whole numbers as float64, which holds them exactly, everything else as float32.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import uvicorn
from pydantic import ValidationError, validate_call
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from imel.errors import ImelError
from imel.explorer.insight import Array
from imel.explorer.session import QUESTIONS, Session
from imel.pictures.rendering import UnclearStateError

FIRST_PORT, PORTS_TRIED = 8642, 20
LARGEST_BODY, LARGEST_HEAD = 4 << 20, 32 << 10
SECONDS, CONNECTIONS = 5.0, 512
"""A client's time to send a request, and connections at the same time."""
HEADERS = {
    # regl compiles its draw calls from text, hence 'unsafe-eval'; scripts come from this server
    # alone. Its spatial index is built in a worker made from a blob
    "content-security-policy": "default-src 'none'; script-src 'self' 'unsafe-eval'; "
    "worker-src blob:; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer."""


# --- from a request to an answer ---


def make_app(session: Session, host: str) -> Starlette:
    """Return the application; it answers to the names of this machine and the given one."""
    answers = {name: getattr(session, f"ask_{name}") for name in QUESTIONS}
    routes = [
        *(Route(f"/api/{name}", _endpoint(answer)) for name, answer in answers.items()),
        Route("/api/forget", _endpoint(session.forget), methods=["POST"]),
        Mount("/", StaticFiles(packages=[("imel.explorer", "static")], html=True)),
    ]
    hosts = ["localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    return Starlette(routes=routes, middleware=[guard])


def _endpoint(question: Callable[..., Any]) -> Callable[[Request], Any]:
    """Return what answers a request by a method, which gets what is given by its names."""
    checked = validate_call(question)

    async def answer(request: Request) -> Response:
        try:
            found = await run_in_threadpool(checked, **await _given(request))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            return JSONResponse({"error": f"{place}: {first['msg']}"}, 400)
        except ImelError as error:
            status = 404 if isinstance(error, UnclearStateError) else 400
            return JSONResponse({"error": str(error)}, status)
        if isinstance(found, tuple):
            return Response(pack(*found), media_type="application/vnd.imel.arrays")
        if isinstance(found, bytes):
            return Response(found, media_type="image/jpeg")
        return Response(status_code=404) if found is None else JSONResponse(found)

    return answer


async def _given(request: Request) -> dict[str, Any]:
    """Return a query, or the body of a POST; refuse what foreign pages cause, and large bodies."""
    headers = request.headers
    own, site = f"http://{headers['host']}", headers.get("sec-fetch-site", "none")
    if headers.get("origin", own) != own or site not in ("same-origin", "none"):
        raise HTTPException(403, "requests from other origins are refused")
    if request.method != "POST":
        return dict(request.query_params)
    if int(headers.get("content-length", LARGEST_BODY + 1)) > LARGEST_BODY:
        raise HTTPException(400, f"a body says its length, at most {LARGEST_BODY} bytes")
    try:
        given = await request.json()
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ImelError("the body of a POST is a JSON object")
    return given


def pack(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return a JSON document and arrays as one run of bytes."""
    typed = [
        (name, np.ascontiguousarray(array, "<f8" if array.dtype.kind in "iu" else "<f4"))
        for name, array in arrays.items()
    ]
    typed.sort(key=lambda item: -item[1].itemsize)  # each is aligned if the first one is
    layout = [[name, list(array.shape), array.itemsize] for name, array in typed]
    header = json.dumps({**document, "arrays": layout}, allow_nan=False).encode()
    header += b" " * (-(4 + len(header)) % 8)
    return b"".join([struct.pack("<I", len(header)), header, *(a.tobytes() for _, a in typed)])


# --- where it listens ---


class Connection(H11Protocol):
    """Drops a client that takes too long to send a request."""

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(SECONDS, transport.abort)

    def handle_events(self) -> None:
        """Stop waiting once a request is whole."""
        super().handle_events()
        if self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete):
            self._patience.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._patience = self.loop.call_later(SECONDS, self.transport.abort)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget about the connection."""
        self._patience.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with the headers of every answer."""
        headers = {**HEADERS, "connection": "close", "content-length": str(len(msg))}
        lines = ["HTTP/1.1 400 Bad Request", *(f"{n}: {v}" for n, v in headers.items()), "", msg]
        self.transport.write("\r\n".join(lines).encode())
        self.transport.close()


def check_host(host: str, allow_remote: bool) -> None:
    """Refuse to be reached from other machines, unless that was asked for by name."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:  # a name
        address = None
    if address is not None and address.is_unspecified:
        raise ImelError(
            f"{host} is no address of its own: give the one by which other machines know this one, "
            "so that requests can be checked against it"
        )
    if not allow_remote and (address is None or not address.is_loopback):
        raise ImelError(
            f"{host} can be reached from other machines, and the explorer asks nobody who they "
            "are; give --allow-remote if that is wanted"
        )


def open_port(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, or by default on the first free one of a few."""
    first, last = (FIRST_PORT, FIRST_PORT + PORTS_TRIED - 1) if port is None else (port, port)
    reason = ""
    for candidate in range(first, last + 1):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            reason = error.strerror or str(error)
    tried = f"port {first}" if first == last else f"ports {first} to {last}"
    raise ImelError(f"cannot listen on {host}, {tried}: {reason}; give another --port")


def make_server(session: Session, host: str, listener: socket.socket) -> uvicorn.Server:
    """Return the server behind a socket."""
    config = uvicorn.Config(
        make_app(session, host),
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=list(HEADERS.items()),
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    return uvicorn.Server(config)
