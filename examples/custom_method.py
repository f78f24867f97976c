"""A custom method in one file: Ditto (Li et al. 2021), where each client trains a model of its own besides the shared.

Client i keeps v_i, which minimises F_i(v) + lam / 2 |v - w_k|^2; the shared model is FedAvg's. Local steps alternate:
one on v_i, one on the shared model. The client remembers v_i, which is also what it evaluates (`begin`); an even
number of finetune_steps ends there too.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca import Experiment, compare
from fedveca.algorithms import Algorithm, Named, Order, Report, ServerState
from fedveca.testing import check_algorithm


class Pair(NamedTuple):
    other: Tensor  # [..., P] the model that does not step now
    shared: Tensor  # [..., 1] whether the one that steps is the shared model: 1 or 0


@dataclass(frozen=True)
class Ditto(Algorithm):
    lr: float
    lam: float = 0.1

    def memory(self, w: Tensor) -> Named:
        return {"v": w}

    def begin(self, order: Order, memory: Named) -> Tensor:
        return memory["v"]

    def start(self, order: Order, memory: Named, g0: Tensor) -> Pair:
        w = order.w.expand_as(memory["v"])
        return Pair(w, torch.zeros_like(w[..., :1]))

    def step(self, order: Order, s: Pair, w: Tensor, g: Tensor) -> tuple[Tensor, Pair]:
        pull = self.lam * (1 - s.shared) * (w - order.w)
        return s.other, Pair(w - self.lr * (g + pull), 1 - s.shared)

    def finish(self, order: Order, s: Pair, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        shared, v = torch.where(s.shared > 0, w, s.other), torch.where(s.shared > 0, s.other, w)
        return {"moved": shared - order.w}, {}, {"v": v}

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w + report.mean["moved"]), {}


if __name__ == "__main__":
    check_algorithm(Ditto(lr=0.05))
    experiment = Experiment(partition="labels", rounds=20, batch=32, lr=0.05, test_by="client")
    with TemporaryDirectory() as folder:
        for run in compare(experiment, 1, folder, methods=("fedavg", Ditto(lr=0.05))):
            mean = run.summary["last"]["clients_accuracy"]
            print(f"{run.experiment.method:30}  mean accuracy of the clients {100 * mean:.1f} %")
