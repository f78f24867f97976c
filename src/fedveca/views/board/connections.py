"""Connections with bounds: on their number, on the time a request takes to arrive and an answer to be read."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS = 256  # fewer where the process may open few files
_HEAD_BYTES = 2**16  # of a request, and one piece of what the socket holds
_REQUEST_SECONDS = 10.0  # for a whole request, from the connection's start or the answer before it
_STALL_SECONDS = 20.0  # in which a client that is being answered reads nothing
_SOCKET_BYTES = 2**17  # of an answer that the system holds: so little that slow reading is seen as reading


class Connection(H11Protocol):
    """One connection. While it waits for a request or for its reader, a clock runs; the longest wait makes room."""

    clock: asyncio.TimerHandle | None = None
    since = 0.0
    unread = 0  # bytes that were not yet written when the clock started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._start(_REQUEST_SECONDS)
        if self.limit_concurrency and len(self.connections) >= self.limit_concurrency:
            waiting = [c for c in self.connections if isinstance(c, Connection) and c.clock]
            min(waiting, key=lambda c: c.since).drop()  # this one where no other waits

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._answering():
            self._stop()

    def on_response_complete(self) -> None:
        self._start(_REQUEST_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start(_STALL_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering():
            self._stop()

    def drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start(self, seconds: float) -> None:
        self._stop()
        self.since, self.unread = self.loop.time(), self.transport.get_write_buffer_size()
        self.clock = self.loop.call_later(seconds, self._expire)

    def _stop(self) -> None:
        if self.clock:
            self.clock.cancel()
            self.clock = None

    def _expire(self) -> None:
        """An answer may still be read; a client that reads none of it is disconnected."""
        if 0 < self.transport.get_write_buffer_size() < self.unread:
            self._start(_STALL_SECONDS)
        elif self._answering() or self.transport.is_closing():
            self.drop()
        else:
            self.transport.close()
            self._start(_STALL_SECONDS)


def make_server(application: ASGIApp) -> uvicorn.Server:
    """A server with these bounds; httptools and uvloop, which it would use where they are installed, have others."""
    room = _count_connections()
    config = uvicorn.Config(
        application,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        backlog=room // 2,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        limit_concurrency=room + 1,
    )
    return uvicorn.Server(config)


def _count_connections() -> int:
    """Connections for which there are descriptors: as many again are accepted before the first of them is counted."""
    try:
        import resource
    except ImportError:  # Windows
        return _CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(_CONNECTIONS, files // 4))
