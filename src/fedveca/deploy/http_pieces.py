"""HTTP in pieces between two connections: read an event, write it, never more than one piece in memory."""

from __future__ import annotations

import asyncio
import re

import h11

_ANSWERS = re.compile(rb"content-type|content-encoding|retry-after|traceparent|flwr-[a-z-]+")
IDLE_SECONDS = 30.0  # between two pieces of a body, and between two requests of a node
REQUEST_SECONDS = 600.0


async def read_event(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    seconds: float = REQUEST_SECONDS,
    most: int = 64 * 1024,
    writer: asyncio.StreamWriter | None = None,
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    """The next event of one side; a client that waits for "100 Continue" gets it."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        if writer is not None and connection.they_are_waiting_for_100_continue:
            await write(writer, connection.send(h11.InformationalResponse(status_code=100, headers=[])))
        async with asyncio.timeout(seconds):
            connection.receive_data(await reader.read(most))
    if isinstance(event, h11.ConnectionClosed):
        raise EOFError
    return event


async def read_head(upstream: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Response, h11.Event | None]:
    """The head of the server's answer and the first piece of its body; None where it has no body."""
    head = await read_event(upstream, reader)
    while isinstance(head, h11.InformationalResponse):
        head = await read_event(upstream, reader)
    event = await read_event(upstream, reader)
    if not isinstance(head, h11.Response) or not isinstance(event, h11.Data | h11.EndOfMessage):
        raise EOFError
    return head, None if isinstance(event, h11.EndOfMessage) else event


async def forward_answer(
    head: h11.Response,
    event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED] | None,
    upstream: h11.Connection,
    reader: asyncio.StreamReader,
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
) -> None:
    """Forwards the server's answer, of which the head and the first piece were read."""
    names = (b"content-length", b"transfer-encoding")
    headers = [(n, v) for n, v in head.headers if _ANSWERS.fullmatch(n) or n in names]
    await write(writer, connection.send(h11.Response(status_code=head.status_code, headers=headers)))
    while isinstance(event, h11.Data):
        await write(writer, connection.send(event))
        event = await read_event(upstream, reader)
    await write(writer, connection.send(h11.EndOfMessage()))


async def write(writer: asyncio.StreamWriter, content: bytes | None) -> None:
    """Writes, and waits until the other side has read enough."""
    writer.write(content or b"")
    async with asyncio.timeout(IDLE_SECONDS * 2):
        await writer.drain()
