"""What a node reports of its machine before the first round: versions, clock, room, speed, certificate."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import psutil
import torch

from fedveca.algorithms.contract import STATISTICS, Order
from fedveca.cohorts.client_memory import ClientMemory, make_new_memory
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.deploy.certificates import read_expiry
from fedveca.deploy.exchange import ConfigValue, NodeAnswer
from fedveca.errors import UserError, printable
from fedveca.version import __version__

_LONG_ENOUGH = 0.02  # seconds that can be told from noise
_MOST_STEPS = 1024
_REPEATS = 3
_LONGEST_PROBLEM = 400  # characters

Fields = dict[str, ConfigValue]


def list_versions() -> dict[str, str]:
    """The versions of what computes here."""
    flower = metadata.version("flwr")
    return {"version": __version__, "python": platform.python_version(), "torch": torch.__version__, "flwr": flower}


def inspect_node(
    client: int, folder: Path, describe: Callable[[], Fields], prepare: Callable[[Fields], LocalCohort]
) -> NodeAnswer:
    """A node's report; what is wrong with its rows is a sentence in it.

    Args:
        client: which client it is.
        folder: the node's folder.
        describe: reads the rows and says what they look like.
        prepare: makes the cohort that would train, of that.
    """
    fields: Fields = {"client": client, "began": time.time(), **list_versions()}
    fields["disk"], fields["memory"] = float(shutil.disk_usage(folder).free), float(psutil.virtual_memory().available)
    fields["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if (folder / "ca.pem").exists():
        try:
            fields["expiry"] = read_expiry(folder / "ca.pem")
        except UserError as error:
            fields["problem"] = printable(str(error), _LONGEST_PROBLEM)
    try:
        rows = describe()
        fields |= rows
        fields["row_seconds"] = measure_row(prepare(rows), client)
    except Exception as error:  # of a custom loader or model, it may be any; the operator reads it
        why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        fields["problem"] = printable(" ".join(why.split()), _LONGEST_PROBLEM)
    fields["time"] = time.time()  # last: the answer leaves now
    return {"fields": fields, "numbers": {}}


def measure_row(local: LocalCohort, client: int) -> float:
    """Seconds that a row of a local step takes: the difference of several steps and one, by the rows between them."""
    problem, device, here = local.problem, local.device, torch.tensor([client])
    state = local.algorithm.init(problem.init().to(device), torch.ones(client + 1, dtype=torch.int64))
    order: Order = local.algorithm.order(state)
    if problem.statistics:
        order = order._replace(aux=order.aux | {STATISTICS: problem.initial_statistics().to(device)})
    before = local.memory

    def time_steps(steps: int) -> float:
        local.memory = ClientMemory(client + 1)
        if make_new_memory(local.algorithm, order, local.local_statistics):
            local.memory.remember(here, {})
        began = time.perf_counter()
        local(0, order, here, torch.tensor([steps]))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    steps = 1
    try:
        time_steps(1)  # what is loaded or compiled once does not count
        while True:
            one, more = (min(time_steps(1 + n) for _ in range(_REPEATS)) for n in (0, steps))
            if more - one >= _LONG_ENOUGH or steps >= _MOST_STEPS:
                break
            steps *= 4
    finally:
        local.memory = before
    rows = min(local.batch, int(local.sizes[client]))
    return max(more - one, 0.0) / (steps * rows)
