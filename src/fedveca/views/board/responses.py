"""How the board sends its answers: one for many who ask, piece by piece, within bounds."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_SLICE_BYTES, _WAITING_BYTES = 2**16, 2**28  # of an answer that are sent at a time, and of all that wait for readers


class SharedAnswer:
    """One answer for all who asked before it was begun: many requests at once cost little more than one."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._began, self._body = -math.inf, b""

    def __call__(self, asked: float) -> bytes:
        with self._lock:
            if self._began <= asked:
                began = time.monotonic()
                self._body, self._began = self._make(), began
            return self._body


class SlicedResponse(Response):
    """Sent piece by piece as it is read: a slow reader takes the memory of the body, which others may share."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = max(0, len(self.body) - 1) // _SLICE_BYTES * _SLICE_BYTES
        for at in range(0, last + 1, _SLICE_BYTES):
            piece = bytes(self.body[at : at + _SLICE_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": at < last})


class BoundedResponse(SlicedResponse):
    """A body that is not shared: all that wait for their readers are bounded together."""

    waiting = 0  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = BoundedResponse
        if kind.waiting and kind.waiting + len(self.body) > _WAITING_BYTES:
            busy = {"error": "too many answers are being read slowly; ask again later"}
            await Response(encode_json(busy), 503, media_type="application/json")(scope, receive, send)
            return
        kind.waiting += len(self.body)
        try:
            await super().__call__(scope, receive, send)
        finally:
            kind.waiting -= len(self.body)


def encode_json(content: object) -> bytes:
    """Short JSON, without what JSON does not have."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
