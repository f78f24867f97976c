"""The only port of a federation: TLS outside, the SuperLink's Unix socket inside, only the Fleet API between.

A request is forwarded if it is a POST to `/v1/fleet/NAME`, signed by a key whose public half is in the folder of keys.
Anything else is answered with one line and the connection is closed, before a byte of its body is read. Sizes, times
and the number of connections are bounded. The gateway reads heads only: bodies are checked by the SuperLink, then by
the server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import json
import logging
import os
import re
import resource
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import h11
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedveca.deploy.http_pieces import (
    IDLE_SECONDS,
    REQUEST_SECONDS,
    forward_answer,
    read_event,
    read_head,
    write,
)
from fedveca.deploy.long_poll import ASK_SECONDS, ASKING, HOLD_SECONDS, WakeSignal
from fedveca.deploy.monitoring import GATEWAY_FILE, GATEWAY_SECONDS, GatewayFigures
from fedveca.deploy.private_api import find_socket
from fedveca.monitor.logs import configure_logs
from fedveca.monitor.settings import find_log_form, read_monitor

_PULL = b"/v1/fleet/pull-messages"  # a node's question for messages; an answer without a body says that there are none
_PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_HEADERS = re.compile(rb"content-type|accept|accept-encoding|user-agent|traceparent|tracestate|flwr-[a-z-]+")
HEAD_BYTES = 16 * 1024
PULL_BYTES = 4 * 1024  # of such a question; a longer one is not held
BODY_BYTES = 64 * 1024 * 1024  # Flower sends arrays in pieces of 5 MB
HEAD_SECONDS = 15.0  # for the TLS handshake, and for a request's head
LINGER_SECONDS = 2.0  # for a rejected client to read why
CONNECTIONS = 4096  # a node has one for its question, which may be held, and sometimes a second one
UNSIGNED_CONNECTIONS = 128  # those that have not sent a signed request yet
LOG_LINES = 60  # per minute
UNSIGNED_STATUS = 400  # at 401 or 403 a SuperNode would end silently, or say that its run has ended


_log = logging.getLogger("fedveca.gateway")  # the module is run as __main__


class RequestRejected(Exception):
    """A request that is not forwarded: its status and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class NodeKeys:
    """The public keys that may sign, read again whenever their folder changes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._at, self._keys = folder, -1, dict[bytes, ec.EllipticCurvePublicKey]()

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raises RequestRejected unless a known key signed the timestamp; the SuperLink decides how old it may be."""
        try:
            name = base64.b64decode(headers[b"flwr-public-key"], validate=True)
            signature = base64.b64decode(headers[b"flwr-signature"], validate=True)
            signed = headers[b"flwr-timestamp"]
        except (KeyError, binascii.Error) as error:
            raise RequestRejected(UNSIGNED_STATUS, "a registered node's signature is missing") from error
        key = self._read().get(name)
        if key is None:
            raise RequestRejected(UNSIGNED_STATUS, "the key is not registered")
        try:
            key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature as error:
            raise RequestRejected(UNSIGNED_STATUS, "the signature is invalid") from error

    def _read(self) -> dict[bytes, ec.EllipticCurvePublicKey]:
        at = self.folder.stat().st_mtime_ns
        if at != self._at:
            found = {}
            for path in sorted(self.folder.glob("*.pub")):
                with suppress(OSError, ValueError):
                    key = serialization.load_ssh_public_key(path.read_bytes())
                    if isinstance(key, ec.EllipticCurvePublicKey):
                        form = serialization.PublicFormat.SubjectPublicKeyInfo
                        found[key.public_bytes(serialization.Encoding.PEM, form)] = key
            self._keys, self._at = found, at
        return self._keys


class Gateway:
    """Forwards requests to the Fleet API.

    Args:
        keys: the folder with the nodes' public keys, `*.pub` in OpenSSH's form.
        api: the folder of the SuperLink's `api.sock`.
        tls: the folder with `server.pem`, `server.key`, and the `ca.pem` that the SuperLink's certificate is signed by.
        hold: for how many seconds a node's question for messages is held while there are none.
    """

    def __init__(self, keys: Path, api: Path, tls: Path, hold: float = 0.0) -> None:
        self.keys, self.path = NodeKeys(keys), find_socket(api, "api.sock")
        self.api, self.hold, self.news, self.asking = api, hold, WakeSignal(), asyncio.Semaphore(ASKING)
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.outside.minimum_version = ssl.TLSVersion.TLSv1_2
        self.outside.load_cert_chain(tls / "server.pem", tls / "server.key")
        self.inside = ssl.create_default_context(cafile=tls / "ca.pem")
        self.figures = GatewayFigures()
        self.open: set[asyncio.Task[None]] = set()
        self.unsigned: dict[asyncio.Task[None], None] = {}  # connections without a signed request so far, oldest first
        self._minute, self._lines = 0, 0

    async def serve(self, listener: socket.socket) -> None:
        """Accepts connections until it is cancelled."""
        listener.setblocking(False)
        words = await self.news.listen(self.api) if self.hold else None
        try:
            while True:
                try:
                    accepted, address = await asyncio.get_running_loop().sock_accept(listener)
                except OSError:  # out of files, or the connection is gone already
                    await asyncio.sleep(0.1)
                    continue
                task = asyncio.create_task(self._connect(accepted, str(address[0])))
                self.open.add(task)
                self.unsigned[task] = None
                task.add_done_callback(self._forget)
                await asyncio.sleep(0)  # lets the task begin, so that it closes the connection however it ends
                if len(self.unsigned) > UNSIGNED_CONNECTIONS or len(self.open) > CONNECTIONS:
                    oldest = next(iter(self.unsigned))  # a node signs within milliseconds
                    self.unsigned.pop(oldest)
                    oldest.cancel()
        finally:
            if words is not None:
                words.close()
            for task in list(self.open):
                task.cancel()
            await asyncio.gather(*self.open, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.open.discard(task)
        self.unsigned.pop(task, None)

    async def _connect(self, accepted: socket.socket, peer: str) -> None:
        """One connection, from its handshake to its end."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(64 * 1024)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self.outside, ssl_handshake_timeout=HEAD_SECONDS
            )
        except OSError:  # also of ssl: the peer spoke something else, or nothing in time
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
            wait = HEAD_SECONDS
            while await self._request(connection, reader, writer, wait, peer):
                connection.start_next_cycle()
                wait = IDLE_SECONDS
        except (OSError, TimeoutError, EOFError, h11.ProtocolError):
            pass  # the peer has left, or was too slow: there is nobody to answer
        finally:
            transport.abort()

    async def _request(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wait: float,
        peer: str,
    ) -> bool:
        """Handles one request; returns whether another may follow."""
        async with asyncio.timeout(wait):
            try:
                request = await read_event(connection, reader, most=HEAD_BYTES // 4)
            except h11.RemoteProtocolError as error:
                return await self._reject(
                    connection, writer, peer, RequestRejected(error.error_status_hint, "invalid HTTP")
                )
        if not isinstance(request, h11.Request):
            return False
        try:
            headers = self._check(request)
        except RequestRejected as error:
            return await self._reject(connection, writer, peer, error)
        if task := asyncio.current_task():
            self.unsigned.pop(task, None)
        self.figures.forwarded += 1
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                await self._forward(request, headers, connection, reader, writer)
            except RequestRejected as error:
                return await self._reject(connection, writer, peer, error)
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    def _check(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """The headers to forward; RequestRejected if the request may not pass."""
        if not _PATH.fullmatch(request.target):
            raise RequestRejected(404, "only the Fleet API is served here")
        if request.method != b"POST":
            raise RequestRejected(405, "only POST is allowed")
        names = [name for name, _ in request.headers]
        if len(set(names)) < len(names):
            raise RequestRejected(400, "a header is given twice")
        headers = dict(request.headers)
        self.keys.check(headers)
        if int(headers.get(b"content-length", b"0")) > BODY_BYTES:
            raise RequestRejected(413, f"the body is larger than {BODY_BYTES} bytes")
        sent = [(name, value) for name, value in headers.items() if _HEADERS.fullmatch(name)]
        length = [(name, headers[name]) for name in (b"content-length", b"transfer-encoding") if name in headers]
        return [(b"host", b"127.0.0.1"), (b"connection", b"close"), *sent, *length]

    async def _forward(
        self,
        request: h11.Request,
        headers: list[tuple[bytes, bytes]],
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forwards the body and returns the answer, piece by piece: never more than one piece is in memory."""
        if request.target == _PULL and self.hold and _is_short(request):
            return await self._hold(request, headers, connection, reader, writer)
        async with self._open() as (up_reader, up):
            upstream = h11.Connection(h11.CLIENT)
            up.write(upstream.send(h11.Request(method=b"POST", target=request.target, headers=headers)) or b"")
            size = 0
            while isinstance(event := await read_event(connection, reader, IDLE_SECONDS, writer=writer), h11.Data):
                size += len(event.data)
                if size > BODY_BYTES:
                    raise RequestRejected(413, f"the body is larger than {BODY_BYTES} bytes")
                await write(up, upstream.send(event))
            if not isinstance(event, h11.EndOfMessage):
                raise EOFError
            await write(up, upstream.send(h11.EndOfMessage()))
            head, first = await read_head(upstream, up_reader)
            await forward_answer(head, first, upstream, up_reader, connection, writer)

    async def _hold(
        self,
        request: h11.Request,
        headers: list[tuple[bytes, bytes]],
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forwards a node's question for messages, again and again, until there is one or the time is over.

        Each time the node must still be connected, so that no message is fetched for one that has left, and its key
        must still be registered.
        """
        body = b""
        while isinstance(event := await read_event(connection, reader, IDLE_SECONDS, writer=writer), h11.Data):
            body += event.data
        if not isinstance(event, h11.EndOfMessage):
            raise EOFError
        until = time.monotonic() + self.hold
        while True:
            seen, last = self.news.count, time.monotonic() >= until
            async with AsyncExitStack() as stack:
                async with self.asking:
                    inner = await stack.enter_async_context(self._open())
                    upstream = h11.Connection(h11.CLIENT)
                    question = h11.Request(method=b"POST", target=request.target, headers=headers)
                    for piece in (question, h11.Data(data=body), h11.EndOfMessage()):
                        inner[1].write(upstream.send(piece) or b"")
                    head, first = await read_head(upstream, inner[0])
                if first or last or head.status_code != 200:
                    return await forward_answer(head, first, upstream, inner[0], connection, writer)
            self.figures.waiting += 1
            try:
                await self.news.wait(seen, min(ASK_SECONDS, max(0.0, until - time.monotonic())), reader)
            finally:
                self.figures.waiting -= 1
            self.keys.check(dict(request.headers))

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection to the SuperLink."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.path, ssl=self.inside, server_hostname="127.0.0.1")
        except OSError as error:
            raise RequestRejected(503, "the SuperLink does not answer") from error
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _reject(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, peer: str, error: RequestRejected
    ) -> bool:
        """Answers with the reason, logs it, and ends the connection."""
        self.figures.rejected[error.status] += 1
        self._log(f"{peer}: {error.status} {error}")
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"code": error.status, "detail": str(error)}).encode() + b"\n"  # as Flower's own errors
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=error.status, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                await write(writer, connection.send(event))
            writer.close()
            async with asyncio.timeout(LINGER_SECONDS):
                await writer.wait_closed()
        return False

    def _log(self, line: str) -> None:
        """A bounded number of lines per minute: strangers must not fill the disk."""
        minute = int(time.monotonic() // 60)
        self._lines = self._lines + 1 if minute == self._minute else 1
        self._minute = minute
        if self._lines <= LOG_LINES:
            more = "; more in this minute are not listed" if self._lines == LOG_LINES else ""
            _log.info("%s%s", line, more)


def _is_short(request: h11.Request) -> bool:
    """Whether a request says that its body is short."""
    return int(dict(request.headers).get(b"content-length", PULL_BYTES + 1)) <= PULL_BYTES


async def _write_figures(gateway: Gateway, folder: Path) -> None:
    """Writes what the gateway counts, every few seconds."""
    while True:
        gateway.figures.open = len(gateway.open)
        with suppress(OSError):
            gateway.figures.write(folder / GATEWAY_FILE)
        await asyncio.sleep(GATEWAY_SECONDS)


async def _listen(args: argparse.Namespace) -> None:
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    with socket.create_server((args.host, args.port), family=family, backlog=256) as listener:
        gateway, settings = Gateway(args.keys, args.api, args.tls, args.hold), read_monitor(args.api)
        _log.info("the gateway listens on %s port %d", args.host, args.port)
        async with asyncio.TaskGroup() as tasks:
            if settings.port:
                tasks.create_task(_write_figures(gateway, args.api))
            tasks.create_task(gateway.serve(listener))


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedveca.deploy.gateway", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--hold", type=float, default=HOLD_SECONDS, metavar="SECONDS")
    for name in ("keys", "api", "tls"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    configure_logs(find_log_form(args.api))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        asyncio.run(_listen(args))
    except OSError as error:
        sys.exit(f"the gateway cannot listen on {args.host} port {args.port}: {os.strerror(error.errno or 0)}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    _main()
