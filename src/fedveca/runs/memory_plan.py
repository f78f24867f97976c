"""What a device and a server need in memory: a process with PyTorch, as large as this one, with data and vectors."""

from __future__ import annotations

import sys
from typing import NamedTuple

from torch import Tensor

from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.build import Built
from fedveca.runs.federate import compose_order
from fedveca.tasks.datasets.lazy import LazyRows

_STEP_VECTORS = 8  # vectors like w that a client holds while it steps, as `LocalCohort` counts them
_SERVER_VECTORS = 4  # the model, the kept one, the module's parameters and a new one
_FLOAT, _DOUBLE = 4, 8  # bytes


class MemoryPlan(NamedTuple):
    """Bytes, without the processes of Flower itself."""

    process: int  # Python with PyTorch and this package, as measured here
    devices: tuple[int, ...]  # the process of each device, in all
    server: int  # the process of the server, in all

    @property
    def device(self) -> int:
        """Of the device that needs the most."""
        return max(self.devices)


def estimate_memory(built: Built) -> MemoryPlan:
    """What the processes of an experiment hold at the same time, each on a machine of its own."""
    method, problem, e = built.algorithm, built.problem, built.experiment
    order = compose_order(method, built.state, None)
    sent = _FLOAT * sum(v.numel() for v in (order.w, *order.aux.values())) + _FLOAT * len(built.statistics)
    remembered = _FLOAT * sum(v.shape[-1] for v in method.memory(order.w).values())
    row, at_once = _count_row(built.data.x) + _count_row(built.data.y), max(e.batch, _find_block(built))
    vectors = 2 * sent + remembered + _STEP_VECTORS * _FLOAT * problem.size
    process = measure_process()
    each = (process + vectors + n * row + min(n, at_once) * problem.row_bytes for n in built.shares.sizes.tolist())
    tested = len(built.data.y_test) * (_count_row(built.data.x_test) + _count_row(built.data.y_test))
    state = sum(v.numel() * v.element_size() for v in built.state if isinstance(v, Tensor))
    server = 3 * sent + 2 * sent * _DOUBLE // _FLOAT + state + tested + _SERVER_VECTORS * _FLOAT * problem.size
    return MemoryPlan(process, tuple(each), process + server)


def _find_block(built: Built) -> int:
    """Rows that are computed with at once in a probe."""
    cohort: object = built.cohort
    while cohort is not None and not isinstance(cohort, LocalCohort):
        cohort = getattr(cohort, "cohort", None)
    return cohort.block if isinstance(cohort, LocalCohort) else 0


def _count_row(rows: Tensor | LazyRows) -> int:
    """Bytes of one row in memory; those that are read when they are needed take none."""
    return rows[0].numel() * rows.element_size() if isinstance(rows, Tensor) and len(rows) else 0


def measure_process() -> int:
    """Bytes that a process with PyTorch and this package has, before it has any data; 0 where that is not known."""
    return _measured


def _measure_now() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


_measured = _measure_now()  # when this file is imported, which is after PyTorch
