"""Connections with bounds: on their number, on the time a request takes to arrive and an answer to be read."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 256  # connections; fewer where the process may open few files
HEAD = 2**16  # bytes of a request's head, and one piece of what the socket holds
ARRIVE = 10.0  # seconds for a whole request, from the connection's start or the answer before it
STALL = 20.0  # seconds in which a client that is being answered reads nothing
KERNEL = 2**17  # bytes of an answer that the system holds: so little that slow reading is seen as reading


class Connection(H11Protocol):
    """One connection. While it waits for a request or for its reader a clock runs; where room is needed it goes."""

    clock: asyncio.TimerHandle | None = None
    since = 0.0
    unread = 0  # bytes that were not yet written when the clock started

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL)
        self._start(ARRIVE)
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
        self._start(ARRIVE)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start(STALL)

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
        """What was answered may still be read; who reads none of it is dropped."""
        if 0 < self.transport.get_write_buffer_size() < self.unread:
            self._start(STALL)
        elif self._answering() or self.transport.is_closing():
            self.drop()
        else:
            self.transport.close()
            self._start(STALL)


def server(application: Any) -> uvicorn.Server:
    """A server with these bounds; httptools and uvloop, which it would take where they are installed, have others."""
    room = _room()
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
        h11_max_incomplete_event_size=HEAD,
        limit_concurrency=room + 1,
    )
    return uvicorn.Server(config)


def _room() -> int:
    """Connections for which there are descriptors: as many again are accepted before the first of them is counted."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else max(8, min(MOST, files // 4))
