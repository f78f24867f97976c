"""FedNova (Wang et al. 2020): directions are averaged per local step, equation (6)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report, ServerState
from fedveca.algorithms.registry import method


@method("fednova", title="FedNova", colour="#2B93D1", dash="-.", paper=4)
@dataclass(frozen=True)
class FedNova(Algorithm[ServerState, NoCarry]):
    """w_(k+1) = w_k - eta tau_k d_k, tau_k = sum_i p_i tau_i, d_k = sum_i p_i G_i, G_i a mean gradient."""

    lr: float

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        tau_k = float(p @ report.each["tau"])  # the arithmetic mean: dividing once more is a common error
        return state._replace(w=state.w - self.lr * tau_k * report.mean["G"]), {}  # (6)

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / (self.lr * tau)}, {}, {}
