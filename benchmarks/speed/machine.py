"""What timings were taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TypedDict


class Machine(TypedDict):
    cpu: str
    cores: int
    memory_gb: int
    system: str
    python: str


def machine() -> Machine:
    """What the timings were taken on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(": ")[1] for line in info if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
