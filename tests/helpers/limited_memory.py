"""A limit on the memory that a reader may ask for."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT = 1 << 29  # bytes that a reader may ask for beyond what the tests already hold


@contextmanager
def limited_memory() -> Iterator[None]:
    """Who believes a header of terabytes, or of a gigabyte, meets MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
