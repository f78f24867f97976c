"""What a local step of a perceptron costs on the CPU: a plain loop, our layers without autograd, and our kernels in C.

    python -m benchmarks.speed.perceptrons --out docs/results/perceptrons.json

Rounds of FedAvg: five clients with 1,000 random rows each take 40 steps of 32 rows. The three take turns, in one
thread; rounds are timed whole, with the drawing of rows and the server's average.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.speed.machine import machine
from fedveca.algorithms import FedAvg
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.native.library import describe_compiler, use_pytorch
from fedveca.tasks.partition import Shares

CLIENTS, ROWS, STEPS, BATCH, LR = 5, 1000, 40, 32, 0.05
NETWORKS = {
    "logistic regression, 784 inputs": (784, 10),
    "64 inputs, 64 hidden units": (64, 64, 10),
    "784 inputs, 64 hidden units": (784, 64, 10),
    "784 inputs, 200 hidden units": (784, 200, 10),
    "784 inputs, two layers of 256": (784, 256, 256, 10),
}
Round = Callable[[], object]


def make_network(widths: tuple[int, ...]) -> nn.Sequential:
    """Layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_plain_round(network: nn.Module, x: Tensor, y: Tensor) -> Round:
    """The loop that a researcher writes first; client i has the rows x[i]."""

    def play() -> None:
        states = []
        for rows, labels in zip(x, y, strict=True):
            mine = copy.deepcopy(network)
            optimizer = torch.optim.SGD(mine.parameters(), lr=LR)
            for _ in range(STEPS):
                picked = torch.randint(ROWS, (BATCH,))
                optimizer.zero_grad()
                nn.functional.cross_entropy(mine(rows[picked]), labels[picked]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            states.append(mine.state_dict())
        network.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})

    return play


def make_our_round(network: nn.Module, x: Tensor, y: Tensor) -> Round:
    """The same with our engine."""
    shares = Shares(torch.arange(CLIENTS * ROWS), torch.arange(CLIENTS + 1) * ROWS)
    algorithm, problem = FedAvg(LR), ModuleProblem(network)
    cohort = LocalCohort(
        algorithm, problem, x.flatten(0, 1), y.flatten(), shares, batch=BATCH, want_loss=False, threads=1
    )
    ids, steps = torch.arange(CLIENTS), torch.full((CLIENTS,), STEPS)
    state = algorithm.init(problem.init(), steps)

    def play() -> None:
        nonlocal state
        who, report = cohort(0, algorithm.order(state), ids, steps)
        state, _ = algorithm.update(state, ids, who, report)

    return play


def measure(widths: tuple[int, ...], rounds: int) -> dict[str, float]:
    """Microseconds per client and step of each, the median of its rounds."""
    torch.manual_seed(0)
    network = make_network(widths)
    x, y = torch.rand(CLIENTS, ROWS, widths[0]), torch.randint(0, widths[-1], (CLIENTS, ROWS))
    plain, ours, layers = (make(copy.deepcopy(network), x, y) for make in (make_plain_round, *2 * (make_our_round,)))

    def without_kernels() -> None:
        with use_pytorch():
            layers()

    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, play in (("plain loop", plain), ("layers", without_kernels), ("in C", ours)):
            start = time.perf_counter()
            play()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    return {name: round(1e6 * statistics.median(each[1:]) / CLIENTS / STEPS, 2) for name, each in seconds.items()}


def main() -> None:
    """Prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    passes = [{name: measure(widths, args.rounds) for name, widths in NETWORKS.items()} for _ in range(args.passes)]
    for name in NETWORKS:
        medians = {way: statistics.median(found[name][way] for found in passes) for way in passes[0][name]}
        print(f"{name}: " + ", ".join(f"{way} {median:.1f}" for way, median in medians.items()) + " microseconds")
    content = {"machine": machine(), "torch": torch.__version__, "compiler": describe_compiler(), "passes": passes}
    args.out.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
