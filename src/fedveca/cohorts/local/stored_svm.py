"""The SVM in C on a cohort's rows, where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from fedveca.cohorts.local.rows import ClientRows, LazyClientRows
from fedveca.tasks.native.squared_svm import SvmKernel, has_svm_kernel
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm


class StoredSvm:
    """Finds the kernel for rows: one for all rows in memory, another one for each batch that is read."""

    def __init__(self, problem: SquaredSvm, rows: ClientRows | LazyClientRows) -> None:
        self.problem, self.rows = problem, rows
        self._whole = None
        if isinstance(rows, ClientRows):
            ((x, s, scaling, _),) = rows.stored([rows.y])
            self._whole = problem.kernel_on(x, s, rows.unit, scaling)

    def visit(self, index: Iterable[Tensor]) -> Iterator[tuple[SvmKernel, Tensor]]:
        """For each tensor of row numbers, the kernel, and the same rows' numbers there."""
        for x, s, scaling, at in self.rows.stored(index):
            yield self._whole or self.problem.kernel_on(x, s, self.rows.unit, scaling), at


def find_stored_svm(problem: Problem, rows: ClientRows | LazyClientRows) -> StoredSvm | None:
    """What computes the SVM's numbers on these rows in C, if anything does."""
    if not isinstance(problem, SquaredSvm) or rows.device.type != "cpu" or not has_svm_kernel(rows.x.dtype):
        return None
    return StoredSvm(problem, rows)
