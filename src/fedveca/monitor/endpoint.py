"""`/metrics` over HTTP, for Prometheus: one page, read-only, bounded in connections and in time."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fedveca.errors import UserError

CONTENT_TYPE = CONTENT_TYPE_LATEST
SCRAPES = 8  # at the same time; more are closed
SCRAPE_SECONDS = 5.0  # for a request, and for reading its answer
FIGURES_BYTES = 256 * 1024  # of the figures that another process has written


class MetricsEndpoint:
    """Serves figures until it is closed.

    Args:
        host: the address to listen on.
        port: the port.
        registries: this process's figures.
        files: figures that other processes of this machine have written, each with names of its own; one that is
            missing or too long is left out.

    Raises:
        UserError: if it cannot listen there.
    """

    def __init__(
        self, host: str, port: int, registries: Sequence[CollectorRegistry], files: Sequence[Path] = ()
    ) -> None:
        self.registries, self.files = registries, files
        self._room = threading.BoundedSemaphore(SCRAPES)
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise UserError(f"metrics cannot be served on {host} port {port}: {error.strerror or error}") from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def render(self) -> bytes:
        """The page."""
        pieces = [generate_latest(registry) for registry in self.registries]
        for path in self.files:
            try:
                with path.open("rb") as file:
                    content = file.read(FIGURES_BYTES + 1)
            except OSError:
                continue
            if len(content) <= FIGURES_BYTES:
                pieces.append(content)
        return b"".join(pieces)

    def accepts(self, name: str) -> bool:
        """Whether a Host header is an address or localhost: a page of another site cannot make it so."""
        bare = name.rsplit("]", 1)[0].lstrip("[") if name.startswith("[") else name.split(":", 1)[0]
        if not ipaddress.ip_address(self.host).is_loopback or bare.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(bare).is_loopback
        except ValueError:
            return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], endpoint: MetricsEndpoint) -> None:
        self.endpoint = endpoint
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not self.endpoint._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.endpoint._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked has left, or was too slow: there is nobody to answer."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SCRAPE_SECONDS
    server_version, sys_version = "fedveca", ""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        if not server.endpoint.accepts(self.headers.get("Host", "")):
            self._reply(HTTPStatus.MISDIRECTED_REQUEST, b"this Host header is not accepted\n", "text/plain")
        elif self.path.partition("?")[0] != "/metrics":
            self._reply(HTTPStatus.NOT_FOUND, b"only /metrics is here\n", "text/plain")
        else:
            self._reply(HTTPStatus.OK, server.endpoint.render(), CONTENT_TYPE)

    def _reply(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """A scrape is not news."""
