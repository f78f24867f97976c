"""Figures of a federation's processes, each written to a file of its machine's folder and served from one port there.

The server's port belongs to the process that starts SuperLink and gateway, so it is open between runs as well; the
server's app and the gateway write their figures into the server's folder. A node's port belongs to its SuperNode; the
node's worker writes its figures into the node's folder.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from fedveca.monitor.settings import read_monitor
from fedveca.runs.files import write_atomic

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from fedveca.deploy.exchange import NodeAnswer, NodeOrder
    from fedveca.monitor.endpoint import MetricsEndpoint

RUN_FILE, GATEWAY_FILE, NODE_FILE = "run.prom", "gateway.prom", "node.prom"
GATEWAY_SECONDS = 5.0  # between two writings of the gateway's figures
STATUSES = (400, 404, 405, 413, 431, 503)  # with which the gateway rejects; any other counts as "other"
_log = logging.getLogger(__name__)


def serve_server_figures(folder: Path, pids: Mapping[str, int]) -> MetricsEndpoint | None:
    """Serves the figures of a server, where its folder has a monitor.json with a port.

    Args:
        folder: the server's folder.
        pids: its processes by name; their children count with them.

    Raises:
        UserError: if the settings are invalid or the port cannot be opened.
    """
    settings = read_monitor(folder)
    if not settings.port:
        return None
    from fedveca.monitor.endpoint import MetricsEndpoint
    from fedveca.monitor.machine_metrics import make_registry

    for name in (RUN_FILE, GATEWAY_FILE):  # of a former server
        (folder / name).unlink(missing_ok=True)
    tls = {name: folder / "tls" / f"{name}.pem" for name in ("ca", "server")}
    registry = make_registry(lambda: {name: measure_memory(pid) for name, pid in pids.items()}, tls)
    files = [folder / RUN_FILE, folder / GATEWAY_FILE]
    endpoint = MetricsEndpoint(settings.host, settings.port, [registry], files)
    _log.info("metrics are at http://%s:%d/metrics", endpoint.host, endpoint.port)
    return endpoint


def serve_node_figures(folder: Path, pid: int) -> MetricsEndpoint | None:
    """Serves the figures of a node, where its folder has a monitor.json with a port; a failure stops no training."""
    try:
        settings = read_monitor(folder)
        if not settings.port:
            return None
        from fedveca.monitor.endpoint import MetricsEndpoint
        from fedveca.monitor.machine_metrics import make_registry

        (folder / NODE_FILE).unlink(missing_ok=True)  # of a former process
        registry = make_registry(lambda: {"node": measure_memory(pid)}, {"ca": folder / "ca.pem"})
        endpoint = MetricsEndpoint(settings.host, settings.port, [registry], [folder / NODE_FILE])
    except (ValueError, OSError) as error:
        _log.warning("this node serves no metrics: %s", error)
        return None
    _log.info("metrics are at http://%s:%d/metrics", endpoint.host, endpoint.port)
    return endpoint


def measure_memory(pid: int) -> int:
    """Resident bytes of a process and of all that it started; 0 where it is gone."""
    size = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                size += int(one.memory_info().rss)
    return size


class GatewayFigures:
    """What the gateway counts."""

    def __init__(self) -> None:
        self.open = self.waiting = self.forwarded = 0
        self.rejected = Tally[int]()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The figures for a registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("fedveca_gateway_connections", "Open connections.", self.open)
        yield GaugeMetricFamily("fedveca_gateway_waiting", "Nodes whose question for messages is held.", self.waiting)
        yield CounterMetricFamily("fedveca_gateway_forwarded", "Requests of nodes.", self.forwarded)
        rejected = CounterMetricFamily("fedveca_gateway_rejected", "Requests rejected, by status.", labels=["status"])
        counts = {str(status): self.rejected[status] for status in STATUSES}
        others = sum(count for status, count in self.rejected.items() if status not in STATUSES)
        for status, count in (counts | {"other": others}).items():
            rejected.add_metric([status], count)
        yield rejected

    def write(self, path: Path) -> None:
        """Writes them to a file."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        write_atomic(path, generate_latest(registry))


class NodeFigures:
    """What a node's worker counts; written to the node's folder after each order.

    Args:
        folder: the node's folder.
    """

    def __init__(self, folder: Path) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.file, self.registry = folder / NODE_FILE, CollectorRegistry()
        to = self.registry
        self.orders = Counter("fedveca_node_orders", "Orders, by kind and outcome.", ["kind", "outcome"], registry=to)
        self.seconds = Counter(
            "fedveca_node_work_seconds", "Seconds of work on orders, by kind.", ["kind"], registry=to
        )
        self.steps = Counter("fedveca_node_steps", "Local steps taken.", registry=to)
        self.round = Gauge("fedveca_node_round", "The last round that the node was asked to train in.", registry=to)

    def count(self, order: NodeOrder | None, answer: NodeAnswer, seconds: float) -> None:
        """One order more; None is one that could not be read."""
        kind = _name_kind(order)
        diverged = bool(answer.get("fields", {}).get("diverged"))
        outcome = "error" if "error" in answer else "diverged" if diverged else "answered"
        self.orders.labels(kind, outcome).inc()
        self.seconds.labels(kind).inc(seconds)
        if order is not None and kind == "train":
            self.round.set(order["round"] + 1)
            if outcome == "answered":
                self.steps.inc(order["tau"])
        from prometheus_client import generate_latest

        write_atomic(self.file, generate_latest(self.registry))


def _name_kind(order: NodeOrder | None) -> str:
    """One of five names, whatever the order holds."""
    if order is None:
        return "unknown"
    if "tau" in order:
        return "train" if order["tau"] else "loss"
    return "evaluate" if "part" in order else "question"


def make_node_figures(folder: Path) -> NodeFigures | None:
    """The counts of a node's worker, where they are served."""
    with suppress(ValueError):  # the SuperNode says it
        return NodeFigures(folder) if read_monitor(folder).port else None
    return None
