"""The explorer as a web server on this machine: the page, its answers, and where it listens."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from importlib import resources

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from imel.errors import ImelError
from imel.explorer.api import make_router
from imel.explorer.connections import Connection
from imel.explorer.guard import Guard
from imel.explorer.session import Session
from imel.pictures.rendering import UnclearStateError

FIRST_PORT, PORTS_TRIED = 8642, 20

_STATIC = {
    # what is asked for: (file of the package, media type); nothing else is ever read
    "/": ("index.html", "text/html; charset=utf-8"),
    "/explorer.css": ("explorer.css", "text/css; charset=utf-8"),
    "/explorer.js": ("explorer.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/licences.txt": ("licences.txt", "text/plain; charset=utf-8"),
}


def make_app(session: Session, hosts: Collection[str]) -> FastAPI:
    """The application; it answers only to the given Host headers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        session.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(make_router(session))
    folder = resources.files("imel.explorer") / "static"
    for path, (name, media_type) in _STATIC.items():
        content = (folder / name).read_bytes()
        app.add_api_route(path, _file(content, media_type), methods=["GET"])
    for kind in (ImelError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _file(content: bytes, media_type: str) -> Callable[[], Response]:
    return lambda: Response(content, media_type=media_type)


def _refused(_: Request, error: Exception) -> Response:
    status, reason = 400, str(error)
    if isinstance(error, UnclearStateError):
        status = 404
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        reason = f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}"
    elif isinstance(error, HTTPException):
        status, reason = error.status_code, str(error.detail)
    return JSONResponse({"error": reason}, status_code=status)


# --- where it listens ---


def check_host(host: str, allow_remote: bool) -> None:
    """Refuse to be reached from other machines, unless that was asked for by name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        local, unspecified = host == "localhost", False
    else:
        local, unspecified = address.is_loopback, address.is_unspecified
    if unspecified:
        raise ImelError(
            f"{host} is no address of its own: give the one by which other machines know this one, "
            "so that requests can be checked against it"
        )
    if not local and not allow_remote:
        raise ImelError(
            f"{host} can be reached from other machines, and the explorer asks nobody who they "
            "are; give --allow-remote if that is wanted"
        )


def open_port(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a port, or by default on the first free one of a few."""
    candidates = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else [port]
    reason = ""
    for candidate in candidates:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            reason = error.strerror or str(error)
    if port is not None:
        raise ImelError(f"cannot listen on {host} port {port}: {reason}; give another --port")
    last = FIRST_PORT + PORTS_TRIED - 1
    raise ImelError(
        f"cannot listen on {host}, ports {FIRST_PORT} to {last}: {reason}; give a --port"
    )


def hosts_of(host: str, port: int) -> set[str]:
    """The Host headers of requests that are meant for this server."""
    names = {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host}
    return {f"{name}:{port}" for name in names} | (names if port == 80 else set())


def make_server(session: Session, host: str, listener: socket.socket) -> uvicorn.Server:
    """The server behind a socket."""
    app = make_app(session, hosts_of(host, listener.getsockname()[1]))
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=32 << 10,
    )
    return uvicorn.Server(config)


def serve(session: Session, host: str, listener: socket.socket) -> None:
    """Answer until interrupted."""
    make_server(session, host, listener).run(sockets=[listener])
