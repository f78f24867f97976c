"""MOON (Li et al. 2021): a client's features are drawn to the global model's, and away from its last ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedveca.algorithms.contract import Algorithm, Named, Order, Outputs, Report, RowLoss, ServerState
from fedveca.algorithms.hyper import hyper
from fedveca.algorithms.registry import method


@method("moon", title="MOON", colour="#A21CAF", dash="-.")
@dataclass(frozen=True)
class Moon(Algorithm[ServerState, Tensor]):
    """The loss and moon_mu times -log(e^a / (e^a + e^b)), a and b the features' similarities. The carry is a model.

    A client that was never seen has w_k for its last model: then a = b, and the term has no gradient.
    """

    lr: float
    moon_mu: float = hyper(1.0, "mu, the weight of the contrastive term", low=0)
    moon_temperature: float = hyper(0.5, "by which similarities are divided", low=0, open_ends=True)
    has_loss: ClassVar[bool] = True

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * report.mean["G"]), {}

    def memory(self, w: Tensor) -> Named:
        return {"previous": w}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["previous"]

    def models(self, order: Order, s: Tensor) -> Named:
        return {"global": order.w, "previous": s}

    def loss(self, base: RowLoss, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        a = cosine_similarity(out.features, others["global"].features, dim=-1) / self.moon_temperature
        b = cosine_similarity(out.features, others["previous"].features, dim=-1) / self.moon_temperature
        return base(out.scores, y) + self.moon_mu * softplus(b - a)  # -log(e^a / (e^a + e^b))

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {"previous": w}
