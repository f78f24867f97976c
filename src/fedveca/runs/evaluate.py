"""The test set, and which model is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import ServerState
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.runs.folder import to_json
from fedveca.runs.schema import Round
from fedveca.tasks.datasets.dataset import Dataset, prepare
from fedveca.tasks.problem import Problem


class Evaluator:
    """The test set on the device; a call gives one model's loss and metric there."""

    def __init__(self, problem: Problem, data: Dataset, device: str) -> None:
        self.problem = problem
        self.x, self.y = data.x_test.to(device), data.y_test.to(device)
        self.pixels = data.pixels
        if device == "cpu":
            self.x, self.pixels = prepare(self.x, self.pixels), "as-is"
        self.threads = ThreadPool(0 if device == "cpu" else 1)
        self.block = len(self.y) if problem.whole else 1000 if device == "cpu" else 10000

    def __call__(self, w: Tensor) -> dict[str, float | None]:
        def part(at: int) -> Tensor:
            x, y = self.x[at : at + self.block], self.y[at : at + self.block]
            return len(y) * torch.stack(self.problem.losses(w, prepare(x, self.pixels), y)).double()

        sums = torch.stack(list(self.threads.map(part, range(0, len(self.y), self.block)))).sum(0)
        loss, metric = (to_json(v) for v in (sums / len(self.y)).tolist())
        return {"test_loss": loss, f"test_{self.problem.measure}": metric}  # type: ignore[dict-item]


class Progress(NamedTuple):
    """All that changes during a run, except for the clients' memory, which the cohort has."""

    state: ServerState  # the method's, with w = w_round
    round: int  # rounds done
    kept: Tensor  # [P] the kept model so far
    kept_round: int
    kept_loss: float  # F(kept)
    lowest: float  # keep=rollback: the lowest estimated loss so far

    @staticmethod
    def begin(state: ServerState) -> Progress:
        return Progress(state, 0, state.w, 0, math.inf, math.inf)

    def advance(self, keep: str, state: ServerState, record: Round, lowest: float) -> Progress:
        """One round more; F(w_k) is known with round k, so under keep=best w_k is judged one round late."""
        after = self._replace(state=state, round=self.round + 1, lowest=lowest)
        if keep == "best" and record.get("train_loss") is not None and record["accepted"]:
            return after._replace(kept=self.state.w, kept_round=self.round, kept_loss=float(record["train_loss"] or 0))
        return after

    def accepts(self, keep: str, record: Round) -> bool:
        """Whether the round's model is the best so far; under keep=rollback the federation has decided already."""
        if "accepted" in record:
            return record["accepted"]
        loss = record.get("train_loss")
        return keep != "best" or "train_loss" not in record or (loss is not None and loss <= self.kept_loss)
