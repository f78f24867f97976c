"""Figures of the processes of a federation: the gateway's, a node's, and the parts of a round."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.exchange import encode
from fedveca.deploy.launch import free_port
from fedveca.deploy.metered_grid import MeteredGrid
from fedveca.deploy.monitoring import (
    GATEWAY_FILE,
    NODE_FILE,
    RUN_FILE,
    GatewayFigures,
    NodeFigures,
    make_node_figures,
    measure_memory,
    serve_node_figures,
    serve_server_figures,
)
from fedveca.deploy.node_process import work
from fedveca.errors import UserError
from fedveca.monitor.settings import LogForm, MonitorSettings, write_monitor


def parse(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class FakeGrid:
    """A grid whose answers take their time, on a clock of their own."""

    def __init__(self) -> None:
        self.now, self.replies = 0.0, list[str]()

    def read(self) -> float:
        return self.now

    def get_node_ids(self) -> list[int]:
        return [5, 6]

    def push_messages(self, messages: list[str]) -> list[str]:
        self.now += 0.25
        return messages

    def pull_messages(self, ids: list[str]) -> list[str]:
        self.now += 1.0
        found, self.replies = self.replies, []
        return found


def test_the_parts_of_a_round_add_up_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    inner = FakeGrid()
    grid = MeteredGrid(inner, tmp_path, inner.read)  # type: ignore[arg-type]
    assert grid.get_node_ids() == [5, 6]
    assert grid.connected == 2
    inner.now += 3  # before the order
    assert list(grid.push_messages(["a", "b"])) == ["a", "b"]  # type: ignore[list-item]
    assert not list(grid.pull_messages(["a"]))
    inner.replies = ["reply a"]
    assert list(grid.pull_messages(["a"])) == ["reply a"]  # type: ignore[comparison-overlap]
    inner.now += 0.5  # checked meanwhile
    inner.replies = ["reply b"]
    grid.pull_messages(["b"])
    inner.now += 2  # update, test, record
    assert grid.read_parts() == {"send": 0.25, "answers": 3.5, "server": 5.0}
    inner.now += 1
    assert grid.read_parts() == {"send": 0.0, "answers": 0.0, "server": 1.0}


def test_a_node_counts_its_orders_by_kind_and_outcome(tmp_path: Path) -> None:
    figures = NodeFigures(tmp_path)
    figures.count({"classes": 3}, {"fields": {"client": 0}, "numbers": {}}, 2.0)
    figures.count({"round": 4, "tau": 7}, {"fields": {"client": 0}, "numbers": {}}, 0.5)
    figures.count({"round": 5, "tau": 9}, {"fields": {"diverged": True}, "numbers": {}}, 0.5)
    figures.count({"round": 6, "tau": 0}, {"fields": {}, "numbers": {}}, 0.5)
    figures.count({"round": 6, "part": "test"}, {"fields": {}, "numbers": {}}, 0.5)
    figures.count({"round": 6, "tau": 2}, {"error": "no"}, 0.5)
    figures.count(None, {"error": "garbage"}, 0.125)
    found = parse((tmp_path / NODE_FILE).read_text())
    orders = {key[1:]: value for key, value in found.items() if key[0] == "fedveca_node_orders_total"}
    assert orders == {
        ("question", "answered"): 1,
        ("train", "answered"): 1,
        ("train", "diverged"): 1,
        ("loss", "answered"): 1,
        ("evaluate", "answered"): 1,
        ("train", "error"): 1,
        ("unknown", "error"): 1,
    }
    assert found[("fedveca_node_steps_total",)] == 7
    assert found[("fedveca_node_round",)] == 7
    assert found[("fedveca_node_work_seconds_total", "train")] == 1.5
    assert found[("fedveca_node_work_seconds_total", "unknown")] == 0.125


def test_a_nodes_worker_counts_what_it_answers(tmp_path: Path) -> None:
    assert make_node_figures(tmp_path) is None
    write_monitor(tmp_path, MonitorSettings(9464))
    figures = make_node_figures(tmp_path)
    work(b"garbage", tmp_path, figures)
    work(
        encode({"settings": {"model": "svm"}, "client": 0, "order": {"pixels": "as-is", "classes": 10}}, {}),
        tmp_path,
        figures,
    )
    found = parse((tmp_path / NODE_FILE).read_text())
    assert found[("fedveca_node_orders_total", "unknown", "error")] == 1
    assert found[("fedveca_node_orders_total", "question", "answered")] == 1


def test_the_gateways_statuses_are_a_few(tmp_path: Path) -> None:
    figures = GatewayFigures()
    figures.open, figures.waiting, figures.forwarded = 4, 3, 2
    for status in (400, 400, 503, *range(600, 900)):
        figures.rejected[status] += 1
    figures.write(tmp_path / GATEWAY_FILE)
    found = parse((tmp_path / GATEWAY_FILE).read_text())
    rejected = {key[1]: value for key, value in found.items() if key[0] == "fedveca_gateway_rejected_total"}
    assert rejected == {"400": 2, "404": 0, "405": 0, "413": 0, "431": 0, "503": 1, "other": 300}
    assert found[("fedveca_gateway_connections",)] == 4
    assert found[("fedveca_gateway_waiting",)] == 3
    assert found[("fedveca_gateway_forwarded_total",)] == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_gateways_program_logs_in_the_form_that_is_set(form: LogForm, tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls", ["127.0.0.1"])
    (tmp_path / "keys").mkdir()
    write_monitor(tmp_path, MonitorSettings(log=form))
    port = free_port()
    command = [sys.executable, "-m", "fedveca.deploy.gateway", "--host", "127.0.0.1", "--port", str(port)]
    folders = ["--keys", str(tmp_path / "keys"), "--api", str(tmp_path), "--tls", str(tmp_path / "tls")]
    process = subprocess.Popen([*command, *folders], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    line = process.stderr.readline()
    process.kill()
    process.communicate()
    sentence = f"the gateway listens on 127.0.0.1 port {port}"
    if form == "json":
        found = json.loads(line)
        assert (found["message"], found["level"], found["logger"]) == (sentence, "info", "fedveca.gateway")
    else:
        assert line.endswith(f"INFO {sentence}\n")


def test_a_server_serves_what_its_processes_write(tmp_path: Path) -> None:
    assert serve_server_figures(tmp_path, {}) is None
    port = free_port()
    write_monitor(tmp_path, MonitorSettings(port))
    write_certificates(tmp_path / "tls", ["127.0.0.1"], 20)
    (tmp_path / RUN_FILE).write_text("fedveca_round 99\n")  # of a run before the server was restarted
    endpoint = serve_server_figures(tmp_path, {"gateway": os.getpid()})
    assert endpoint is not None
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        found = parse(httpx.get(url).text)
        assert ("fedveca_round",) not in found
        assert found[("fedveca_certificate_days", "ca")] == pytest.approx(3650, abs=0.01)
        assert found[("fedveca_certificate_days", "server")] == pytest.approx(20, abs=0.01)
        assert found[("fedveca_memory_bytes", "gateway")] > 10e6
        (tmp_path / RUN_FILE).write_text("fedveca_round 1\n")
        GatewayFigures().write(tmp_path / GATEWAY_FILE)
        found = parse(httpx.get(url).text)
        assert found[("fedveca_round",)] == 1
        assert ("fedveca_gateway_waiting",) in found
        with pytest.raises(UserError, match="cannot be served"):
            serve_server_figures(tmp_path, {})
    finally:
        endpoint.close()


def test_a_node_without_its_port_trains_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert serve_node_figures(tmp_path, os.getpid()) is None
    assert not caplog.text
    port = free_port()
    write_monitor(tmp_path, MonitorSettings(port))
    caplog.set_level(logging.INFO)
    endpoint = serve_node_figures(tmp_path, os.getpid())
    assert endpoint is not None
    assert serve_node_figures(tmp_path, os.getpid()) is None
    assert f"this node serves no metrics: metrics cannot be served on 127.0.0.1 port {port}" in caplog.text
    endpoint.close()
    (tmp_path / "monitor.json").write_text("{")
    assert serve_node_figures(tmp_path, os.getpid()) is None
    assert make_node_figures(tmp_path) is None
    assert caplog.text.count("this node serves no metrics") == 2


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    assert measure_memory(2**22 + 1) == 0
