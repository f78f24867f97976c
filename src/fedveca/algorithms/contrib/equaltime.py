"""Equal time: FedNova's average, and local steps by which all clients finish together, as in FedCompass (Li 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.control import TAU_MAX
from fedveca.algorithms.registry import method


class EqualTimeState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client's next round
    base: Tensor  # [N] int64: its local steps at the start
    cost: Tensor  # [N] float64: seconds per local step in the client's last round, messages included; NaN if unknown


@method("equaltime", title="Equal time", colour="#8B5E34", dash=":")
@dataclass(frozen=True)
class EqualTime(Algorithm[EqualTimeState, NoCarry]):
    """tau_i = floor(T / c_i) with c_i the client's measured seconds per local step, T the median of tau_(0,i) c_i."""

    lr: float
    tau_max: int = TAU_MAX()
    adapts: ClassVar[bool] = True
    needs_timing: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> EqualTimeState:
        return EqualTimeState(w, tau, tau, torch.full(tau.shape, torch.nan, dtype=torch.float64))

    def update(self, state: EqualTimeState, ids: Tensor, p: Tensor, report: Report) -> tuple[EqualTimeState, Named]:
        took = report.each["tau"].double().cpu()
        w = state.w - self.lr * float(p @ took) * report.mean["G"]  # (6)
        state = state._replace(w=w)
        if report.timing is None:  # nobody has measured
            return state, {}
        cost = state.cost.index_copy(0, ids, report.timing.clients / report.count_steps())
        return state._replace(cost=cost, tau=equalise_times(state.base, cost, self.tau_max)), {}

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / (self.lr * tau)}, {}, {}


def equalise_times(base: Tensor, cost: Tensor, tau_max: int) -> Tensor:
    """[N] local steps by which clients finish at the same time, that of a client of median speed with its first steps.

    A client without a known cost keeps its first steps, and so does everyone where steps take no time.

    Examples:
        >>> cost = torch.tensor([0.5, 1.0, 2.0, torch.nan], dtype=torch.float64)
        >>> equalise_times(torch.tensor([10, 10, 10, 10]), cost, tau_max=50)
        tensor([20, 10,  5, 10])
    """
    known = cost > 0
    if not bool(known.any()):
        return base
    time = (base * cost)[known].median()
    tau = torch.floor(time / cost + 1e-9).clamp(1, max(1, tau_max))
    return torch.where(known, tau, base).long()
