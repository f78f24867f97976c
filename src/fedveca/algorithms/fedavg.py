"""FedAvg (McMahan et al. 2017): the weighted mean of the clients' models, equation (5)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report, ServerState
from fedveca.algorithms.registry import method


@method("fedavg", title="FedAvg", colour="#009E73", dash="--", paper=2)
@method("centralised", title="centralised", colour="#444444", dash=".", pooled=True, paper=6)
@dataclass(frozen=True)
class FedAvg(Algorithm[ServerState, NoCarry]):
    """w_(k+1) = w_k - eta sum_i p_i G_i, with G_i the sum of client i's gradients."""

    lr: float

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * report.mean["G"]), {}  # (5)

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {}
