"""FedDyn (Acar et al. 2021): each client's loss is tilted so that its own minimum is one of the whole.

Client i minimises F_i(w) - <h_i, w> + a/2 |w - w_k|^2 and then lowers h_i by a (w_i - w_k); the server keeps
h = sum_i p_i h_i over all clients and sets w_(k+1) = sum_i p_i w_i - h / a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


class FedDynState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client
    h: Tensor  # [P] sum_i p_i h_i over all clients, those never seen counting as zero


@method("feddyn", title="FedDyn", colour="#8C2D04", dash="--")
@dataclass(frozen=True)
class FedDyn(Algorithm[FedDynState, Tensor]):
    """The carry is h_i, which tends to grad F_i at the common minimum."""

    lr: float
    dyn: float = hyper(0.1, "a, the pull towards w_k and the rate of h_i", low=0, open_ends=True)

    def init(self, w: Tensor, tau: Tensor) -> FedDynState:
        return FedDynState(w, tau, torch.zeros_like(w))

    def update(self, state: FedDynState, ids: Tensor, p: Tensor, report: Report) -> tuple[FedDynState, Named]:
        moved = report.mean["moved"]
        h = state.h - self.dyn * report.mass * moved  # the absent keep their h_i
        return state._replace(w=state.w + moved - h / self.dyn, h=h), {}

    def memory(self, w: Tensor) -> Named:
        return {"h": torch.zeros_like(w)}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["h"]

    def direction(self, order: Order, s: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return g - s + self.dyn * (w - order.w)

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        moved = w - order.w
        return {"moved": moved}, {}, {"h": s - self.dyn * moved}
