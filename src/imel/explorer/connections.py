"""Connections to the explorer: those that send nothing whole are dropped, others are served.

A client that sends half a request, or reads half an answer, holds a place. So each has a few
seconds, and when there are too many the longest of those that wait goes first.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from imel.explorer.guard import HEADERS

SECONDS, MOST = 5.0, 64
"""For a whole request, and connections at the same time."""


class Connection(H11Protocol):
    """A connection that has to get on with it."""

    _deadline: asyncio.TimerHandle | None = None  # for a whole request
    _stall: asyncio.TimerHandle | None = None  # for reading on

    @property
    def waiting(self) -> bool:
        """Whether no whole request of it is being answered."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Make room for the connection, and give it its time."""
        if len(self.connections) >= MOST:
            idle: list[Any] = [one for one in self.connections if getattr(one, "waiting", False)]
            if idle:
                min(idle, key=lambda one: one.since).drop()
        self.since = self.loop.time()
        super().connection_made(transport)
        self._deadline = self.loop.call_later(SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Take what has come; the time of another request begins with its first byte."""
        if self._deadline is None and self.waiting:
            self._deadline = self.loop.call_later(SECONDS, self._give_up)
        super().data_received(data)
        if not self.waiting:
            self._forget_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget about the connection."""
        self._forget_deadline()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that does not read what it asked for, but not for ever."""
        super().pause_writing()
        self._stall = self.loop.call_later(SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Go on sending."""
        if self._stall is not None:
            self._stall.cancel()
        super().resume_writing()

    def drop(self) -> None:
        """End the connection without an answer."""
        self._forget_deadline()
        self.connections.discard(self)
        self.transport.abort()

    def _give_up(self) -> None:
        self._deadline = None
        if self.waiting:
            self.drop()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with the headers of every answer."""
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        events = (
            h11.Response(status_code=400, headers=[*headers, *HEADERS], reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
