"""A custom method in one file: FedDyn (Acar et al. 2021), checked and compared with the package's methods.

Client i minimises F_i(w) - <h_i, w> + a/2 |w - w_k|^2 and then lowers h_i by a (w_i - w_k); the server keeps
h = sum_i p_i h_i over all clients and sets w_(k+1) = sum_i p_i w_i - h / a.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca import Experiment, compare
from fedveca.algorithms import Algorithm, Named, Order, Report
from fedveca.testing import check_algorithm


class Dynamic(NamedTuple):
    w: Tensor  # [P] w_k
    tau: Tensor  # [N] local steps of each client
    h: Tensor  # [P] sum_i p_i h_i


@dataclass(frozen=True)
class FedDyn(Algorithm):
    lr: float
    a: float = 0.1

    def init(self, w: Tensor, tau: Tensor) -> Dynamic:
        return Dynamic(w, tau, torch.zeros_like(w))

    def update(self, state: Dynamic, ids: Tensor, p: Tensor, report: Report) -> tuple[Dynamic, Named]:
        h = state.h - self.a * report.mass * report.mean["moved"]  # the absent keep their h_i
        return state._replace(w=state.w + report.mean["moved"] - h / self.a, h=h), {}

    def memory(self, w: Tensor) -> Named:
        return {"h": torch.zeros_like(w)}

    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["h"]

    def direction(self, order: Order, s: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return g - s + self.a * (w - order.w)

    def finish(self, order: Order, s: Tensor, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        moved = w - order.w
        return {"moved": moved}, {}, {"h": s - self.a * moved}


if __name__ == "__main__":
    check_algorithm(FedDyn(lr=0.05))
    experiment = Experiment(data="digits", model="mlp", partition="case3", rounds=20, batch=32, lr=0.05)
    with TemporaryDirectory() as folder:
        for run in compare(experiment, 1, folder, methods=("fedveca", "fedavg", FedDyn(lr=0.05, a=0.1))):
            print(f"{run.experiment.method:35}  test accuracy {100 * run.summary['kept']['test_accuracy']:.1f} %")
