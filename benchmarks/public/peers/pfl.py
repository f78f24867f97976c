"""pfl: its simulated backend in one process, with the settings and the test of its own benchmark on CIFAR-10."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import time
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from benchmarks.public.loops import wait
from benchmarks.public.networks import DropoutCnn
from benchmarks.public.peers.answer import give, make_asked, read_arguments
from fedveca.tasks.datasets.dataset import prepare

UNUSED = {  # packages that pfl imports, and modules of them; without privacy none is called
    "dp_accounting": ("dp_accounting.pld", "dp_accounting.rdp"),
    "prv_accountant": (),
    "multiprocess": (),
}
for package, modules in UNUSED.items():
    if importlib.util.find_spec(package) is None:
        sys.modules |= {name: MagicMock() for name in (package, *modules)}

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByUser  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.callback.central_evaluation import CentralEvaluationCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class PflCnn(DropoutCnn):
    """The network with the two methods that pfl calls."""

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        self.train(not is_eval)
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Weighted]:
        self.train(not is_eval)
        scores = self(x)
        right, loss = (scores.argmax(1) == y).sum(), nn.functional.cross_entropy(scores, y, reduction="sum")
        return {"loss": Weighted(loss.item(), len(y)), "accuracy": Weighted(right.item(), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when rounds end, and ends the training when its seconds are over."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds, self.ends = device, seconds, list[float]()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        wait(self.device)
        self.ends.append(time.perf_counter())
        return self.ends[-1] - self.ends[0] > self.seconds, Metrics()


def main() -> None:
    """Time the case: the rounds after the first, with a test every ten of them."""
    asked = read_arguments()
    os.environ["PFL_PYTORCH_DEVICE"] = asked.device
    case = make_asked(asked)
    built = case.build("cpu")
    data, shares, e = built.data, built.shares, built.experiment
    x, y = prepare(data.x[shares.rows], data.pixels).to(asked.device), data.y[shares.rows].to(asked.device)
    edges = shares.start.tolist()
    users = {i: (x[a:b], y[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))}
    tested = Dataset([prepare(data.x_test, data.pixels).to(asked.device), data.y_test.to(asked.device)])
    module = PflCnn(tuple(data.x.shape[1:]), data.classes).to(asked.device)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    population = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
    evaluated = NNEvalHyperParams(local_batch_size=10_000)
    clock = Clock(asked.device, asked.seconds)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=e.rounds,
            evaluation_frequency=e.test_every,
            train_cohort_size=round(e.participation * e.clients),
            val_cohort_size=0,
        ),
        SimulatedBackend(population, population, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(local_batch_size=e.batch, local_num_epochs=1, local_learning_rate=e.lr),
        evaluated,
        callbacks=[CentralEvaluationCallback(tested, evaluated, frequency=e.test_every), clock],
        send_metrics_to_platform=False,
    )
    timed = len(clock.ends) - 1
    right = sum(_count_right(module, *tested.raw_data)) / len(data.y_test)
    give(
        {
            "label": "pfl 0.6, in one process",
            "seconds": (clock.ends[-1] - clock.ends[0]) / timed * e.rounds,
            "rounds": timed,
            "accuracy": round(100 * right, 2) if case.is_real and len(clock.ends) == e.rounds else None,
        }
    )


@torch.no_grad()
def _count_right(module: nn.Module, x: Tensor, y: Tensor) -> list[int]:
    module.eval()
    parts = zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)
    return [int((module(a).argmax(1) == b).sum()) for a, b in parts]


if __name__ == "__main__":
    main()
