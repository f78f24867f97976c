"""FedVeca (Luo et al. 2024): FedNova's average, and every client's tau set from its own gradients.

One trip a round. The paper's second exchange (A1.14-15, A2.14-19) only brings |grad F(w_(k-1))|^2
to the clients, which is the same for all and so can be divided by at the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Order, Report
from fedveca.algorithms.control import control


def norm(v: Tensor) -> Tensor:
    """[..., P] -> [..., 1]."""
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)  # type: ignore[no-any-return]


def smoothness(k: Tensor, w: Tensor, w_last: Tensor, grad: Tensor, grad_last: Tensor, L: Tensor) -> Tensor:
    """[] float64: the largest L_k so far, A1.16-21; L_k of round k is known one round earlier than in the paper."""
    steep = (grad - grad_last).norm() / (w - w_last).norm() if k > 0 else grad.norm() / w.norm()  # A1.19, A1.17
    now = steep.double().cpu()
    return torch.maximum(L, now) if torch.isfinite(now) else L  # A1.21; 0/0 after a rejected round


class FedVecaState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] tau_(k,i)
    k: Tensor  # [] int64: rounds done
    w_last: Tensor  # [P] w_(k-1)
    grad_last: Tensor  # [P] grad F(w_(k-1))
    L: Tensor  # [] float64: max over rounds of L_(k-1), 0 while unknown


class Walk(NamedTuple):
    g0: Tensor  # [P] grad F_i(w_k)
    lam: Tensor  # [1] lambda, the step about to be taken
    far: Tensor  # [1] |w_k - w_lambda|
    beta: Tensor  # [1] the largest so far
    spread: Tensor  # [1] delta's numerator over (lambda + 1), the largest so far


@dataclass(frozen=True)
class FedVeca(Algorithm):
    """tau_(k+1,i) = floor(A_i / (A_i - alpha min A)), A_i = eta beta_i^2 delta_i: (16)."""

    lr: float
    alpha: float = 0.95
    tau_max: int = 50
    distrust: float = 0.0  # share of the clients whose A may be too small to be true
    needs_gradient: ClassVar[bool] = True
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
            delta = spread / state.grad_last.norm().double().cpu() ** 2  # A2.17
            tau = tau.clone()
            A = beta**2 * spread  # up to what is common, which cancels
            tau[ids] = control(A, self.alpha, self.tau_max, self.distrust)  # (16)
            seen = {"beta": beta, "delta": delta, "A": self.lr * beta**2 * delta}
            seen |= {"L": state.L, "premise": self.lr * tau_k * state.L}
        L = smoothness(state.k, state.w, state.w_last, grad, state.grad_last, state.L)
        return FedVecaState(w, tau, state.k + 1, state.w, grad, L), seen

    def start(self, order: Order, memory: Named, g0: Tensor) -> Walk:
        zero = torch.zeros_like(g0[..., :1])
        return Walk(g0, zero, zero, zero, zero)

    def step(self, order: Order, s: Walk, w: Tensor, g: Tensor) -> tuple[Tensor, Walk]:
        beta = torch.where(s.far > 0, norm(s.g0 - g) / s.far, 0.0)  # A2.15; lambda = 0 is 0/0
        w = torch.sub(w, g, alpha=self.lr)  # (1)
        far = norm(order.w - w)  # eta |sum of the gradients up to lambda|
        spread = torch.where(s.lam > 0, (far / self.lr) ** 2 / (s.lam + 1), 0.0)  # A2.17
        return w, Walk(s.g0, s.lam + 1, far, torch.maximum(s.beta, beta), torch.maximum(s.spread, spread))

    def finish(self, order: Order, s: Walk, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        G = (order.w - w) / (self.lr * tau)  # (6)
        return {"G": G, "grad": s.g0}, {"beta": s.beta, "spread": s.spread}, {}
