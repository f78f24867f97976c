"""FedExP (Jhunjhunwala et al. 2023): FedAvg whose server steps further where the clients' updates disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, NoCarry, Order, Report, ServerState
from fedveca.algorithms.fedavg import FedAvg
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


@method("fedexp", title="FedExP", colour="#4D7C0F", dash="-.")
@dataclass(frozen=True)
class FedExP(FedAvg):
    """w_(k+1) = w_k - eta_g sum_i p_i D_i, eta_g = max(1, sum_i p_i |D_i|^2 / (2 (|sum_i p_i D_i|^2 + eps)))."""

    exp_eps: float = hyper(1e-3, "eps, which bounds the server's step", low=0, open_ends=True)
    nonnegative: ClassVar[tuple[str, ...]] = ("square",)

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        D = self.lr * report.mean["G"]
        square = D.double().square().sum().cpu()
        eta_g = (p @ report.each["square"].double() / (2 * (square + self.exp_eps))).clamp(min=1)
        return state._replace(w=state.w - float(eta_g) * D), {"eta_g": eta_g}

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        vectors, numbers, memory = super().finish(order, s, w, tau)
        D = order.w - w
        return vectors, numbers | {"square": torch.linalg.vecdot(D, D)[..., None]}, memory
