"""AdaComm (Wang and Joshi 2019): FedAvg whose number of local steps falls with the loss, at fixed intervals of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


class AdaCommState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of the next round
    base: Tensor  # [N] tau_0
    first: Tensor  # [] float64: F(w_0), NaN before the first round
    clock: Tensor  # [] float64: seconds since the start
    interval: Tensor  # [] int64: the number l of the interval that is running


@method("adacomm", title="AdaComm", colour="#3F6212", dash=":")
@dataclass(frozen=True)
class AdaComm(Algorithm[AdaCommState, NoCarry]):
    """tau_l = ceil(sqrt(F(w) / F(w_0)) tau_0) at the start of each interval of T_0 seconds; if not lower, gamma tau."""

    lr: float
    ada_interval: float = hyper(60.0, "T_0, the seconds between two changes of tau", low=0, open_ends=True)
    ada_gamma: float = hyper(
        0.5, "what tau is multiplied by where the loss does not lower it", low=0, high=1, open_ends=True
    )
    adapts: ClassVar[bool] = True
    needs_loss: ClassVar[bool] = True
    needs_timing: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> AdaCommState:
        nothing = torch.zeros((), dtype=torch.float64)
        return AdaCommState(w, tau, tau, nothing + torch.nan, nothing, torch.zeros((), dtype=torch.int64))

    def update(self, state: AdaCommState, ids: Tensor, p: Tensor, report: Report) -> tuple[AdaCommState, Named]:
        state = state._replace(w=state.w - self.lr * report.mean["G"])
        if report.timing is None:  # nobody has measured
            return state, {}
        loss, clock = p @ report.each["loss"].double().cpu(), state.clock + report.timing.seconds
        first = torch.where(torch.isnan(state.first), loss, state.first)
        interval = torch.floor(clock / self.ada_interval).long()
        state = state._replace(first=first, clock=clock)
        if interval <= state.interval:
            return state, {}
        tau = lower_steps(state.tau, state.base, loss / first, self.ada_gamma)
        return state._replace(tau=tau, interval=interval), {}

    def start(self, order: Order, memory: Named, g0: Tensor, loss: Tensor | NoCarry = ()) -> NoCarry:
        return ()

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {}


def lower_steps(tau: Tensor, base: Tensor, ratio: Tensor, gamma: float) -> Tensor:
    """[N] the next local steps: by the ratio of losses where that lowers them, else gamma times as many, at least 1.

    Examples:
        >>> lower_steps(torch.tensor([20, 5]), torch.tensor([20, 20]), torch.tensor(0.25), 0.5)
        tensor([10,  3])
    """
    by_loss = torch.ceil(base * ratio.clamp(min=0).sqrt() - 1e-9)
    return torch.where(by_loss < tau, by_loss, torch.ceil(gamma * tau - 1e-9)).clamp(min=1).long()
