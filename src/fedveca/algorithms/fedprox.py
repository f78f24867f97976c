"""FedProx (Li et al. 2020): FedAvg whose steps are pulled back towards w_k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report, ServerState
from fedveca.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Every client minimises F_i(w) + mu/2 |w - w_k|^2; mu = 0 is FedAvg."""

    lr: float
    mu: float = 0.1

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return FedAvg(self.lr).update(state, ids, p, report)

    def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        return torch.sub(w, g + self.mu * (w - order.w), alpha=self.lr), s

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return FedAvg(self.lr).finish(order, s, w, tau)
