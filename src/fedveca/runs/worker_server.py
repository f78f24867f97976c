"""Where worker processes come from: on Linux a process that has loaded PyTorch once and forks each of them.

A process that runs cannot be forked itself: CUDA and threads do not survive it. The server has neither, since it only
imports. Elsewhere each worker is a new process, which imports for itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import tempfile

from fedveca.runs.experiment import Experiment

_SAFE_PYTHON = (3, 11, 1)  # before, other users could reach the server
_MOST_LETTERS = 64  # of the folder of temporary files: a socket in it has a name of 107 letters at most
FORKS = (
    sys.platform == "linux"
    and sys.version_info >= _SAFE_PYTHON
    and len(os.fsencode(tempfile.gettempdir())) <= _MOST_LETTERS
)
WORKERS = multiprocessing.get_context("forkserver" if FORKS else "spawn")
M_ARENA_MAX = -8  # of glibc's malloc.h
_SMALL = ("svm", "logistic", "mlp")


def limit_arenas() -> bool:
    """Has the threads of this process share two heaps of glibc, if it has that: what one frees another one can use.

    Two workers with 60 runs of 1,000 clients take 1.4 instead of 1.7 GB.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2))
    except (OSError, AttributeError, TypeError):  # another C library, or Windows
        return False


def start_server() -> None:
    """Starts it where there is none yet; a command that does so early has it load PyTorch at the same time."""
    if FORKS:
        from multiprocessing import forkserver

        WORKERS.set_forkserver_preload(["fedveca.runs.pool"])
        forkserver.ensure_running()


def keeps_one_core_busy(e: Experiment) -> bool:
    """Whether runs like this one take so small steps on the CPU that a process cannot use more than one core."""
    return e.model in _SMALL and e.engine == "local" and not e.track
