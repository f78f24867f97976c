"""FedProx (Li et al. 2020): FedAvg whose steps are pulled back towards w_k."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveca.algorithms.contract import NoCarry, Order
from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


@method("fedprox", title="FedProx", colour="#BC5E94", dash=":", paper=3)
@dataclass(frozen=True)
class FedProx(FedAvg):
    """Every client minimises F_i(w) + mu/2 |w - w_k|^2; mu = 0 is FedAvg."""

    mu: float = hyper(0.1, "pull towards w_k", low=0)

    def direction(self, order: Order, s: NoCarry, w: Tensor, g: Tensor) -> Tensor:
        return g + self.mu * (w - order.w)
