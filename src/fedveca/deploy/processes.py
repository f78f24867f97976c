"""Processes of a deployment: whether one runs, and all those whose environment has a mark."""

from __future__ import annotations

import ctypes
import signal
import time
from contextlib import suppress

import psutil


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent to notice does not."""
    try:
        return str(psutil.Process(pid).status()) not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def find_marked(name: str, value: str) -> list[psutil.Process]:
    """All processes with this variable in their environment, which children inherit."""
    everyone = psutil.process_iter(["environ"])
    return [process for process in everyone if (process.info["environ"] or {}).get(name) == value]


def kill_marked(name: str, value: str, patience: float) -> None:
    """Kills what has the mark and has not ended within `patience` seconds, then waits 5 s for it to be gone."""
    until = time.monotonic() + patience
    while (left := find_marked(name, value)) and time.monotonic() < until + 5:
        if time.monotonic() >= until:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        time.sleep(0.1)


def end_with_parent() -> None:
    """Linux ends this process when the one that started it is gone, even by kill -9."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
