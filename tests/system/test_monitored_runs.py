"""Figures of real runs, scraped over HTTP while they run and compared with rounds.jsonl."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedveca.deploy.launch import free_port
from fedveca.monitor.dashboard import read_dashboard
from fedveca.version import __version__

pytestmark = pytest.mark.slow
Figures = dict[tuple[str, ...], float]


def scrape(port: int) -> Figures:
    """The figures at a port, each name of one type and each series once; nothing where nobody listens."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    except httpx.HTTPError:
        return {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    keys = [(s.name, *(value for _, value in sorted(s.labels.items()))) for family in families for s in family.samples]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, (s.value for family in families for s in family.samples), strict=True))


def watch(command: list[str], ports: list[int], seconds: float, every: float = 0.1) -> tuple[list[list[Figures]], str]:
    """What the ports served while the command ran, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedveca", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    seen: list[list[Figures]] = [[] for _ in ports]
    try:
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            for port, found in zip(ports, seen, strict=True):
                if figures := scrape(port):
                    found.append(figures)
            time.sleep(every)
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, printed
    return seen, printed


def compare(figures: Figures, folder: Path) -> None:
    """A scrape of a run, and the rounds that it says are done."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines = lines[: int(figures[("fedveca_round",)])]
    assert lines
    assert figures[("fedveca_train_loss",)] == lines[-1]["train_loss"]
    assert figures[("fedveca_test_value", "accuracy")] == lines[-1]["test_accuracy"]
    assert figures[("fedveca_test_value", "loss")] == lines[-1]["test_loss"]
    assert figures[("fedveca_clients", "answered")] == len(lines[-1]["ids"])
    assert figures[("fedveca_clients", "left_out")] == len(lines[-1]["left_out"])
    for direction in ("down", "up"):
        total = sum(line[f"bytes_{direction}"] for line in lines)
        assert figures[("fedveca_bytes_total", direction)] == total
    assert figures[("fedveca_round_seconds_count",)] == len(lines)
    assert figures[("fedveca_round_seconds_sum",)] == pytest.approx(sum(line["seconds"] for line in lines))


def test_a_run_is_scraped_and_logs_json(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "run"
    words = ["run", "digits-case3", "rounds=40", "--out", str(out), "--metrics-port", str(port), "--log", "json"]
    (seen,), printed = watch(words, [port], 120)
    with_rounds = [figures for figures in seen if figures.get(("fedveca_round",), 0) > 0]
    assert with_rounds
    for figures in with_rounds:
        compare(figures, out)
        assert figures[("fedveca_rounds_planned",)] == 40
        assert figures[("fedveca_memory_bytes", "run")] > 50e6
        assert any(key[0] == "fedveca_build_info" and __version__ in key for key in figures)
    logged = [json.loads(line) for line in printed.splitlines()]
    assert [line["round"] for line in logged if "round" in line] == list(range(1, 41))


def test_a_federation_is_scraped_at_its_server_and_its_nodes(tmp_path: Path) -> None:
    out, first = tmp_path / "run", find_free_ports(3)
    words = ["deploy", "local", "model=svm", "rounds=3", "batch=16", "--nodes", "2", "--out", str(out)]
    words += ["--metrics-port", str(first), "--log", "json", "--poll", "0.05"]
    (server, *nodes), _ = watch(words, [first, first + 1, first + 2], 240, 0.5)
    with_rounds = [figures for figures in server if figures.get(("fedveca_round",), 0) > 0]
    assert with_rounds
    for figures in with_rounds:
        compare(figures, out)
        assert figures[("fedveca_clients", "connected")] == 2
        parts = [figures[("fedveca_round_part_seconds_total", part)] for part in ("send", "answers", "server")]
        assert min(parts) > 0
        assert sum(parts) < 1.5 * figures[("fedveca_round_seconds_sum",)] + 5
    assert 364 < server[0][("fedveca_certificate_days", "server")] < 366
    assert server[-1][("fedveca_memory_bytes", "superlink")] > 50e6
    assert max(figures.get(("fedveca_gateway_waiting",), 0) for figures in server) <= 2
    assert max(figures.get(("fedveca_gateway_forwarded_total",), 0) for figures in server) > 10
    for figures in (found[-1] for found in nodes):
        assert figures[("fedveca_node_orders_total", "question", "answered")] >= 1
        assert figures[("fedveca_node_orders_total", "train", "answered")] >= 1
        assert figures[("fedveca_node_steps_total",)] > 0
        assert 3649 < figures[("fedveca_certificate_days", "ca")] < 3651
    served = {key[0] for found in (server, *nodes) for figures in found for key in figures}
    board = json.loads(read_dashboard())
    asked = {target["expr"] for panel in board["panels"] for target in panel["targets"]}
    assert all(any(name in expression for name in served) for expression in asked)
    check_logs(out / "deployment")


def find_free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for _ in range(100):
        first = free_port()
        if first + count < 65536 and not any(scrape(first + i) for i in range(count)):
            return first
    raise AssertionError("no free ports")


def check_logs(folder: Path) -> None:
    """Every line is JSON; the waits that were asked for are in force; no secret is in them."""
    for name in ("superlink", "gateway", "node-0", "node-1"):
        lines = (folder / f"{name}.log").read_text().splitlines()
        parsed = [json.loads(line) for line in lines if not line.startswith("Successfully installed")]
        assert parsed
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in parsed)
        assert not any("PRIVATE KEY" in line for line in lines)
    paced = [
        f"{program} looks for something new from every 0.05 s on"
        for program in ("flower-supernode", "flower-superexec")
    ]
    for node in ("node-0", "node-1"):
        text = (folder / f"{node}.log").read_text()
        assert all(sentence in text for sentence in paced)
        assert "keeps Flower's own intervals" not in text
    for path in folder.rglob("*.prom"):
        assert path.stat().st_mode & 0o077 == 0
