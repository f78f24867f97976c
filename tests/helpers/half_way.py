"""A method whose clients begin from a model of their own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveca.algorithms import FedAvg
from fedveca.algorithms.contract import Named, NoCarry, Order


@dataclass(frozen=True)
class HalfWay(FedAvg):
    """A client starts half way between w_k and the model with which it ended its last round."""

    def memory(self, w: Tensor) -> Named:
        return {"mine": w}

    def begin(self, order: Order, memory: Named) -> Tensor:
        return (order.w + memory["mine"]) / 2

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {"mine": w}
