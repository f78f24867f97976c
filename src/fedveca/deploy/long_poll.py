"""Long polling: a node's question for messages that has no answer yet is held, and asked again when there is one.

The server's app says that it has sent orders by one datagram on the socket `wake.sock`, in the folder that only its
owner can enter. Without that word the question is asked again as often as a SuperNode of Flower would ask.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.deploy.private_api import find_socket

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

WAKE_SOCKET = "wake.sock"
HOLD_SECONDS = 20.0  # a SuperNode gives up after 30 s, and most networks forget a silent connection after 60
ASK_SECONDS = 3.0  # between two questions that nobody announced: Flower's own interval
ASKING = 32  # questions to the SuperLink at the same time, after a word that concerns all nodes


class WakeSignal(asyncio.DatagramProtocol):
    """The word that there is something new; whoever waits goes on at each."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    async def listen(self, folder: Path) -> asyncio.BaseTransport:
        """Listens on the folder's socket until the transport is closed."""
        path = find_socket(folder, WAKE_SOCKET)
        Path(path).unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        listener.bind(path)
        return (await loop.create_datagram_endpoint(lambda: self, sock=listener))[0]

    def datagram_received(self, data: bytes, addr: object) -> None:
        """One word, whatever it says: only the owner of the folder can send it."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, count: int, seconds: float, peer: asyncio.StreamReader) -> None:
        """Returns when there was a word after the first `count`, or after `seconds`.

        Raises:
            EOFError: if the peer has left, or sends more before it has its answer.
        """
        if self.count != count:
            return
        changed, left = asyncio.create_task(self._changed.wait()), asyncio.create_task(peer.read(1))
        try:
            await asyncio.wait((changed, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                raise EOFError
        finally:
            for task in (changed, left):
                task.cancel()
            await asyncio.gather(changed, left, return_exceptions=True)


def wake_nodes(folder: Path) -> None:
    """Says to the gateway with this folder that there are messages; nothing happens where none listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.setblocking(False)
        sender.sendto(b"wake", find_socket(folder, WAKE_SOCKET))


class WakingGrid:
    """Flower's grid; nodes are woken once their messages are at the SuperLink.

    Args:
        grid: Flower's grid.
        folder: the folder of the gateway's socket.
    """

    def __init__(self, grid: Grid, folder: Path) -> None:
        self._grid, self._folder = grid, folder

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages and wakes the nodes; returns the messages' ids."""
        ids = list(self._grid.push_messages(messages))
        if ids:
            wake_nodes(self._folder)
        return ids
