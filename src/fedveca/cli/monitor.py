"""The options of commands whose runs can be watched: --metrics-port, --metrics-host and --log."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedveca.monitor.settings import MonitorSettings
    from fedveca.runs.observers import Observer


def add_monitor(sub: argparse.ArgumentParser) -> None:
    """Where figures are served, and how the log is written."""
    text = "serve figures for Prometheus at /metrics on this port (default: none)"
    sub.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help=text)
    text = "address to serve them on (default 127.0.0.1: this machine only)"
    sub.add_argument("--metrics-host", default="127.0.0.1", metavar="ADDRESS", help=text)
    text = "text, or json: one JSON object per line (default text)"
    sub.add_argument("--log", choices=("text", "json"), default="text", metavar="FORM", help=text)


def parse_monitor(args: argparse.Namespace) -> MonitorSettings:
    """What is watched; UserError where that is invalid."""
    from fedveca.monitor.settings import MonitorSettings

    return MonitorSettings(args.metrics_port, args.metrics_host, args.log).check()


@contextmanager
def watch_run(settings: MonitorSettings) -> Iterator[list[Observer]]:
    """The observers that these settings ask for; what they serve is served until the end of the block."""
    observers: list[Observer] = []
    if settings.log == "json":
        from fedveca.monitor.log_observer import LogObserver
        from fedveca.monitor.logs import configure_logs

        configure_logs("json")
        observers.append(LogObserver("json"))
    if not settings.port:
        yield observers
        return
    from fedveca.monitor.endpoint import MetricsEndpoint
    from fedveca.monitor.machine_metrics import find_own_memory, make_registry
    from fedveca.monitor.run_metrics import RunMetrics

    metrics = RunMetrics()
    endpoint = MetricsEndpoint(settings.host, settings.port, [make_registry(find_own_memory), metrics.registry])
    try:
        yield [*observers, metrics]
    finally:
        endpoint.close()
