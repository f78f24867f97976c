"""How good a model is on the test set, and which model is kept."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor

from fedveca.algorithms.contract import HasModel
from fedveca.cohorts.local.meeting import wait_for_device
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.runs.federate import RECENT, RecentNorms, Rollback, RunningStatistics, advise, join_model
from fedveca.runs.folder import to_json
from fedveca.runs.guard import END_LOST, GROWTH, TrainingGuard
from fedveca.runs.schema import Evaluation, Round
from fedveca.tasks.datasets.dataset import Dataset, prepare
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.metrics import BlockCounts, close_counts, count_block
from fedveca.tasks.problem import Problem

_PATIENCE = 2  # rounds in a row beyond GROWTH times the loss of the first round: divergence
_PASS_BYTES = 2**30  # of what a model would hold for the gradients of one pass; evaluation needs less


class Evaluator:
    """The test set on the device, or where lazily read rows lie; a call gives one model's loss and metrics there."""

    def __init__(self, problem: Problem, data: Dataset, device: str) -> None:
        self.problem, self.device, self.pixels, self.y = problem, device, data.pixels, data.y_test.to(device)
        self.x: Tensor | LazyRows = data.x_test
        if isinstance(self.x, Tensor):
            self.x = self.x.to(device)
            if device == "cpu":
                self.x, self.pixels = _share_prepared(self.x, self.pixels), "as-is"
        self.threads = ThreadPool(0 if device == "cpu" else 1)
        self.block = 1000 if device == "cpu" else 10000
        if problem.row_bytes:
            self.block = max(1, min(self.block, _PASS_BYTES // problem.row_bytes))

    def __call__(self, model: Tensor) -> Evaluation:
        """Of a model: w [P], or w and running statistics [P + S]."""

        def count(at: int) -> BlockCounts:
            x, y = self.x[at : at + self.block], self.y[at : at + self.block]
            if isinstance(x, LazyRows):  # a block is all that is in memory
                x = x.read(torch.arange(len(x))).to(self.device)
            return count_block(self.problem, model, prepare(x, self.pixels), y)

        blocks = list(self.threads.map(count, range(0, len(self.y), self.block)))
        wait_for_device()
        found = close_counts(self.problem.metrics, blocks)
        return cast(Evaluation, {f"test_{name}": to_json(value) for name, value in found.items()})


_prepared: list[tuple[weakref.ref[Tensor], str, weakref.ref[Tensor]]] = []  # test rows, their pixels, and as floats


def _share_prepared(x: Tensor, pixels: str) -> Tensor:
    """Test rows as a model takes them; runs of a population hold them once."""
    _prepared[:] = [entry for entry in _prepared if entry[2]() is not None]
    found = next((ready() for rows, kind, ready in _prepared if rows() is x and kind == pixels), None)
    if found is None:
        found = prepare(x, pixels)
        _prepared.append((weakref.ref(x), pixels, weakref.ref(found)))
    return found


class GrowthCheck:
    """Warns once per run, in the round's record, when the loss stays far above the loss of the first round."""

    def __init__(self, records: list[Round], guarded: bool = False) -> None:
        self.guarded = guarded
        self.recent: RecentNorms = deque(maxlen=RECENT)
        self._first: float | None = None
        self._above, self._warned = 0, False
        for record in records:
            self._count(record)
            self._warned |= "warning" in record

    def judge(self, record: Round) -> None:
        """Puts `warning` into the record of the round in which the loss has been too large for the second time."""
        ratio = self._count(record)
        if self._above < _PATIENCE or self._warned:
            return
        self._warned = True
        times = f"{ratio:.3g} times that of the first round" if math.isfinite(ratio) else "not finite"
        advice = advise(list(self.recent)[-1:], self.guarded)  # of this round alone: the same in a run that was resumed
        record["warning"] = f"round {record['round'] + 1}: the loss is {times}; {advice}"

    def _count(self, record: Round) -> float:
        """The loss relative to that of the first round that has one; how often in a row it was too large."""
        name: Literal["train_loss", "test_loss"] = "train_loss" if "train_loss" in record else "test_loss"
        if name not in record:
            return 1.0
        loss = math.inf if record[name] is None else float(record[name] or 0)
        self._first = loss if self._first is None else self._first
        ratio = loss / self._first if 0 < self._first < math.inf else math.inf if loss == math.inf else 1.0
        self._above = self._above + 1 if ratio > GROWTH else 0
        return ratio


class Keeper:
    """The server's state after the last round, and the model that is kept so far."""

    def __init__(
        self,
        keep: str,
        state: HasModel,
        *,
        statistics: Tensor | None = None,
        round: int = 0,
        kept: Tensor | None = None,
        kept_round: int = 0,
        kept_loss: float = math.inf,
        lowest: float = math.inf,
        guard: TrainingGuard | None = None,
    ) -> None:
        self.keep, self.state, self.round = keep, state, round
        self.statistics = RunningStatistics(statistics) if statistics is not None and len(statistics) else None
        self.model = join_model(state, self.statistics)  # [P + S] after the last round
        self.kept = self.model if kept is None else kept  # [P + S]
        self.kept_round, self.kept_loss = kept_round, kept_loss  # F(kept)
        self.rollback = Rollback(lowest) if keep == "rollback" else None
        self.guard = guard

    def judge(self, state: HasModel, record: Round, late: bool = True) -> None:
        """One round more; F(w_k) is known with round k, so under keep=best w_k is judged one round late.

        Where it is not `late`, the round's model is judged by `consider`, once its loss is known.
        """
        if self.keep == "best" and late and "train_loss" in record:  # perhaps no client answered
            loss = record["train_loss"]
            record["accepted"] = loss is not None and loss <= self.kept_loss
            if loss is not None and record["accepted"]:
                self.kept, self.kept_round, self.kept_loss = self.model, self.round, loss
        record.setdefault("accepted", True)
        self.state, self.round = state, self.round + 1
        self.model = join_model(state, self.statistics)

    def consider(self, loss: float, record: Round) -> None:
        """Keeps the model of the round where its loss is not above that of the kept one; a void round made none."""
        record["accepted"] = record["accepted"] and math.isfinite(loss) and loss <= self.kept_loss
        if record["accepted"]:
            self.kept, self.kept_round, self.kept_loss = self.model, self.round, loss

    def end_at_best(self, last_loss: float, find_best: Callable[[], float]) -> str:
        """Where the last model is clearly worse, the guard's best one takes its place; a sentence says so.

        Args:
            last_loss: F of the last model.
            find_best: Finds F of the guard's best model, which may be above the lowest loss that clients reported:
                they report that of the model which they receive.
        """
        if not self.guard or not self.guard.has_lost(last_loss, END_LOST) or find_best() >= last_loss:
            return ""
        self.model, self.round = self.guard.best, self.guard.numbers.best_round
        return (
            f"the training loss of the last model is {last_loss:.4g}, above the lowest "
            f"({self.guard.numbers.lowest:.4g}), so the model after round {self.round} takes its place"
        )

    def choose(self, last_loss: float) -> None:
        """Keeps the last model where its loss is not above that of the kept one."""
        if self.kept_loss >= last_loss:
            self.kept, self.kept_round = self.model, self.round
