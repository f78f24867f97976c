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
import os
import re
import resource
import socket
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path

import h11
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedveca.deploy.private_api import find_socket

_PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_HEADERS = re.compile(rb"content-type|accept|accept-encoding|user-agent|traceparent|tracestate|flwr-[a-z-]+")
_ANSWERS = re.compile(rb"content-type|content-encoding|retry-after|traceparent|flwr-[a-z-]+")
HEAD_BYTES = 16 * 1024
BODY_BYTES = 64 * 1024 * 1024  # Flower sends arrays in pieces of 5 MB
HEAD_SECONDS = 15.0  # for the TLS handshake, and for a request's head
IDLE_SECONDS = 30.0  # between two pieces of a body, and between two requests of a node
REQUEST_SECONDS = 600.0
LINGER_SECONDS = 2.0  # for a rejected client to read why
CONNECTIONS = 1024
UNSIGNED_CONNECTIONS = 128  # those that have not sent a signed request yet
LOG_LINES = 60  # per minute
UNSIGNED_STATUS = 400  # at 401 or 403 a SuperNode would end silently, or say that its run has ended


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
    """

    def __init__(self, keys: Path, api: Path, tls: Path) -> None:
        self.keys, self.path = NodeKeys(keys), find_socket(api, "api.sock")
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.outside.minimum_version = ssl.TLSVersion.TLSv1_2
        self.outside.load_cert_chain(tls / "server.pem", tls / "server.key")
        self.inside = ssl.create_default_context(cafile=tls / "ca.pem")
        self.open: set[asyncio.Task[None]] = set()
        self.unsigned: dict[asyncio.Task[None], None] = {}  # connections without a signed request so far, oldest first
        self._minute, self._lines = 0, 0

    async def serve(self, listener: socket.socket) -> None:
        """Accepts connections until it is cancelled."""
        listener.setblocking(False)
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
                request = await _next(connection, reader, most=HEAD_BYTES // 4)
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
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                await self._forward(request.target, headers, connection, reader, writer)
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
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forwards the body and returns the answer, piece by piece: never more than one piece is in memory."""
        try:
            inner = await asyncio.open_unix_connection(self.path, ssl=self.inside, server_hostname="127.0.0.1")
        except OSError as error:
            raise RequestRejected(503, "the SuperLink does not answer") from error
        upstream, up = h11.Connection(h11.CLIENT), inner[1]
        try:
            up.write(upstream.send(h11.Request(method=b"POST", target=target, headers=headers)) or b"")
            size = 0
            while isinstance(event := await _next(connection, reader, IDLE_SECONDS, writer=writer), h11.Data):
                size += len(event.data)
                if size > BODY_BYTES:
                    raise RequestRejected(413, f"the body is larger than {BODY_BYTES} bytes")
                await _write(up, upstream.send(event))
            if not isinstance(event, h11.EndOfMessage):
                raise EOFError
            await _write(up, upstream.send(h11.EndOfMessage()))
            await _forward_answer(upstream, inner[0], connection, writer)
        finally:
            up.transport.abort()

    async def _reject(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, peer: str, error: RequestRejected
    ) -> bool:
        """Answers with the reason, logs it, and ends the connection."""
        self._log(f"{peer}: {error.status} {error}")
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"code": error.status, "detail": str(error)}).encode() + b"\n"  # as Flower's own errors
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=error.status, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                await _write(writer, connection.send(event))
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
            print(time.strftime("%Y-%m-%d %H:%M:%S"), f"{line}{more}", flush=True)


async def _next(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    seconds: float = REQUEST_SECONDS,
    most: int = 64 * 1024,
    writer: asyncio.StreamWriter | None = None,
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    """The next event of one side; a client that waits for "100 Continue" gets it."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        if writer is not None and connection.they_are_waiting_for_100_continue:
            await _write(writer, connection.send(h11.InformationalResponse(status_code=100, headers=[])))
        async with asyncio.timeout(seconds):
            connection.receive_data(await reader.read(most))
    if isinstance(event, h11.ConnectionClosed):
        raise EOFError
    return event


async def _forward_answer(
    upstream: h11.Connection, reader: asyncio.StreamReader, connection: h11.Connection, writer: asyncio.StreamWriter
) -> None:
    """Forwards the SuperLink's answer."""
    while not isinstance(event := await _next(upstream, reader), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            names = (b"content-length", b"transfer-encoding")
            headers = [(n, v) for n, v in event.headers if _ANSWERS.fullmatch(n) or n in names]
            await _write(writer, connection.send(h11.Response(status_code=event.status_code, headers=headers)))
        elif isinstance(event, h11.Data):
            await _write(writer, connection.send(event))
    await _write(writer, connection.send(h11.EndOfMessage()))


async def _write(writer: asyncio.StreamWriter, content: bytes | None) -> None:
    """Writes, and waits until the other side has read enough."""
    writer.write(content or b"")
    async with asyncio.timeout(IDLE_SECONDS * 2):
        await writer.drain()


async def _listen(args: argparse.Namespace) -> None:
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    with socket.create_server((args.host, args.port), family=family, backlog=256) as listener:
        print(f"the gateway listens on {args.host} port {args.port}", flush=True)
        await Gateway(args.keys, args.api, args.tls).serve(listener)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedveca.deploy.gateway", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    for name in ("keys", "api", "tls"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
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
