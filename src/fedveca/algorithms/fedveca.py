"""FedVeca (Luo et al. 2024): FedNova's average, and every client's tau set from its own gradients.

One trip per round. The paper's second exchange (A1.14-15, A2.14-19) only brings |grad F(w_(k-1))|^2
to the clients, which is the same for all and so can be divided by at the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.conditions import measure_conditions
from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.control import ALPHA, DISTRUST, TAU_MAX, control
from fedveca.algorithms.estimates import Walk, estimate_A, estimate_delta, estimate_smoothness, extend_walk, start_walk
from fedveca.algorithms.registry import method


class FedVecaState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] tau_(k,i)
    k: Tensor  # [] int64: rounds done
    w_last: Tensor  # [P] w_(k-1)
    grad_last: Tensor  # [P] grad F(w_(k-1))
    L: Tensor  # [] float64: max over rounds of L_(k-1), 0 while unknown


@method("fedveca", title="FedVeca", colour="#D55E00", paper=1)
@dataclass(frozen=True)
class FedVeca(Algorithm[FedVecaState, Walk]):
    """tau_(k+1,i) = floor(A_i / (A_i - alpha min A)), A_i = eta beta_i^2 delta_i: (16)."""

    lr: float
    alpha: float = ALPHA()
    tau_max: int = TAU_MAX()
    distrust: float = DISTRUST()
    adapts: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True
    needs_mean: ClassVar[bool] = True
    nonnegative: ClassVar[tuple[str, ...]] = ("beta", "spread")

    def init(self, w: Tensor, tau: Tensor) -> FedVecaState:
        zero = torch.zeros((), dtype=torch.float64)
        return FedVecaState(w, tau, torch.zeros((), dtype=torch.int64), w, torch.zeros_like(w), zero)

    def update(self, state: FedVecaState, ids: Tensor, p: Tensor, report: Report) -> tuple[FedVecaState, Named]:
        grad = report.mean["grad"]  # (9) grad F(w_k)
        tau_k = float(p @ report.each["tau"])  # (6)
        w = state.w - self.lr * tau_k * report.mean["G"]  # (6)
        tau, seen = state.tau, Named()
        if state.k > 0:  # A1.13
            beta, spread = report.each["beta"].double(), report.each["spread"].double()
            delta = estimate_delta(spread, state.grad_last)  # A2.17
            tau = tau.clone()
            took = torch.minimum(state.tau[ids], report.each["tau"])  # fewer where a client was cut short
            A = estimate_A(beta, spread, took)  # what is common cancels
            tau[ids] = control(A, self.alpha, self.tau_max, self.distrust)  # (16)
            seen = {"beta": beta, "delta": delta, "A": estimate_A(beta, delta, took, self.lr)}
            seen |= {"L": state.L, "premise": self.lr * tau_k * state.L}
            tau_i, d = report.each["tau"], report.mean["G"]
            seen |= measure_conditions(seen["A"], state.L, tau_i, p, d, grad, alpha=self.alpha, lr=self.lr)
        L = estimate_smoothness(state.k, state.w, state.w_last, grad, state.grad_last, state.L)
        return FedVecaState(w, tau, state.k + 1, state.w, grad, L), seen

    def start(self, order: Order, memory: Named, g0: Tensor) -> Walk:
        return start_walk(g0)

    def track(self, order: Order, s: Walk, w: Tensor, g: Tensor, mean: Tensor | NoCarry) -> Walk:
        return extend_walk(s, g, order.w - w, self.lr, mean)

    def finish(
        self, order: Order, s: Walk, w: Tensor, tau: Tensor, mean: Tensor | NoCarry = ()
    ) -> tuple[Named, Named, Named]:
        G = (order.w - w) / (self.lr * tau)  # (6)
        return {"G": G, "grad": s.g0}, {"beta": s.beta, "spread": s.spread}, {}
