"""FedPer (Arivazhagan et al. 2019): clients share the body of the model, and each keeps a last layer of its own.

A client starts from w_k with its head in place of the server's, and sends the change of the body alone.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import ClassVar

from torch import Tensor

from fedveca import Experiment, compare
from fedveca.algorithms import Algorithm, Named, Order, Report, ServerState
from fedveca.testing import check_algorithm


@dataclass(frozen=True)
class FedPer(Algorithm):
    lr: float
    personal: str = ""  # the layers that stay with the clients, with spaces between; empty: the last one
    needs_layout: ClassVar[bool] = True

    @property
    def mine(self) -> Tensor:
        return self.layout.mask(*self.personal.split())  # [P] bool

    def memory(self, w: Tensor) -> Named:
        return {"head": w[self.mine]}

    def begin(self, order: Order, memory: Named) -> Tensor:
        w = order.w.expand(*memory["head"].shape[:-1], -1).clone()
        w[..., self.mine] = memory["head"]
        return w

    def finish(self, order: Order, s: tuple[()], w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"moved": (w - order.w)[..., ~self.mine]}, {}, {"head": w[..., self.mine]}

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        w = state.w.clone()
        w[~self.mine] += report.mean["moved"]
        return state._replace(w=w), {}


if __name__ == "__main__":
    check_algorithm(FedPer(lr=0.05))
    experiment = Experiment(partition="labels", rounds=20, batch=32, lr=0.05, test_by="client", finetune_steps=5)
    with TemporaryDirectory() as folder:
        for run in compare(experiment, 1, folder, methods=("fedavg", FedPer(lr=0.05))):
            mean, tuned = run.summary["last"]["clients_accuracy"], run.summary["last"]["tuned_accuracy"]
            print(f"{run.experiment.method}, {run.rounds[-1]['bytes_up']:,} bytes up per round:")
            print(f"  mean accuracy of the clients {100 * mean:.1f} %, after 5 more local steps {100 * tuned:.1f} %")
