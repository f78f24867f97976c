"""MimeLite (Karimireddy et al. 2021): local steps with the server's momentum, which stays as it is for a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


class MimeLiteState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client
    m: Tensor  # [P] the average over rounds of grad F(w_k)


@method("mimelite", title="MimeLite", colour="#0F766E", dash=":")
@dataclass(frozen=True)
class MimeLite(Algorithm[MimeLiteState, Tensor]):
    """A step goes along (1 - beta) g + beta m; then m becomes (1 - beta) grad F(w_k) + beta m. The carry is g0."""

    lr: float
    mime_beta: float = hyper(0.9, "beta, the share of the momentum in a step", low=0, high=0.999)
    needs_gradient: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> MimeLiteState:
        return MimeLiteState(w, tau, torch.zeros_like(w))

    def order(self, state: MimeLiteState) -> Order:
        return Order(state.w, {"m": state.m})

    def update(self, state: MimeLiteState, ids: Tensor, p: Tensor, report: Report) -> tuple[MimeLiteState, Named]:
        m = (1 - self.mime_beta) * report.mean["grad"] + self.mime_beta * state.m
        return state._replace(w=state.w - self.lr * report.mean["G"], m=m), {}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return g0

    def direction(self, order: Order, s: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return (1 - self.mime_beta) * g + self.mime_beta * order.aux["m"]

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr, "grad": s}, {}, {}
