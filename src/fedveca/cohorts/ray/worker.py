"""A share of the clients in a process of its own: the local cohort, whose reports travel as arrays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Order
from fedveca.cohorts.contract import CohortOptions, HeldPart
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.version import __version__

NumpyArray = NDArray[np.number]
NamedArrays = dict[str, NumpyArray]


class PartialMean(NamedTuple):
    """The weighted mean over some clients, [P] each, and the sum of their weights; integers are sums, secure=on."""

    mean: NamedArrays
    mass: float


class TurnAnswer(NamedTuple):
    """What the clients of a worker report one by one."""

    who: NumpyArray  # [n]
    each: NamedArrays  # [n] each
    norms: NamedArrays  # of Norms


class ScoreAnswer(NamedTuple):
    """What the clients of a worker found on the rows that they hold back."""

    ids: NumpyArray  # [n]
    rows: NumpyArray  # [n]
    values: NamedArrays  # [n] each


class WorkerInfo(TypedDict):
    """What a worker says of itself."""

    pid: int
    fedveca: str  # its version
    device: str


def merge_means(a: PartialMean, b: PartialMean) -> PartialMean:
    """The mean over both, or the sum."""
    if not (a.mass and b.mass):
        return a if a.mass else b
    mass = a.mass + b.mass
    left, right = np.float32(a.mass / mass), np.float32(b.mass / mass)
    if any(v.dtype == np.int64 for v in a.mean.values()):
        return PartialMean({name: v + b.mean[name] for name, v in a.mean.items()}, mass)
    return PartialMean({name: v * left + b.mean[name] * right for name, v in a.mean.items()}, mass)


def to_arrays(named: dict[str, Tensor]) -> NamedArrays:
    return {name: v.detach().cpu().numpy() for name, v in named.items()}


def to_tensors(arrays: NamedArrays, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    return {name: torch.tensor(v, device=device) for name, v in arrays.items()}  # what travelled is read-only


def assign_clients(sizes: Tensor, workers: int) -> Tensor:
    """[N] the worker of each client: largest first, back and forth, so that all own about as many rows."""
    at = torch.arange(len(sizes)) % (2 * workers)
    owner = torch.empty_like(sizes)
    owner[sizes.argsort(descending=True, stable=True)] = torch.minimum(at, 2 * workers - 1 - at)
    return owner


class Worker:
    """Client i of the federation is client i here: those that live elsewhere own no rows."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Callable[[], Problem],
        x: NumpyArray | LazyRows,
        y: NumpyArray,
        starts: list[NumpyArray],
        device: str,
        path: str,
        options: CohortOptions,
    ) -> None:
        torch.set_num_threads(1)
        sys.path.append(path)  # where a custom model lies
        shares, *held = self._find_shares(starts)
        if held:
            options["held"] = Holdout(shares, *held)
        self.local = LocalCohort(
            algorithm,
            problem(),
            x if isinstance(x, LazyRows) else torch.tensor(x),
            torch.tensor(y),
            shares,
            device=device,
            threads=0 if device == "cuda" else 1,
            **options,
        )
        self.turn, self.answer = -1, (PartialMean({}, 0.0), TurnAnswer(np.empty(0), {}, {}))

    @staticmethod
    def _find_shares(starts: list[NumpyArray]) -> list[Shares]:
        """The rows to train on and, behind them, those of each part that is held back."""
        found, first = list[Shares](), 0
        for start in map(torch.tensor, starts):
            found.append(Shares(torch.arange(first, first + int(start[-1])), start))
            first += int(start[-1])
        return found

    def describe(self) -> WorkerInfo:
        return {"pid": os.getpid(), "fedveca": __version__, "device": str(self.local.device)}

    def run_turn(
        self, turn: int, k: int, order: tuple[NumpyArray, NamedArrays], ids: NumpyArray, tau: NumpyArray
    ) -> tuple[PartialMean, TurnAnswer]:
        """The mean over those who answered, and their numbers. Asked for the same turn again, it repeats the answer."""
        if turn != self.turn:
            who, report = self.local(k, self._receive(order), torch.tensor(ids), torch.tensor(tau))
            total = PartialMean(to_arrays(report.mean), float(self.local.weights[who].sum()))
            norms = to_arrays(report.norms._asdict()) if report.norms else {}
            self.turn, self.answer = turn, (total, TurnAnswer(who.numpy(), to_arrays(report.each), norms))
        return self.answer

    def evaluate(self, k: int, order: tuple[NumpyArray, NamedArrays], part: HeldPart, finetune: int) -> ScoreAnswer:
        """What this worker's clients find on the rows that they hold back."""
        scores = self.local.evaluate(k, self._receive(order), part, finetune)
        return ScoreAnswer(scores.ids.numpy(), scores.rows.numpy(), to_arrays(scores.values))

    def _receive(self, order: tuple[NumpyArray, NamedArrays]) -> Order:
        w, aux = order
        return Order(torch.tensor(w, device=self.local.device), to_tensors(aux, self.local.device))

    def merge(self, a: PartialMean, b: PartialMean) -> PartialMean:
        return merge_means(a, b)

    def recall(self, ids: NumpyArray) -> tuple[NumpyArray, NamedArrays]:
        """Those of the clients that remember something, and what."""
        memory = self.local.memory
        clients = torch.tensor(ids)
        known = clients[memory.has_row(clients)]
        return known.numpy(), to_arrays(memory.recall(known))

    def forget(self) -> None:
        self.local.memory.forget()

    def remember(self, ids: NumpyArray, rows: NamedArrays) -> None:
        self.local.memory.remember(torch.tensor(ids), to_tensors(rows, self.local.device))
