"""The answers of a round, summed as they come."""

from __future__ import annotations

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Norms, Report
from fedveca.cohorts.aggregate import Aggregator


class AnswerTally:
    """One sum, however many clients there are; answers are to be added in the order of the clients."""

    def __init__(self, aggregator: Aggregator, weights: Tensor) -> None:
        self.aggregator, self.weights = aggregator, weights
        self.who: list[int] = []
        self._each: dict[str, list[float]] = {}
        self._norms: list[list[float]] = []

    def add(self, i: int, tau: int, numbers: dict[str, float], vectors: Named) -> None:
        """Client i's answer, checked."""
        self.who.append(i)
        weight = self.weights[i : i + 1].double()
        self.aggregator.add(self.aggregator.reduce(weight, {name: v.double()[None] for name, v in vectors.items()}))
        self._norms.append([float(v.double().norm()) for _, v in sorted(vectors.items())])
        for name, value in (numbers | {"tau": float(tau)}).items():
            self._each.setdefault(name, []).append(value)

    def close(self, w: Tensor) -> tuple[Tensor, Report]:
        """Who answered, and the report; its vectors are like w."""
        answered = torch.tensor(self.who, dtype=torch.int64)
        mass = float(self.weights[answered].double().sum())
        mean = {name: v.to(w) for name, v in self.aggregator.close(mass).items()}
        each = {name: torch.tensor(v, dtype=torch.float64) for name, v in self._each.items()}
        lengths = Norms(answered, torch.tensor(self._norms).T) if self.who else None
        share = mass / float(self.weights.double().sum())
        return answered, Report(mean, self.aggregator.limit_numbers(each), share, norms=lengths)
