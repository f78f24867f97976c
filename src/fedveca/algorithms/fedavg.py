"""FedAvg (McMahan et al. 2017): the weighted mean of the clients' models, equation (5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report, ServerState


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """w_(k+1) = w_k - eta sum_i p_i G_i, with G_i the sum of client i's gradients."""

    lr: float

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * report.mean["G"]), {}  # (5)

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {}
