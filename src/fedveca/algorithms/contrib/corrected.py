"""FedVeca, corrected: the controller says how far each client walks, SCAFFOLD's correction says where to.

Beyond the paper. A local step goes along g - c_i + c, where c_i is the client's own mean gradient of the last
round it took part in and c their mean over the clients. The server learns c from the directions it gets anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.conditions import measure_conditions
from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report, State
from fedveca.algorithms.control import ALPHA, DISTRUST, TAU_MAX, TAU_MIN, control
from fedveca.algorithms.estimates import Walk, estimate_A, estimate_delta, estimate_smoothness, extend_walk, start_walk
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


class CorrectedState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] tau_(k,i)
    k: Tensor  # [] int64: rounds done
    w_last: Tensor  # [P] w_(k-1)
    grad_last: Tensor  # [P] grad F(w_(k-1))
    L: Tensor  # [] float64: as FedVeca's
    c: Tensor  # [P] mean of c_i over the clients ever seen, by their rows
    share: Tensor  # [N] float64: D_i / D of the clients ever seen, 0 for the others
    log_A: Tensor  # [N] float64: log A_i averaged over rounds, nan while unknown


class CorrectedWalk(NamedTuple):
    turn: Tensor  # [P] c - c_i
    walk: Walk


class CorrectedSteps(Algorithm[State, CorrectedWalk]):
    """The client's part: local steps along g - c_i + c, and what FedVeca estimates on the way."""

    needs_gradient: ClassVar[bool] = True
    needs_mean: ClassVar[bool] = True
    nonnegative: ClassVar[tuple[str, ...]] = ("beta", "spread")

    def memory(self, w: Tensor) -> Named:
        return {"c": torch.full_like(w, torch.nan)}  # not known yet

    def start(self, order: Order, memory: Named, g0: Tensor) -> CorrectedWalk:
        c = order.aux["c"]
        turn = torch.where(torch.isnan(memory["c"]), 0.0, c - memory["c"])  # a new client starts at c_i = c
        return CorrectedWalk(turn, start_walk(g0))

    def direction(self, order: Order, s: CorrectedWalk, w: Tensor, g: Tensor) -> Tensor:
        return g + s.turn

    def track(self, order: Order, s: CorrectedWalk, w: Tensor, g: Tensor, mean: Tensor | NoCarry) -> CorrectedWalk:
        walk = extend_walk(s.walk, g, order.w - w, self.lr, mean)  # from beta the correction cancels
        return CorrectedWalk(s.turn, walk)

    def finish(
        self, order: Order, s: CorrectedWalk, w: Tensor, tau: Tensor, mean: Tensor | NoCarry = ()
    ) -> tuple[Named, Named, Named]:
        G = (order.w - w) / (self.lr * tau)
        vectors = {"G": G, "grad": s.walk.g0} | ({"mean": mean} if isinstance(mean, Tensor) else {})
        c = vectors.get("mean", G) - s.turn
        return vectors, {"beta": s.walk.beta, "spread": s.walk.spread}, {"c": c}


@method("corrected", title="FedVeca corrected", colour="#B77900", dash="-..")
@dataclass(frozen=True)
class Corrected(CorrectedSteps[CorrectedState]):
    """FedVeca with corrected steps, A averaged over rounds, and the probe's gradient used for steps."""

    lr: float
    alpha: float = ALPHA()
    tau_max: int = TAU_MAX()
    smooth: float = hyper(0.5, "share of the former rounds in A", low=0, high=0.99)
    distrust: float = DISTRUST()
    by_rows: bool = True  # whether tau_i goes with the client's share of the rows
    probe_steps: float = hyper(2.0, "the server's steps along grad F(w_k) per round", low=0, high=100)
    adapts: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> CorrectedState:
        zero, none = torch.zeros_like(w), torch.zeros(len(tau), dtype=torch.float64)
        k, L = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.float64)
        return CorrectedState(w, tau, k, w, zero, L, zero, none, torch.full_like(none, torch.nan))

    def order(self, state: CorrectedState) -> Order:
        return Order(state.w, {"c": state.c})

    def update(self, state: CorrectedState, ids: Tensor, p: Tensor, report: Report) -> tuple[CorrectedState, Named]:
        G, grad = report.mean["G"], report.mean["grad"]
        tau_k = float(p @ report.each["tau"])
        w = state.w - self.lr * (tau_k * G + self.probe_steps * grad)
        c, share = average_c(state.c, state.share, ids, p, report)
        tau, log_A, seen = state.tau, state.log_A, Named()
        if state.k > 0:
            beta, spread = report.each["beta"].double(), report.each["spread"].double()
            delta = estimate_delta(spread, state.grad_last)
            took = torch.minimum(state.tau[ids], report.each["tau"])  # fewer where a client was cut short
            log_A = average_log_A(log_A, ids, estimate_A(beta, delta, took, self.lr), self.smooth)
            A = torch.exp(log_A[ids])
            steps = control(A, self.alpha, self.tau_max, self.distrust).double()
            steps = steps * p * len(p) if self.by_rows else steps
            tau = tau.clone()
            tau[ids] = steps.round().clamp(TAU_MIN, max(self.tau_max, TAU_MIN)).long()
            seen = {"beta": beta, "delta": delta, "A": A, "L": state.L, "premise": self.lr * tau_k * state.L}
            tau_i = report.each["tau"]
            seen |= measure_conditions(A, state.L, tau_i, p, G, grad, alpha=self.alpha, lr=self.lr)
        L = estimate_smoothness(state.k, state.w, state.w_last, grad, state.grad_last, state.L)
        return CorrectedState(w, tau, state.k + 1, state.w, grad, L, c, share, log_A), seen


def average_c(c: Tensor, share: Tensor, ids: Tensor, p: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """c [P] and share [N] after a round: c is the mean of the c_i over the clients ever seen, by their rows."""
    share = share.clone()
    share[ids] = p * report.mass
    mean = report.mean.get("mean", report.mean["G"])  # of the clients' directions
    return c + report.mass / float(share.sum()) * (mean - c), share  # mean_i - c = c_i+ - c_i


def average_log_A(log_A: Tensor, ids: Tensor, A: Tensor, smooth: float) -> Tensor:
    """[N] the averages over rounds, after a round in which clients `ids` have A [n]; NaN where A is not known yet.

    log A_i is the client's own part plus the round's, such as log 1/|grad F(w_(k-1))|^2, which must cancel from every
    ratio of (16). So the averages are kept at one level: `rise` is how far the round's part is above theirs, the mean
    over the clients that have both; clients without an A in this round follow the others, and new ones join them.
    """
    new = torch.full_like(log_A, torch.nan).index_copy(0, ids, torch.log(A))
    both = torch.isfinite(log_A) & torch.isfinite(new)
    rise = (new - log_A)[both].mean() if bool(both.any()) else 0.0  # not by rows: every log A is as noisy as another
    after = torch.where(both, smooth * log_A + (1 - smooth) * new, new - smooth * rise)
    return torch.where(torch.isnan(new), log_A + (1 - smooth) * rise, after)
