"""SCAFFOLD (Karimireddy et al. 2020), Option II, for F = sum_i p_i F_i."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.registry import method


class ScaffoldState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client
    c: Tensor  # [P] sum_i p_i c_i over all clients, those never seen counting as zero


@method("scaffold", title="SCAFFOLD", colour="#0072B2", dash="__", paper=5)
@dataclass(frozen=True)
class Scaffold(Algorithm[ScaffoldState, Tensor]):
    """A step goes along g - c_i + c; c_i becomes the mean gradient of the client's last round."""

    lr: float
    needs_mean: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> ScaffoldState:
        return ScaffoldState(w, tau, torch.zeros_like(w))

    def order(self, state: ScaffoldState) -> Order:
        return Order(state.w, {"c": state.c})

    def update(self, state: ScaffoldState, ids: Tensor, p: Tensor, report: Report) -> tuple[ScaffoldState, Named]:
        w = state.w - self.lr * report.mean["G"]
        c = state.c + report.mass * report.mean["dc"]  # the absent keep their c_i
        return state._replace(w=w, c=c), {}

    def memory(self, w: Tensor) -> Named:
        return {"c": torch.zeros_like(w)}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["c"]

    def direction(self, order: Order, s: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return g - s + order.aux["c"]

    def finish(
        self, order: Order, s: Tensor, w: Tensor, tau: Tensor, mean: Tensor | NoCarry = ()
    ) -> tuple[Named, Named, Named]:
        G = (order.w - w) / self.lr
        mean = mean if isinstance(mean, Tensor) else G / tau
        dc = mean - order.aux["c"]  # c_i+ - c_i, Option II
        return {"G": G, "dc": dc}, {}, {"c": s + dc}
