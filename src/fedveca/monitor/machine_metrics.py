"""Figures of a machine that takes part: memory of its processes, days until certificates expire, versions.

They are read when somebody asks for them.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from fedveca.version import __version__


class MachineCollector(Collector):
    """Reads the figures anew at each scrape.

    Args:
        memory: finds the bytes of memory by part; parts are names of our own.
        certificates: files in PEM form by name; one that is missing or unreadable is left out.
    """

    def __init__(self, memory: Callable[[], Mapping[str, int]], certificates: Mapping[str, Path] | None = None) -> None:
        self._memory, self._certificates = memory, certificates or {}

    def collect(self) -> Iterator[GaugeMetricFamily | InfoMetricFamily]:
        """The figures as they are now."""
        yield InfoMetricFamily("fedveca_build", "Versions of the software.", value=find_versions())
        memory = GaugeMetricFamily("fedveca_memory_bytes", "Resident memory of processes, by part.", labels=["part"])
        for part, size in self._memory().items():
            memory.add_metric([part], size)
        yield memory
        if not self._certificates:
            return
        days = GaugeMetricFamily("fedveca_certificate_days", "Days until it expires.", labels=["certificate"])
        for name, path in self._certificates.items():
            with suppress(OSError, ValueError):
                days.add_metric([name], find_days_left(path))
        yield days


def make_registry(
    memory: Callable[[], Mapping[str, int]], certificates: Mapping[str, Path] | None = None
) -> CollectorRegistry:
    """A registry with these figures."""
    registry = CollectorRegistry()
    registry.register(MachineCollector(memory, certificates))
    return registry


def find_versions() -> dict[str, str]:
    """Versions of what matters; a package that is missing is left out."""
    found = {"version": __version__, "python": platform.python_version()}
    for name in ("torch", "flwr"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def find_days_left(path: Path) -> float:
    """Days until a certificate expires; below 0 where it has.

    Raises:
        ValueError: if the file is not a certificate.
    """
    from cryptography import x509

    left = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left.total_seconds() / 86400


def find_own_memory() -> dict[str, int]:
    """The resident memory of this process, where the system says it."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return {"run": int(line.split()[1]) * 1024}
    return {}
