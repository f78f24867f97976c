"""FedACG (Kim et al. 2024): clients start where the server's momentum is about to take the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


class FedACGState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client
    m: Tensor  # [P] the server's momentum


@method("fedacg", title="FedACG", colour="#6A3D9A", dash="__")
@dataclass(frozen=True)
class FedACG(Algorithm[FedACGState, NoCarry]):
    """Clients start at v = w_k + lambda m_k and minimise F_i(w) + beta/2 |w - v|^2; w_(k+1) is the mean of theirs."""

    lr: float
    acg_lambda: float = hyper(0.85, "lambda, the share of the former momentum", low=0, high=0.99)
    acg_beta: float = hyper(0.01, "beta, the pull towards the model that was sent", low=0)

    def init(self, w: Tensor, tau: Tensor) -> FedACGState:
        return FedACGState(w, tau, torch.zeros_like(w))

    def order(self, state: FedACGState) -> Order:
        return Order(state.w + self.acg_lambda * state.m, {})

    def update(self, state: FedACGState, ids: Tensor, p: Tensor, report: Report) -> tuple[FedACGState, Named]:
        m = self.acg_lambda * state.m + report.mean["moved"]
        return state._replace(w=state.w + m, m=m), {}

    def shorten(self, before: FedACGState, after: FedACGState, scale: float) -> FedACGState:
        return super().shorten(before, after, scale)._replace(m=scale * after.m)  # w_(k+1) - w_k stays m_(k+1)

    def direction(self, order: Order, s: NoCarry, w: Tensor, g: Tensor) -> Tensor:
        return g + self.acg_beta * (w - order.w)

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"moved": w - order.w}, {}, {}
