"""A share of the clients in a process of its custom: the local cohort, and what it says in arrays that travel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Order
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.version import __version__

Array = NDArray[Any]
Arrays = dict[str, Array]


class Sum(NamedTuple):
    """The weighted mean over some clients, [P] each, and the rows that they own together."""

    mean: Arrays
    mass: float


def added(a: Sum, b: Sum) -> Sum:
    """The mean over both."""
    if not (a.mass and b.mass):
        return a if a.mass else b
    mass = a.mass + b.mass
    left, right = np.float32(a.mass / mass), np.float32(b.mass / mass)
    return Sum({name: v * left + b.mean[name] * right for name, v in a.mean.items()}, mass)


def packed(named: dict[str, Tensor]) -> Arrays:
    return {name: v.detach().cpu().numpy() for name, v in named.items()}


def unpacked(arrays: Arrays, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    return {name: torch.tensor(v, device=device) for name, v in arrays.items()}  # what travelled is read-only


def dealt(sizes: Tensor, workers: int) -> Tensor:
    """[N] the worker of each client: largest first, to and fro, so that all own about as many rows."""
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
        x: Array,
        y: Array,
        start: Array,
        device: str,
        path: str,
        options: dict[str, Any],
    ) -> None:
        torch.set_num_threads(1)
        sys.path.append(path)  # where a user's own model lies
        rows = torch.arange(len(y))
        self.local = LocalCohort(
            algorithm,
            problem(),
            torch.tensor(x),
            torch.tensor(y),
            Shares(rows, torch.tensor(start)),
            device=device,
            threads=0 if device == "cuda" else 1,
            **options,
        )
        self.turn, self.answer = -1, (Sum({}, 0.0), np.empty(0), Arrays(), Arrays())

    def about(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "fedveca": __version__, "device": str(self.local.device)}

    def ask(self, turn: int, k: int, order: tuple[Array, Arrays], ids: Array, tau: Array) -> tuple[Sum, Any]:
        """The sum over those who answered; who, their numbers, and norms. Asked the same turn again, it repeats it."""
        if turn != self.turn:
            w, aux = order
            told = Order(torch.tensor(w, device=self.local.device), unpacked(aux, self.local.device))
            who, report = self.local(k, told, torch.tensor(ids), torch.tensor(tau))
            total = Sum(packed(report.mean), float(self.local.weights[who].sum()))
            norms = packed(report.norms._asdict()) if report.norms else Arrays()
            self.turn, self.answer = turn, (total, who.numpy(), packed(report.each), norms)
        return self.answer[0], self.answer[1:]

    def add(self, a: Sum, b: Sum) -> Sum:
        return added(a, b)

    def recall(self, ids: Array) -> tuple[Array, Arrays]:
        """Those of the clients that remember something, and what."""
        memory = self.local.memory
        asked = torch.tensor(ids)
        seen = asked[memory.seen(asked)]
        return seen.numpy(), packed(memory.recall(seen, memory.blank()))

    def remember(self, ids: Array, rows: Arrays) -> None:
        self.local.memory.remember(torch.tensor(ids), unpacked(rows, self.local.device))
