"""The cost of momentum in the local steps of the four jobs: python -m benchmarks.speed.momentum --data DIR

FedAvg with plain SGD and FedAvg with momentum 0.9 take turns in one process, round by round and each time the other way
round, so that a ratio compares neighbours in time. A pass's ratio is that of the medians of its rounds; the result is
the median over passes.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypedDict

import torch

from benchmarks.speed.jobs import JOBS, LR, Job, load
from benchmarks.speed.machine import machine
from fedveca.algorithms import Algorithm, FedAvg
from fedveca.algorithms.optimizers import LocalOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares

ROUNDS = {"svm-5": 60, "svm-1000": 6, "cnn-5": 4, "cnn-50": 2}  # of each kind in a pass


class Cost(TypedDict):
    """Of one job, in milliseconds per round; the ratio of each pass, and their median."""

    job: str
    plain: float
    momentum: float
    ratios: list[float]
    ratio: float


def make_round(job: Job, algorithm: Algorithm, folder: Path) -> Callable[[], None]:
    """A round of a job as a function."""
    shards = load(job, folder, raw=True)
    x, y = torch.from_numpy(shards.x), torch.from_numpy(shards.y).to(torch.int64)
    if job.model == "svm":
        x, y = x.view(-1, 1, 28, 28), (1 - y) // 2
    problem = model(job.model, (1, 28, 28), 10, init="torch")
    shares = Shares(torch.arange(len(y)), torch.arange(job.clients + 1) * (len(y) // job.clients))
    cohort = LocalCohort(algorithm, problem, x, y, shares, batch=job.batch, pixels="unit", want_loss=False)
    ids, steps = torch.arange(job.clients), torch.full((job.clients,), job.steps)
    state = algorithm.init(problem.init(), steps)

    def play() -> None:
        nonlocal state
        p, report = cohort(0, algorithm.order(state), ids, steps)
        state, _ = algorithm.update(state, ids, p, report)

    return play


def measure(job: Job, folder: Path, passes: int, clock: Callable[[], float]) -> Cost:
    plain, momentum = FedAvg(LR), Recipe(FedAvg(LR), LocalOptimizer(momentum=0.9))
    rounds = [make_round(job, algorithm, folder) for algorithm in (plain, momentum)]
    for play in rounds:
        play()
    taken: list[tuple[list[float], list[float]]] = []
    for _ in range(passes):
        seconds: tuple[list[float], list[float]] = [], []
        for number in range(ROUNDS[job.name]):
            for kind in (0, 1) if number % 2 else (1, 0):
                began = clock()
                rounds[kind]()
                seconds[kind].append(clock() - began)
        taken.append(seconds)
    ratios = [median(slow) / median(fast) for fast, slow in taken]
    per_kind = [median(s for seconds in taken for s in seconds[kind]) for kind in (0, 1)]
    return {
        "job": job.name,
        "plain": round(1000 * per_kind[0], 3),
        "momentum": round(1000 * per_kind[1], 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("FEDVECA_DATA"), help="folder of the idx.gz files")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--out", type=Path, help="write machine and costs here, as JSON")
    given = parser.parse_args()
    if given.data is None:
        parser.error("say where MNIST is: --data DIR or FEDVECA_DATA")
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    costs = []
    for job in given.jobs:
        costs.append(measure(JOBS[job], Path(given.data).resolve(), given.passes, clock))
        print(json.dumps(costs[-1]), flush=True)
    if given.out:
        options = f"--passes {given.passes} --clock {given.clock}"
        found = {
            "command": f"python -m benchmarks.speed.momentum --data DIR {options}",
            "machine": machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "clock": given.clock,
            "costs": costs,
        }
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
