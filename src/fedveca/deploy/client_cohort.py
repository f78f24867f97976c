"""The local cohort of a node, which measures how long the parts of its work take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order
from fedveca.cohorts.local.chunks import Chunk
from fedveca.cohorts.local.cohort import LocalCohort


class ClientCohort(LocalCohort):
    """One client."""

    times: dict[str, float]  # seconds of the parts of its work since this was emptied: "probe" and "steps"

    def _probe(
        self, w: Tensor, running: Tensor | None, chunk: Chunk, want_loss: bool, want_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        with self._measure("probe"):
            return super()._probe(w, running, chunk, want_loss, want_gradient)

    def _step_together(
        self,
        k: int,
        algorithm: Algorithm,
        order: Order,
        former: Named,
        loss: Tensor,
        g0: Tensor,
        w: Tensor,
        running: Tensor | None,
        chunk: Chunk,
    ) -> tuple[Tensor, object, Tensor | None]:
        with self._measure("steps"):
            return super()._step_together(k, algorithm, order, former, loss, g0, w, running, chunk)

    @contextmanager
    def _measure(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times[part] = self.times.get(part, 0.0) + time.perf_counter() - start
