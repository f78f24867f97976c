"""Adaptive tau (Wang et al. 2019): FedAvg with one number of local steps for all, the best for a budget of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report
from fedveca.algorithms.control import TAU_MAX
from fedveca.algorithms.estimates import norm
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method

SEARCH = 10  # gamma: the next tau is at most so many times the last
NEAR, LEAST_BETA = 1e-10, 1e-5  # below them a distance is none, and a beta is this


class AdaptiveTauState(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of the next round, the same for all
    cost: Tensor  # [2] float64: seconds per local step and per aggregation in the last round; NaN before the first


class AdaptiveTauCarry(NamedTuple):
    g0: Tensor  # [P] grad F_i(w_k)
    rho: Tensor  # [1] of F_i, between the last local model and w_k; 0 where it is not known
    beta: Tensor  # [1] of grad F_i, between the same; 0 where it is not known
    loss: Tensor  # [1] F_i of the local model after the steps
    g: Tensor  # [P] and its gradient


@method("adaptivetau", title="Adaptive tau", colour="#6D4C9F", dash="-.")
@dataclass(frozen=True)
class AdaptiveTau(Algorithm[AdaptiveTauState, AdaptiveTauCarry]):
    """tau = argmin G(tau), their bound, from estimates of rho, beta and delta and the seconds of a step and a round."""

    lr: float
    tau_max: int = TAU_MAX()
    wang_phi: float = hyper(0.025, "phi, how much a step is worth in the bound", low=0, open_ends=True)
    wang_seconds: float = hyper(15.0, "R, the seconds for which tau is chosen", low=0, open_ends=True)
    adapts: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True
    needs_loss: ClassVar[bool] = True
    needs_gradient_after: ClassVar[bool] = True
    needs_timing: ClassVar[bool] = True
    nonnegative: ClassVar[tuple[str, ...]] = ("rho", "beta", "square")

    def init(self, w: Tensor, tau: Tensor) -> AdaptiveTauState:
        return AdaptiveTauState(w, tau, torch.full((2,), torch.nan, dtype=torch.float64))

    def update(self, state: AdaptiveTauState, ids: Tensor, p: Tensor, report: Report) -> tuple[AdaptiveTauState, Named]:
        state, last = state._replace(w=state.w - self.lr * report.mean["G"]), state.cost
        if report.timing is None:  # nobody has measured
            return state, {}
        (steps, _), took = report.timing.split(), report.count_steps()
        aggregation = max(0.0, report.timing.seconds - float(steps.max()))
        cost = torch.stack([(steps / took).max(), torch.tensor(aggregation, dtype=torch.float64)])
        state = state._replace(cost=cost)
        rho, beta, square = (report.each[name].double().cpu() for name in ("rho", "beta", "square"))
        known = beta > 0
        if not bool(known.any()) or bool(torch.isnan(last).any()):
            return state, {}
        mean = report.mean["grad"].double().square().sum().cpu()
        delta = (p @ square - mean).clamp(min=0).sqrt()  # of |grad F_i - grad F| the root mean square
        q = p * known / (p * known).sum()
        most = min(SEARCH * int(state.tau.max()), self.tau_max)
        G = bound_loss(most, q @ rho, q @ beta, delta, last, self.wang_seconds, self.lr, self.wang_phi)
        return state._replace(tau=torch.full_like(state.tau, 1 + int(G.argmin()))), {}

    def memory(self, w: Tensor) -> Named:
        zero = torch.zeros_like(w)
        return {"model": zero, "gradient": zero, "loss": zero[..., :1], "known": zero[..., :1]}

    def start(self, order: Order, memory: Named, g0: Tensor, loss: Tensor | NoCarry = ()) -> AdaptiveTauCarry:
        assert isinstance(loss, Tensor)
        known, far = memory["known"] > 0, norm(memory["model"] - order.w)
        apart = known & (far > NEAR)
        rho = torch.where(apart, (memory["loss"] - loss).abs() / far, 0.0)
        beta = torch.where(apart, norm(memory["gradient"] - g0) / far, 0.0).clamp(min=LEAST_BETA)
        return AdaptiveTauCarry(g0, rho, torch.where(known, beta, 0.0), torch.zeros_like(loss), torch.zeros_like(g0))

    def arrive(self, order: Order, s: AdaptiveTauCarry, w: Tensor, loss: Tensor, g: Tensor) -> AdaptiveTauCarry:
        return s._replace(loss=loss, g=g)

    def finish(self, order: Order, s: AdaptiveTauCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        numbers = {"rho": s.rho, "beta": s.beta, "square": norm(s.g0) ** 2}
        memory = {"model": w, "gradient": s.g, "loss": s.loss, "known": torch.ones_like(s.loss)}
        return {"G": (order.w - w) / self.lr, "grad": s.g0}, numbers, memory


def bound_loss(
    most: int, rho: Tensor, beta: Tensor, delta: Tensor, cost: Tensor, budget: float, lr: float, phi: float
) -> Tensor:
    """[most] float64: their bound G(tau) of tau = 1 ... most; inf where it cannot be computed.

    Args:
        most: The largest tau.
        rho: [] by how much F_i changes per distance.
        beta: [] by how much its gradient does.
        delta: [] how far the clients' gradients are apart.
        cost: [2] seconds per local step and per aggregation.
        budget: R, in seconds.
        lr: eta.
        phi: As published.
    """
    tau = torch.arange(1, most + 1, dtype=torch.float64)
    c, b = cost
    per_step = (c * tau + b) / ((budget - b - c).clamp(min=1e-9) * tau)  # 1 / T
    h = (delta / beta * ((lr * beta + 1) ** tau - 1) - lr * delta * tau).clamp(min=0)  # their h(tau)
    root = (per_step**2 + 4 * lr * phi * rho * h / tau).sqrt()
    return torch.nan_to_num((per_step + root) / (2 * lr * phi) + rho * h, nan=torch.inf, posinf=torch.inf)
