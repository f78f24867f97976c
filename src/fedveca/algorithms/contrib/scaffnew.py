"""Scaffnew, which is ProxSkip for federated learning (Mishchenko et al. 2022): control variates from models alone.

The paper's clients communicate with probability p after each step. Here a round has tau_i steps, and p is 1 / tau_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report, ServerState
from fedveca.algorithms.registry import method


@method("scaffnew", title="Scaffnew", colour="#4338CA", dash="-..")
@dataclass(frozen=True)
class Scaffnew(Algorithm[ServerState, Tensor]):
    """A step goes along g - h_i; after the round h_i rises by (w_(k+1) - w_i) / (eta tau_i), so sum_i p_i h_i = 0.

    The client learns w_(k+1) when it is asked again: as the model from which it starts. It remembers h_i, the model
    w_i that it ended at, and 1 / (eta tau_i).
    """

    lr: float
    needs_everyone: ClassVar[bool] = True
    needs_whole_step: ClassVar[bool] = True  # sum_i p_i h_i = 0 only where w_(k+1) is the mean of the w_i

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        tau_k = 1 / float(p @ report.each["tau"].reciprocal())  # with it the rises of the h_i cancel
        return state._replace(w=state.w - self.lr * tau_k * report.mean["G"]), {}

    def memory(self, w: Tensor) -> Named:
        return {"h": torch.zeros_like(w), "w": torch.zeros_like(w), "rate": torch.zeros_like(w[..., :1])}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["h"] + memory["rate"] * (order.w - memory["w"])

    def direction(self, order: Order, s: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return g - s

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        rate = (self.lr * tau).reciprocal()
        return {"G": rate * (order.w - w)}, {}, {"h": s, "w": w, "rate": rate}
