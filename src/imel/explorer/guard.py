"""What is refused before it reaches the explorer: foreign pages, odd paths, too large requests.

A page on the web may send requests to this machine, and may point a name of its own at it (DNS
rebinding). So the Host must be one the server was started for, the Origin its own, and whatever
changes or starts something must carry a header that no foreign form can send.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_HEADER = "x-imel-explorer"
"""Sent by the page with every POST; a foreign page could not without being asked first."""
LARGEST_BODY = 4 << 20
LONGEST_QUERY = 2048
_PATH = re.compile(r"/[A-Za-z0-9_./-]{0,200}")

# regl compiles its draw calls from text, hence 'unsafe-eval'; scripts come from this server alone.
# Its spatial index is built in a worker made from a blob.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self' 'unsafe-eval'",
        "worker-src blob:",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""Of every answer."""
AT_ONCE = 32
"""Requests that are answered at the same time."""


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._answering = 0
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, hand it on with its body read, and mark the answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websocket is ever accepted

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        try:
            self._check(scope)
            body = await _read(receive)
            if self._answering >= AT_ONCE:
                raise HTTPException(503, "too much is asked at once; try again")
        except HTTPException as refused:
            document, headers = {"error": refused.detail}, {"connection": "close"}
            await JSONResponse(document, refused.status_code, headers)(scope, receive, marked)
            return

        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        self._answering += 1
        try:
            await self._app(scope, replay, marked)
        finally:
            self._answering -= 1

    def _check(self, scope: Scope) -> None:
        headers = _single_headers(scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            raise HTTPException(403, "this server does not answer to that Host")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            raise HTTPException(403, "requests from other origins are refused")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise HTTPException(403, "requests from other sites are refused")
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("latin-1").partition("?")[0]
        if not _PATH.fullmatch(path) or "//" in path or ".." in path:
            raise HTTPException(400, "there is no such path")
        if len(scope["query_string"]) > LONGEST_QUERY:
            raise HTTPException(400, f"a query has at most {LONGEST_QUERY} bytes")
        if scope["method"] == "POST":
            if OWN_HEADER not in headers:
                raise HTTPException(403, f"a POST needs the header {OWN_HEADER}")
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                raise HTTPException(400, "the body of a POST is JSON, and says so")
        elif scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(400, "only GET and POST are answered")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            raise HTTPException(400, f"a body has at most {LARGEST_BODY} bytes")


def _single_headers(scope: Scope) -> dict[str, str]:
    """The headers; one that decides something must not come twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "content-length", "content-type"):
            raise HTTPException(400, f"the header {key} came twice")
        found[key] = value.decode("latin-1")
    return found


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "the request ended before its body")
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise HTTPException(400, f"a body has at most {LARGEST_BODY} bytes")
        if not message.get("more_body", False):
            return bytes(body)
