"""Speed on one CUDA device: the cost of a client's step, and pfl's own benchmark shape compared with pfl.

    python -m benchmarks.scale.gpu --out docs/results/gpu.json [--data FOLDER_OF_CIFAR10] [--rounds 100]

pfl is timed where it is installed. Its shape: CIFAR-10 dealt evenly to 1,000 clients of 50 images, 50 clients a
round, one local epoch of batch 10 (5 steps), the paper's CNN on both sides. Without --data, random images of the
same size stand in: time does not depend on what they show.
"""

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, FedAvg, FedVeca
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.runs.folder import describe_environment
from fedveca.tasks.datasets.dataset import load, prepare
from fedveca.tasks.models import Cnn, model
from fedveca.tasks.partition import partition

SHAPE, CLASSES, LR = (3, 32, 32), 10, 0.01


def images(folder: str | None) -> tuple[Tensor, Tensor]:
    if folder:
        data = load("cifar10", folder)
        return data.x, data.y
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (50_000, *SHAPE), dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, CLASSES, (50_000,), generator=generator)


def timed(work: Callable[[], None], repeat: int = 5) -> float:
    """Seconds, the median of `repeat` after two that warm up."""
    seconds = []
    for _ in range(repeat + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def step_cost(x: Tensor, y: Tensor, algorithm: Algorithm, clients: int, steps: int) -> float:
    """Milliseconds a client step, batch 100, no probe unless the method needs it."""
    problem = model("cnn", SHAPE, CLASSES)
    shares = partition("iid", y, CLASSES, clients)
    cohort = LocalCohort(
        algorithm, problem, x, y, shares, batch=100, want_loss=False, pixels="standardised", device="cuda"
    )
    tau, ids = torch.full((clients,), steps), torch.arange(clients)
    order = algorithm.order(algorithm.init(problem.init().cuda(), tau))
    return 1e3 * timed(lambda: cohort(0, order, ids, tau) and None) / (clients * steps)


def ours(x: Tensor, y: Tensor, rounds: int) -> float:
    """Seconds a round of pfl's shape."""
    algorithm, problem = FedAvg(LR), model("cnn", SHAPE, CLASSES)
    shares = partition("iid", y, CLASSES, 1000)
    cohort = LocalCohort(
        algorithm, problem, x, y, shares, batch=10, want_loss=False, pixels="standardised", device="cuda"
    )
    state = algorithm.init(problem.init().cuda(), torch.full((1000,), 5))
    seen = federate(algorithm, cohort, state, rounds + 3, participation=0.05)
    for _ in range(3):
        next(seen)
    torch.cuda.synchronize()
    began = time.perf_counter()
    last = list(seen)[-1][0]
    torch.cuda.synchronize()
    assert bool(torch.isfinite(last.w).all())
    return (time.perf_counter() - began) / rounds


def pfl(x: Tensor, y: Tensor, rounds: int) -> float:
    """Seconds a round of the same with pfl: images standardised beforehand, resident on the device."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Module(Cnn):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
            return {}

    class Client(Dataset):
        def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
            rows = torch.randperm(50, device="cuda").split(batch_size or 10)
            return ((self.raw_data[0][r], self.raw_data[1][r]) for r in rows)

    shares = partition("iid", y, CLASSES, 1000)
    inputs, labels = prepare(x, "standardised")[shares.rows].cuda(), y[shares.rows].cuda()
    clients = [Client((inputs[50 * i : 50 * i + 50], labels[50 * i : 50 * i + 50])) for i in range(1000)]
    module = Module(SHAPE, CLASSES).cuda()
    pfl_model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    population = FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(range(1000)))
    local = NNTrainHyperParams(local_batch_size=10, local_num_epochs=1, local_learning_rate=LR)

    def go(n: int) -> float:
        params = NNAlgorithmParams(
            central_num_iterations=n, evaluation_frequency=10**9, train_cohort_size=50, val_cohort_size=0
        )
        torch.cuda.synchronize()
        began = time.perf_counter()
        FederatedAveraging().run(
            params, SimulatedBackend(population, population), pfl_model, local, send_metrics_to_platform=False
        )
        torch.cuda.synchronize()
        return time.perf_counter() - began

    go(2)  # pfl evaluates in its first round: taken out by the difference
    short = go(2)
    return (go(rounds + 2) - short) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    x, y = images(args.data)
    result: dict[str, object] = {
        "environment": describe_environment("cuda"),
        "data": "CIFAR-10" if args.data else "random",
    }
    result["step_ms"] = {
        "one client": step_cost(x, y, FedAvg(LR), 1, 40),
        "50 clients": step_cost(x, y, FedAvg(LR), 50, 20),
        "5 clients": step_cost(x, y, FedAvg(LR), 5, 20),
        "50 clients, FedVeca with its probe of 1,024 rows": step_cost(x, y, FedVeca(LR), 50, 20),
    }
    mine = ours(x, y, args.rounds)
    result["pfl_shape"] = {"ours_seconds_a_round": mine, "rounds": args.rounds, "ours_1500_rounds": 1500 * mine}
    if importlib.util.find_spec("pfl"):
        theirs = pfl(x, y, max(5, args.rounds // 5))
        again = ours(x, y, args.rounds)
        result["pfl_shape"] |= {  # type: ignore[operator]
            "ours_again": again,
            "pfl_seconds_a_round": theirs,
            "pfl_over_ours": theirs / statistics.fmean([mine, again]),
        }
    print(json.dumps(result, indent=2))
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
