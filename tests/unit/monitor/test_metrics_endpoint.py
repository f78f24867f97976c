"""`/metrics` over real HTTP: what it serves, to whom, and what is bounded."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from fedveca.deploy.certificates import write_certificates
from fedveca.errors import UserError
from fedveca.monitor import endpoint as module
from fedveca.monitor.endpoint import FIGURES_BYTES, SCRAPES, MetricsEndpoint
from fedveca.monitor.machine_metrics import find_days_left, find_own_memory, make_registry
from fedveca.version import __version__


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[MetricsEndpoint]:
    registry = CollectorRegistry()
    Gauge("fedveca_round", "Rounds.", registry=registry).set(3)
    made = MetricsEndpoint("127.0.0.1", 0, [registry], [tmp_path / "more.prom"])
    yield made
    made.close()


def get(endpoint: MetricsEndpoint, path: str = "/metrics", **headers: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{endpoint.port}{path}", headers=headers, timeout=10)


def test_it_serves_this_process_and_the_files_of_others(endpoint: MetricsEndpoint, tmp_path: Path) -> None:
    assert "fedveca_more" not in get(endpoint).text
    (tmp_path / "more.prom").write_text("# TYPE fedveca_more gauge\nfedveca_more 4\n")
    answer = get(endpoint)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = {s.name: s.value for family in text_string_to_metric_families(answer.text) for s in family.samples}
    assert found == {"fedveca_round": 3, "fedveca_more": 4}


def test_a_file_that_is_too_long_is_left_out(endpoint: MetricsEndpoint, tmp_path: Path) -> None:
    (tmp_path / "more.prom").write_text("# x\n" * (FIGURES_BYTES // 4 + 1))
    assert len(get(endpoint).content) < 1000


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/../etc", "/x"])
def test_there_is_one_page(endpoint: MetricsEndpoint, path: str) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b" 404 " in connection.recv(100)


def test_it_is_read_only(endpoint: MetricsEndpoint) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert httpx.request(method, f"http://127.0.0.1:{endpoint.port}/metrics").status_code == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil", 421),
        ("", 421),
    ],
)
def test_a_page_of_another_site_cannot_read_it(endpoint: MetricsEndpoint, host: str, status: int) -> None:
    assert get(endpoint, Host=host).status_code == status


def test_a_named_address_is_asked_by_any_name() -> None:
    made = MetricsEndpoint("0.0.0.0", 0, [])
    try:
        assert get(made, Host="server.example:9464").status_code == 200
    finally:
        made.close()


def test_connections_and_their_time_are_bounded(endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 1.0)
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), 10) for _ in range(SCRAPES)]
    try:
        time.sleep(0.2)
        with pytest.raises(httpx.HTTPError):
            get(endpoint)
        deadline = time.monotonic() + 20
        for connection in silent:  # each is closed in time
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            assert connection.recv(10) == b""
        assert get(endpoint).status_code == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_port_that_is_taken_is_one_sentence(endpoint: MetricsEndpoint) -> None:
    with pytest.raises(UserError, match=rf"metrics cannot be served on 127.0.0.1 port {endpoint.port}: "):
        MetricsEndpoint("127.0.0.1", endpoint.port, [])


def test_a_closed_endpoint_is_closed() -> None:
    made = MetricsEndpoint("127.0.0.1", 0, [])
    made.close()
    with pytest.raises(httpx.ConnectError):
        get(made)


@pytest.mark.parametrize("days", [365, 10, 0])
def test_the_days_until_a_certificate_expires(days: int, tmp_path: Path) -> None:
    write_certificates(tmp_path, ["127.0.0.1"], days)
    assert find_days_left(tmp_path / "server.pem") == pytest.approx(days, abs=0.01)


def test_figures_of_the_machine(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["127.0.0.1"], 30)  # the authority's lasts ten years
    (tmp_path / "broken.pem").write_text("not a certificate")
    files = {"server": tmp_path / "server.pem", "none": tmp_path / "none.pem", "broken": tmp_path / "broken.pem"}
    registry = make_registry(lambda: {"gateway": 5, "superlink": 7}, files)
    found = {(s.name, *s.labels.values()): s.value for family in registry.collect() for s in family.samples}
    assert found.pop(("fedveca_certificate_days", "server")) == pytest.approx(30, abs=0.01)
    assert found.pop(("fedveca_memory_bytes", "gateway")) == 5
    assert found.pop(("fedveca_memory_bytes", "superlink")) == 7
    ((name, *labels),) = found
    assert name == "fedveca_build_info"
    assert __version__ in labels


def test_memory_of_this_process() -> None:
    (size,) = find_own_memory().values()
    assert 10e6 < size < 100e9
