"""Where the time of a round on Flower goes, measured at the server's grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.deploy.long_poll import WakingGrid

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid


class MeteredGrid(WakingGrid):
    """A grid that knows how many nodes are connected and how long its parts of a round took.

    Args:
        grid: Flower's grid.
        folder: the folder of the gateway's socket.
        clock: what time it is.
    """

    def __init__(self, grid: Grid, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(grid, folder)
        self.connected = 0
        self._clock = clock
        self._began = self._sent = clock()  # of this round; of the wait for answers
        self._send = self._answers = 0.0

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        ids = list(self._grid.get_node_ids())
        self.connected = len(ids)
        return ids

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages; returns their ids."""
        before = self._clock()
        ids = super().push_messages(messages)
        self._sent = self._clock()
        self._send += self._sent - before
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetches answers."""
        replies = list(self._grid.pull_messages(message_ids))
        if replies:
            now = self._clock()
            self._answers += now - self._sent
            self._sent = now
        return replies

    def read_parts(self) -> dict[str, float]:
        """Seconds since the last call: of sending, of waiting for answers, and of the server's own work."""
        now = self._clock()
        parts = {"send": self._send, "answers": self._answers}
        parts["server"] = now - self._began - sum(parts.values())
        self._began, self._send, self._answers = now, 0.0, 0.0
        return parts
