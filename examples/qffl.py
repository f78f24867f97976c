"""q-FFL (Li et al. 2020, "Fair Resource Allocation in Federated Learning"), solved by q-FedAvg.

It minimises sum_i p_i F_i^(q+1) / (q+1): a client counts the more, the higher its loss is. With L = 1 / lr, client i
sends Delta_i = F_i^q L (w_k - w_i) and h_i = q F_i^(q-1) |L (w_k - w_i)|^2 + L F_i^q, where F_i is its loss at w_k;
the server sets w_(k+1) = w_k - sum_i p_i Delta_i / sum_i p_i h_i.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveca import Experiment, hyper, run
from fedveca.algorithms import Algorithm, Named, Order, Report, ServerState
from fedveca.testing import check_algorithm


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    lr: float
    q: float = hyper(1.0, "how much fairness counts; 0 is FedAvg", low=0)
    needs_loss: ClassVar[bool] = True
    nonnegative: ClassVar[tuple[str, ...]] = ("h",)

    def start(self, order: Order, memory: Named, g0: Tensor, loss: Tensor) -> Tensor:  # type: ignore[override]
        return loss.clamp(min=1e-10)  # F_i(w_k) [..., 1]

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        moved = (order.w - w) / self.lr
        h = self.q * s ** (self.q - 1) * (moved * moved).sum(-1, keepdim=True) + s**self.q / self.lr
        return {"Delta": s**self.q * moved}, {"h": h}, {}

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - report.mean["Delta"] / float(p @ report.each["h"])), {}


if __name__ == "__main__":
    check_algorithm(QFedAvg(lr=0.05))
    experiment = Experiment(partition="dirichlet", concentration=0.3, clients=10, rounds=60, batch=32, tau_0=5)
    for q in (0.0, 0.5):
        done = run(experiment.replace(test_by="client", keep="last"), method=QFedAvg(lr=0.05, q=q))
        mean, worst = done.summary["last"]["clients_accuracy"], done.summary["last"]["clients_accuracy_worst"]
        print(f"q = {q:g}: accuracy of the clients {100 * mean:.1f} %, of the worst tenth {100 * worst:.1f} %")
