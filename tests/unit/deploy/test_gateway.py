"""The gateway, with a real TLS server on a Unix socket behind it: what passes, what does not, and what is bounded."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveca.deploy import gateway as module
from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.gateway import BODY_BYTES, HEAD_BYTES, UNSIGNED_STATUS, Gateway
from fedveca.deploy.provision import write_key

PATH = "/v1/fleet/pull-messages"


class Bench:
    """A gateway in a thread of its own, and what reached the server behind it."""

    def __init__(self, folder: Path, hold: float = 0.0) -> None:
        self.hold = hold
        self.folder, self.port, self.reached = folder, 0, list[tuple[str, dict[str, str], bytes]]()
        self.answer = b"pulled"
        write_certificates(folder / "tls", ["127.0.0.1"])
        write_key(folder / "node-0" / "key", folder / "keys" / "node-0.pub")
        write_key(folder / "stranger", folder / "stranger.pub")
        self.loop, self.end = asyncio.new_event_loop(), asyncio.Event()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(30)

    def _run(self, ready: threading.Event) -> None:
        async def start() -> None:
            inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            inside.load_cert_chain(self.folder / "tls" / "server.pem", self.folder / "tls" / "server.key")
            behind = await asyncio.start_unix_server(self._serve, self.folder / "api.sock", ssl=inside)
            self.gateway = Gateway(self.folder / "keys", self.folder, self.folder / "tls", self.hold)
            with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
                self.port = listener.getsockname()[1]
                serving = asyncio.create_task(self.gateway.serve(listener))
                ready.set()
                await self.end.wait()
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            behind.close()

        self.loop.run_until_complete(start())
        self.loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, body, request = h11.Connection(h11.SERVER), bytearray(), None
        try:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(65536))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage) and request is not None:
                    headers = {name.decode(): value.decode() for name, value in request.headers}
                    self.reached.append((request.target.decode(), headers, bytes(body)))
                    head = h11.Response(status_code=200, headers=[("content-length", str(len(self.answer)))])
                    for out in (head, h11.Data(data=self.answer), h11.EndOfMessage()):
                        writer.write(connection.send(out) or b"")
                    await writer.drain()
                    break
                else:
                    break
        except (h11.ProtocolError, OSError):
            pass
        writer.close()

    def signed(self, key: str = "node-0/key", **other: str) -> dict[str, str]:
        """The headers of a request that a key signs."""
        secret: Any = serialization.load_ssh_private_key((self.folder / key).read_bytes(), None)
        now = datetime.datetime.now(datetime.UTC).isoformat()
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        public = base64.b64encode(secret.public_key().public_bytes(*form)).decode()
        signature = base64.b64encode(secret.sign(now.encode(), ec.ECDSA(hashes.SHA256()))).decode()
        return {"flwr-public-key": public, "flwr-timestamp": now, "flwr-signature": signature} | other

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.folder / "tls" / "ca.pem"))
        raw = socket.create_connection(("127.0.0.1", self.port), 30)
        return context.wrap_socket(raw, server_hostname="127.0.0.1")

    def ask(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        return self.send(head.encode() + body)

    def send(self, content: bytes) -> tuple[int, bytes]:
        """The status and body of the answer to these bytes; status 0 where the connection just ends."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # it may be rejected before it is read
                connection.sendall(content)
            return read_answer(connection)


def read_answer(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    parser, status, body = h11.Connection(h11.CLIENT), 0, b""
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    parser.send(h11.EndOfMessage())
    while True:
        try:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(connection.recv(65536))
                continue
        except (OSError, h11.RemoteProtocolError):  # to HEAD there is no body
            return status, body
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif not isinstance(event, h11.InformationalResponse):
            return status, body


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("gateway"))
    yield made
    made.loop.call_soon_threadsafe(made.end.set)
    made.thread.join(30)


@pytest.fixture(autouse=True)
def forget(bench: Bench) -> None:
    bench.reached.clear()
    bench.answer = b"pulled"


def test_a_signed_fleet_request_passes_with_what_it_needs_and_nothing_else(bench: Bench) -> None:
    body = os.urandom(3_000_000)
    bench.answer = os.urandom(2_000_000)
    headers = bench.signed(cookie="a=b", **{"x-forwarded-for": "1.2.3.4", "content-type": "application/protobuf"})
    assert bench.ask("POST", PATH, headers, body) == (200, bench.answer)
    ((target, seen, content),) = bench.reached
    assert (target, content) == (PATH, body)
    assert seen["content-type"] == "application/protobuf"
    assert seen["flwr-public-key"] == headers["flwr-public-key"]
    assert not {"cookie", "x-forwarded-for"} & set(seen)


def test_one_connection_carries_many_requests_and_pieces(bench: Bench) -> None:
    with bench.connect() as connection:
        for _ in range(3):
            lines = "".join(f"{name}: {value}\r\n" for name, value in bench.signed().items())
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{lines}\r\n"
            connection.sendall(head.encode() + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            assert read_answer(connection) == (200, b"pulled")
    assert [content for _, _, content in bench.reached] == [b"abcde"] * 3


@pytest.mark.parametrize(
    "target",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/",
        "/v1/fleet",
        "/",
        "/docs",
        "/openapi.json",
        "/health",
        "//v1/fleet/pull-messages",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet//../control/start-run",
        "/v1/fleet/pull-messages?x=/v1/control",
        "/v1/fleet/pull-messages#a",
        "/v1/fleet/pull-messages;a",
        "/v1/fleet\\..\\control",
        "/v1/fleet/PULL-MESSAGES",
        "/V1/fleet/pull-messages",
        "https://x/v1/control/start-run",
        "https://x/v1/fleet/pull-messages",
        "*",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/pull_messages",
        "/v1/fleet/-",
        "/v1/fleet/pull-messages/",
    ],
)
def test_other_paths_are_rejected_with_a_good_key_too(bench: Bench, target: str) -> None:
    assert bench.ask("POST", target, bench.signed())[0] == 404
    assert bench.reached == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "CONNECT", "OPTIONS", "HEAD", "PRI"])
def test_other_methods_are_rejected(bench: Bench, method: str) -> None:
    assert bench.ask(method, PATH, bench.signed())[0] == 405
    assert bench.reached == []


def test_who_has_no_registered_key_does_not_pass(bench: Bench) -> None:
    good, later = bench.signed(), {"flwr-timestamp": "2030-01-01T00:00:00+00:00"}
    for headers, why in [
        ({}, b"missing"),
        ({k: v for k, v in good.items() if k != "flwr-signature"}, b"missing"),
        (good | {"flwr-public-key": "%%"}, b"missing"),
        (bench.signed("stranger"), b"not registered"),
        (good | later, b"invalid"),
        (good | {"flwr-signature": base64.b64encode(b"x" * 100).decode()}, b"invalid"),
        (good | {"flwr-public-key": bench.signed("stranger")["flwr-public-key"]}, b"not registered"),
        (bench.signed("stranger") | {"flwr-public-key": good["flwr-public-key"]}, b"invalid"),
    ]:
        status, said = bench.ask("POST", PATH, headers, b"body")
        assert status == UNSIGNED_STATUS
        assert why in said
    assert bench.reached == []


def test_a_key_counts_from_when_its_file_is_there_until_it_is_gone(bench: Bench) -> None:
    key = bench.folder / "keys" / "late.pub"
    key.write_bytes((bench.folder / "stranger.pub").read_bytes())
    assert bench.ask("POST", PATH, bench.signed("stranger"))[0] == 200
    key.unlink()
    assert bench.ask("POST", PATH, bench.signed("stranger"))[0] == UNSIGNED_STATUS


def test_a_stranger_is_rejected_before_its_body_is_read(bench: Bench) -> None:
    """The answer comes although no byte of the announced body was sent."""
    with bench.connect() as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert read_answer(connection)[0] == UNSIGNED_STATUS


def test_sizes_are_bounded(bench: Bench) -> None:
    assert bench.ask("POST", PATH, bench.signed(more="x" * (2 * HEAD_BYTES)))[0] in (0, 431)
    lines = "".join(f"{name}: {value}\r\n" for name, value in bench.signed().items())
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{lines}"
    assert bench.send(f"{head}Content-Length: {BODY_BYTES + 1}\r\n\r\n".encode())[0] == 413
    piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    assert bench.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 65 + b"0\r\n\r\n")[0] in (0, 413)
    assert bench.reached == []


def test_a_header_given_twice_is_rejected(bench: Bench) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in bench.signed().items())
    for twice in ("Host: y\r\n", "flwr-timestamp: now\r\n", "Content-Type: a\r\nContent-Type: b\r\n"):
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{lines}{twice}\r\n"
        assert bench.send(head.encode())[0] == 400
    assert bench.reached == []


def test_smuggled_requests_do_not_pass(bench: Bench) -> None:
    """A second request hidden in the body of a good one, in the ways that proxies have fallen for."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in bench.signed().items())
    hidden = "POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    for length in (
        f"Content-Length: {len(hidden)}\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: 0\r\n",
    ):
        bench.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{lines}{length}\r\n0\r\n\r\n{hidden}".encode())
    assert {target for target, _, _ in bench.reached} <= {PATH}


@pytest.mark.slow
def test_the_slow_are_dropped_and_others_are_served_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(module, "UNSIGNED_CONNECTIONS", 20)
    raw = [socket.create_connection(("127.0.0.1", bench.port), 30) for _ in range(30)]  # no handshake
    half = bench.connect()
    half.sendall(b"POST /v1/fle")
    assert bench.ask("POST", PATH, bench.signed())[0] == 200
    assert len(bench.gateway.unsigned) <= 20
    until = time.monotonic() + 30
    while bench.gateway.open and time.monotonic() < until:
        time.sleep(0.05)
    assert not bench.gateway.open
    half.settimeout(10)
    assert half.recv(10) == b""
    for each in (*raw, half):
        each.close()


def test_its_log_is_bounded(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for i in range(200):
        bench.gateway._log(f"peer {i}")
    lines = caplog.messages
    assert 0 < len(lines) <= 2 * module.LOG_LINES  # where a minute ends meanwhile, those of two
    assert "not listed" in lines[-1]


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=600),
        st.lists(
            st.sampled_from(
                [
                    b"POST ",
                    b"GET ",
                    b"/v1/fleet/pull-messages",
                    b"/v1/control/start-run",
                    b" HTTP/1.1",
                    b"\r\n",
                    b"\n",
                    b"\r\n\r\n",
                    b"Host: x",
                    b"Content-Length: 5",
                    b"Transfer-Encoding: chunked",
                    b"flwr-public-key: AA==",
                    b"flwr-signature: AA==",
                    b"flwr-timestamp: 2026",
                    b"0\r\n\r\n",
                    b"\x00",
                    b"\xff\xfe",
                    b"PRI * HTTP/2.0",
                    b"Expect: 100-continue",
                    b": ",
                ]
            ),
            max_size=20,
        ).map(b"".join),
    )
)
def test_no_bytes_of_a_stranger_reach_the_server_or_end_the_gateway(bench: Bench, content: bytes) -> None:
    with bench.connect() as connection:
        try:
            connection.sendall(content)
            connection.unwrap().close()
        except OSError:
            pass
    assert bench.reached == []


def test_it_still_serves_after_all_that(bench: Bench) -> None:
    with socket.create_connection(("127.0.0.1", bench.port), 30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        plain.settimeout(30)
        assert b"HTTP" not in plain.recv(100)
    assert bench.ask("POST", PATH, bench.signed()) == (200, b"pulled")


def test_the_server_behind_may_be_gone(bench: Bench) -> None:
    (bench.folder / "api.sock").rename(bench.folder / "away.sock")
    assert bench.ask("POST", PATH, bench.signed())[0] == 503
    (bench.folder / "away.sock").rename(bench.folder / "api.sock")
