"""What memory a run needs, worked out from its settings before anything is allocated; and what to do without it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedveca.algorithms import Algorithm
from fedveca.cohorts.client_memory import make_new_memory
from fedveca.cohorts.transfer import VectorTransfer
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.lock import InUse, lock_folder
from fedveca.tasks.datasets.synthetic import FEATURES

CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def capacity() -> int:
    """Bytes that this process may have: all of the machine's memory, or less where a limit is set."""
    limits = [sys.maxsize]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not known on every system
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ImportError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    for path in CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            limits.append(int(path.read_text()))
    return min(limit for limit in limits if limit > 0)  # an infinite limit is negative


def check_rows(e: Experiment) -> None:
    """ValueError where the rows that synthetic draws for the clients cannot fit."""
    mean = min(100.0, max(20.0, 100_000 / e.clients))  # rows of a client, and a fifth more to test on
    each = int(1.2 * mean * (4 * FEATURES + 8))
    if e.data == "synthetic" and e.clients * each > capacity():
        said = f"clients={e.clients} of data=synthetic {_needs(e.clients * each)}"
        raise UserError(f"{said}; at most {capacity() // each} clients fit")


def check_model(e: Experiment, features: int, outputs: int) -> None:
    """ValueError where the parameters of model=mlp cannot fit: the module, w_0, w and a gradient."""
    each = 16 * (features + 1 + outputs)
    if e.model == "mlp" and e.hidden * each > capacity():
        raise UserError(f"hidden={e.hidden} {_needs(e.hidden * each)}; at most {capacity() // each} hidden units fit")


def check_memory(e: Experiment, algorithm: Algorithm, state: Any, statistics: int = 0) -> None:
    """ValueError where what the clients keep between rounds is to be held in RAM and cannot fit there."""
    if e.memory_mb * 2**20 <= capacity():
        return
    order, transfer = algorithm.order(state), VectorTransfer(e.wire, e.wire_share)
    clients, memory = len(state.tau), make_new_memory(algorithm, order, False, transfer)
    each = sum(v.shape[-1] for v in memory.values()) + (statistics if e.norm_stats == "local" else 0)
    size = min(4 * clients * each, e.memory_mb * 2**20)
    if size > capacity():
        raise UserError(
            f"memory_mb={e.memory_mb} {_needs(size)} for what {clients} clients keep; at most {capacity() >> 20} fit, "
            "the rest goes to disk"
        )


def _needs(size: int) -> str:
    return f"needs {size / 1e9:,.1f} GB of memory or more, and {capacity() / 1e9:,.1f} GB are there"


@contextlib.contextmanager
def discard_unbegun(folder: Path) -> Iterator[None]:
    """Deletes a run folder that is new and has no round yet where the run fails; one that has rounds can be resumed."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except Exception as error:
        lines = folder / "rounds.jsonl"
        if missing and folder.exists() and not isinstance(error, OSError):
            with contextlib.suppress(OSError, InUse), lock_folder(folder):  # another process may have made it meanwhile
                if not (lines.exists() and lines.stat().st_size):
                    shutil.rmtree(folder)
            with contextlib.suppress(OSError):
                for parent in missing[1:]:
                    parent.rmdir()  # it was made for the folder, and is empty
        raise
