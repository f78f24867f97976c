"""FedVecaM: FedVeca's shares of the local steps, SCAFFOLD's correction, and a server with momentum and an average.

Beyond the paper. Clients start at v = z_k + lookahead m_k, where the server's momentum is about to take it, and step
along g + t_i (c - c_i), where t_i says how far the remembered c_i still points where the client's gradient does.
FedVeca's A says how the round's local steps are shared; their total is what the settings give. The model w is an
average of the z, in which the latest count most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.conditions import measure_conditions
from fedveca.algorithms.contract import Named, NoCarry, Order, Report
from fedveca.algorithms.contrib.corrected import CorrectedSteps, CorrectedWalk, average_c, average_log_A
from fedveca.algorithms.control import DISTRUST, TAU_MAX, TAU_MIN, control
from fedveca.algorithms.estimates import estimate_A, estimate_delta, estimate_smoothness, norm, start_walk
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method

WARM_UP = 3  # lambda_k = k / (k + 3)
RECENCY = 8  # z_k counts in w with the weight k (k + 1) ... (k + 7): the mean age is a tenth of the rounds


class FedVecaMState(NamedTuple):
    w: Tensor  # [P] w_k, the average of the z
    tau: Tensor  # [N] tau_(k,i)
    k: Tensor  # [] int64: rounds done
    z: Tensor  # [P] z_k, which the server's step moves
    m: Tensor  # [P] the server's momentum, z_k - z_(k-1)
    v_last: Tensor  # [P] where the clients of the last round started
    grad_last: Tensor  # [P] grad F(v_(k-1))
    L: Tensor  # [] float64: as FedVeca's, between the v_k
    c: Tensor  # [P] average of the c_i over rounds, each with the share of the rows that took part
    share: Tensor  # [N] float64: D_i / D of the clients ever seen, 0 for the others
    log_A: Tensor  # [N] float64: log A_i averaged over rounds, nan while unknown
    mean_tau: Tensor  # [] float64: local steps per client and round, over which A decides only the shares


@method("fedvecam", title="FedVecaM", colour="#00798C", dash="-")
@dataclass(frozen=True)
class FedVecaM(CorrectedSteps[FedVecaMState]):
    """Corrected steps from where the server's momentum leads, shared among the clients by A."""

    lr: float
    share_alpha: float = hyper(0.75, "alpha of the shares of the steps", low=0, high=1, open_ends=True)
    tau_max: int = TAU_MAX()
    smooth: float = hyper(0.5, "share of the former rounds in A", low=0, high=0.99)
    distrust: float = DISTRUST()
    lookahead: float = hyper(0.8, "share of the server's last move that the next one continues", low=0, high=0.99)
    adapts: ClassVar[bool] = True
    guarded: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> FedVecaMState:
        zero, none = torch.zeros_like(w), torch.zeros(len(tau), dtype=torch.float64)
        k, L = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.float64)
        unknown, mean_tau = torch.full_like(none, torch.nan), tau.double().mean()
        return FedVecaMState(w, tau, k, w, zero, w, zero, L, zero, none, unknown, mean_tau)

    def order(self, state: FedVecaMState) -> Order:
        return Order(state.z + self.find_lookahead(state) * state.m, {"c": state.c})

    def find_lookahead(self, state: FedVecaMState) -> float:
        """lambda_k, which rises to `lookahead` as in Nesterov's method: the first moves are long and soon of no use."""
        k = float(state.k)
        return min(self.lookahead, k / (k + WARM_UP))

    def start(self, order: Order, memory: Named, g0: Tensor) -> CorrectedWalk:
        c, c_i = order.aux["c"], memory["c"]
        turn = find_trust(c_i, g0) * (c - c_i)
        return CorrectedWalk(torch.where(torch.isnan(c_i), 0.0, turn), start_walk(g0))  # a new client has no c_i

    def finish(
        self, order: Order, s: CorrectedWalk, w: Tensor, tau: Tensor, mean: Tensor | NoCarry = ()
    ) -> tuple[Named, Named, Named]:
        vectors, numbers, memory = super().finish(order, s, w, tau, mean)
        vectors["mean"] = memory["c"]  # from G alone the server would not know it
        return vectors, numbers, memory

    def update(self, state: FedVecaMState, ids: Tensor, p: Tensor, report: Report) -> tuple[FedVecaMState, Named]:
        v, grad = self.order(state).w, report.mean["grad"]
        tau_k = float(p @ report.each["tau"])
        m = self.find_lookahead(state) * state.m - self.lr * tau_k * report.mean["G"]
        c, share = average_c(state.c, state.share, ids, p, report)
        tau, log_A, seen = state.tau, state.log_A, Named()
        if state.k > 0:
            beta, spread = report.each["beta"].double(), report.each["spread"].double()
            delta = estimate_delta(spread, state.grad_last)
            took = torch.minimum(state.tau[ids], report.each["tau"])  # fewer where a client was cut short
            log_A = average_log_A(log_A, ids, estimate_A(beta, delta, took, self.lr), self.smooth)
            A = torch.exp(log_A[ids])
            tau = tau.clone()
            steps = share_steps(control(A, self.share_alpha, self.tau_max, self.distrust), p, float(state.mean_tau))
            tau[ids] = steps.clamp(TAU_MIN, max(self.tau_max, TAU_MIN))
            seen = {"beta": beta, "delta": delta, "A": A, "L": state.L, "premise": self.lr * tau_k * state.L}
            tau_i, d = report.each["tau"], report.mean["G"]
            seen |= measure_conditions(A, state.L, tau_i, p, d, grad, alpha=self.share_alpha, lr=self.lr)
        L = estimate_smoothness(state.k, v, state.v_last, grad, state.grad_last, state.L)
        after = FedVecaMState(state.w, tau, state.k + 1, state.z, m, v, grad, L, c, share, log_A, state.mean_tau)
        return self.relocate(state, after, state.z + m), seen

    def locate(self, state: FedVecaMState) -> Tensor:
        return state.z

    def relocate(self, before: FedVecaMState, after: FedVecaMState, point: Tensor) -> FedVecaMState:
        return after._replace(z=point, w=torch.lerp(before.w, point, (RECENCY + 1) / (RECENCY + float(after.k))))

    def shorten(self, before: FedVecaMState, after: FedVecaMState, scale: float) -> FedVecaMState:
        return super().shorten(before, after, scale)._replace(m=scale * after.m)  # z_(k+1) - z_k stays m_(k+1)


def find_trust(c_i: Tensor, g0: Tensor) -> Tensor:
    """[..., 1] t_i: the cosine between what a client remembers and its gradient now, 0 where they point apart.

    Examples:
        >>> find_trust(torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0]))
        tensor([0.6000])
        >>> find_trust(torch.tensor([-3.0, 4.0]), torch.tensor([2.0, 0.0]))
        tensor([0.])
    """
    c_i, g0 = (v / norm(v).clamp(min=torch.finfo(v.dtype).tiny) for v in (c_i, g0))
    return (c_i * g0).sum(-1, keepdim=True).clamp(0, 1)


def share_steps(steps: Tensor, p: Tensor, mean_tau: float) -> Tensor:
    """[n] the local steps of the round's clients: in proportion to `steps` and to their rows, mean_tau on average.

    Examples:
        >>> share_steps(torch.tensor([20, 2]), torch.tensor([0.5, 0.5]), 11.0)
        tensor([20,  2])
        >>> share_steps(torch.tensor([20, 2]), torch.tensor([0.2, 0.8]), 10.0)
        tensor([14,  6])
    """
    parts = steps.double() * p.double()
    return (parts * (len(p) * mean_tau / parts.sum())).round().long()
