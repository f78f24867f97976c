"""The corrected method with one part changed at a time, and SCAFFOLD with what the corrected method has more of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, Named, Order, Report, Scaffold
from fedveca.runs.experiment import Experiment


class RawWalk(NamedTuple):
    """What a client carries from step to step."""

    inner: Any  # what the corrected method carries
    total: Tensor  # [P] sum of the raw gradients
    steps: Tensor  # [1]
    spread: Tensor  # [1]


@dataclass(frozen=True)
class RawSpread(Corrected):
    """Corrected steps, but delta from the sum of the raw gradients."""

    def start(self, order: Order, memory: Named, g0: Tensor) -> RawWalk:  # type: ignore[override]
        zero = torch.zeros_like(g0[..., :1])
        return RawWalk(super().start(order, memory, g0), torch.zeros_like(g0), zero, zero)

    def step(self, order: Order, s: RawWalk, w: Tensor, g: Tensor) -> tuple[Tensor, RawWalk]:  # type: ignore[override]
        w, inner = super().step(order, s.inner, w, g)
        total, steps = s.total + g, s.steps + 1
        spread = torch.where(s.steps > 0, (total**2).sum(-1, keepdim=True) / steps, 0.0)
        return w, RawWalk(inner, total, steps, torch.maximum(s.spread, spread))

    def finish(self, order: Order, s: RawWalk, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:  # type: ignore[override]
        vectors, each, memory = super().finish(order, s.inner, w, tau)
        return vectors, each | {"spread": s.spread}, memory


class ProbedWalk(NamedTuple):
    """What a client carries from step to step."""

    inner: Any  # what SCAFFOLD carries
    grad: Tensor  # [P] grad F_i(w_k)


@dataclass(frozen=True)
class Probed(Scaffold):
    """SCAFFOLD whose server also steps along grad F(w_k), as often as the corrected method's."""

    needs_gradient: ClassVar[bool] = True

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Report) -> tuple[Any, Named]:
        after, seen = super().update(state, ids, p, report)
        return after._replace(w=after.w - self.lr * Corrected(self.lr).probe_steps * report.mean["grad"]), seen

    def start(self, order: Order, memory: Named, g0: Tensor) -> ProbedWalk:  # type: ignore[override]
        return ProbedWalk(super().start(order, memory, g0), g0)

    def step(self, order: Order, s: ProbedWalk, w: Tensor, g: Tensor) -> tuple[Tensor, ProbedWalk]:  # type: ignore[override]
        w, inner = super().step(order, s.inner, w, g)
        return w, s._replace(inner=inner)

    def finish(self, order: Order, s: ProbedWalk, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:  # type: ignore[override]
        vectors, each, memory = super().finish(order, s.inner, w, tau)
        return vectors | {"grad": s.grad}, each, memory


ABLATIONS = (
    "A not averaged",
    "A averaged, 0.7 old",
    "A averaged, 0.9 old",
    "steps not by rows",
    "no step along the probe's gradient",
    "one step along the probe's gradient",
    "three steps along the probe's gradient",
    "spread of raw gradients",
)


def make_ablation(label: str, e: Experiment) -> Algorithm:
    """The corrected method of an experiment with one part changed."""
    lr, alpha, tau_max = e.lr, e.alpha, e.tau_max
    variants: dict[str, Algorithm] = {
        "A not averaged": Corrected(lr, alpha, tau_max, smooth=0.0),
        "A averaged, 0.7 old": Corrected(lr, alpha, tau_max, smooth=0.7),
        "A averaged, 0.9 old": Corrected(lr, alpha, tau_max, smooth=0.9),
        "steps not by rows": Corrected(lr, alpha, tau_max, by_rows=False),
        "no step along the probe's gradient": Corrected(lr, alpha, tau_max, probe_steps=0.0),
        "one step along the probe's gradient": Corrected(lr, alpha, tau_max, probe_steps=1.0),
        "three steps along the probe's gradient": Corrected(lr, alpha, tau_max, probe_steps=3.0),
        "spread of raw gradients": RawSpread(lr, alpha, tau_max),
    }
    return variants[label]
