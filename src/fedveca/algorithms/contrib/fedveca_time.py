"""FedVeca by the second: within FedVeca's numbers of local steps, those with the most steps per second of the round.

Beyond the paper. docs/methods/fedveca_time.md derives it from Theorems 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Report, Timing
from fedveca.algorithms.control import TAU_MIN
from fedveca.algorithms.fedveca import FedVeca, FedVecaState
from fedveca.algorithms.registry import method


class FedVecaTimeState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] tau_(k,i)
    k: Tensor  # [] int64: rounds done
    w_last: Tensor  # [P] w_(k-1)
    grad_last: Tensor  # [P] grad F(w_(k-1))
    L: Tensor  # [] float64: as FedVeca's
    spent: Tensor  # [N, 4] float64: local steps in all and their seconds, rounds in all and their other seconds


@method("fedveca_time", title="FedVeca by time", colour="#A3341B", dash="__")
@dataclass(frozen=True)
class FedVecaTime(FedVeca):
    """The tau_i with the most sum_i p_i tau_i per second max_i (f_i + tau_i s_i), 2 <= tau_i <= FedVeca's (16)."""

    needs_timing: ClassVar[bool] = True

    def init(self, w: Tensor, tau: Tensor) -> FedVecaTimeState:  # type: ignore[override]
        return FedVecaTimeState(*super().init(w, tau), torch.zeros(len(tau), 4, dtype=torch.float64))

    def update(  # type: ignore[override]
        self, state: FedVecaTimeState, ids: Tensor, p: Tensor, report: Report
    ) -> tuple[FedVecaTimeState, Named]:
        inner = FedVecaState(*state[:-1])
        after, seen = super().update(inner, ids, p, report)
        if report.timing is None:  # nobody has measured
            return FedVecaTimeState(*after, state.spent), seen
        spent = add_spent(state.spent, ids, report.count_steps(), report.timing)
        if state.k > 0:
            steps, seconds, rounds, others = spent[ids].unbind(1)
            tau = fit_steps(after.tau[ids], p, seconds / steps, others / rounds)
            after = after._replace(tau=after.tau.index_copy(0, ids, tau))
        return FedVecaTimeState(*after, spent), seen


def add_spent(spent: Tensor, ids: Tensor, took: Tensor, timing: Timing) -> Tensor:
    """[N, 4]: `spent` with a round in which clients `ids` took so many local steps."""
    steps, others = timing.split()
    return spent.index_add(0, ids, torch.stack([took.double(), steps, torch.ones_like(steps), others], 1))


def fit_steps(caps: Tensor, p: Tensor, step: Tensor, fixed: Tensor) -> Tensor:
    """[n] the local steps with the highest sum_i p_i tau_i / max_i (fixed_i + tau_i step_i), in [2, caps_i].

    A round that lasts T seconds has room for the steps t of client i with fixed_i + t step_i <= T, each of which is
    worth p_i. So the steps beyond the first two are sorted by when they end, and the best T is the end of one of them;
    of equally good ones the last, which needs fewer messages.

    Args:
        caps: [n] the most steps, at least 2.
        p: [n] the clients' weights.
        step: [n] seconds per local step.
        fixed: [n] seconds of a round without local steps.

    Examples:
        >>> caps, p = torch.tensor([20, 4, 2]), torch.full((3,), 1 / 3)
        >>> second = torch.ones(3, dtype=torch.float64)
        >>> fit_steps(caps, p, second, 100 * second)  # messages are slow
        tensor([20,  4,  2])
        >>> fit_steps(caps, p, second, 0 * second)  # the others would only wait
        tensor([2, 2, 2])
        >>> fit_steps(caps, p, torch.tensor([9.0, 1.0, 1.0]), 10 * second)  # the first device is slow
        tensor([2, 4, 2])
    """
    p, step, fixed = p.double().cpu(), step.double().cpu(), fixed.double().cpu()
    more = caps - TAU_MIN
    owner = torch.arange(len(caps)).repeat_interleave(more)
    nth = torch.arange(len(owner)) - (more.cumsum(0) - more)[owner]
    ends, order = (fixed[owner] + (TAU_MIN + 1 + nth) * step[owner]).sort(stable=True)
    least = (fixed + TAU_MIN * step).max()  # every client takes two steps
    if not least > 0:
        return caps  # time is not counted
    worth = torch.cat([torch.zeros(1, dtype=torch.float64), p[owner[order]].cumsum(0)]) + TAU_MIN * p.sum()
    rate = worth / torch.cat([least[None], ends.clamp(min=least)])
    best = rate >= rate.max() * (1 - 1e-12)
    taken = owner[order[: int(best.nonzero()[-1])]]
    return TAU_MIN + torch.bincount(taken, minlength=len(caps))
