"""FedNTD (Lee et al. 2022): local steps keep the global model's opinion of all labels but the true one.

The loss sees the outputs of w_k on the same rows. The package's MOON (algorithms/contrib/moon.py) also compares with a
model from the client's memory, and FedLC (algorithms/contrib/fedlc.py) uses the counts of the client's labels.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import one_hot

from fedveca import Experiment, FedAvg, compare, hyper
from fedveca.algorithms import Named, Order, Outputs, RowLoss
from fedveca.testing import check_algorithm


@dataclass(frozen=True)
class FedNTD(FedAvg):
    beta: float = hyper(1.0, "weight of the distillation", low=0)
    temperature: float = hyper(1.0, "of the softmax", low=0, open_ends=True)
    has_loss: ClassVar[bool] = True

    def models(self, order: Order, s: tuple[()]) -> Named:
        return {"global": order.w}

    def loss(self, base: RowLoss, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        true = one_hot(y, out.scores.shape[-1]).bool()

        def log_shares(scores: Tensor) -> Tensor:  # of the labels that are not true
            return (scores / self.temperature).masked_fill(true, -1e9).log_softmax(-1)

        mine, its = log_shares(out.scores), log_shares(others["global"].scores)
        distance = (its.exp() * (its - mine)).sum(-1) * self.temperature**2
        return base(out.scores, y) + self.beta * distance  # [B]


if __name__ == "__main__":
    check_algorithm(FedNTD(lr=0.05))
    experiment = Experiment(partition="labels", rounds=20, batch=32, lr=0.05, keep="last")
    with TemporaryDirectory() as folder:
        for run in compare(experiment, 1, folder, methods=("fedavg", FedNTD(lr=0.05))):
            loss, accuracy = run.summary["last"]["test_loss"], run.summary["last"]["test_accuracy"]
            print(f"{run.experiment.method}: test loss {loss:.3f}, test accuracy {100 * accuracy:.1f} %")
