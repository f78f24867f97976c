"""How a round's cost grows: uneven against even steps, and memory against clients in flight.

    python -m benchmarks.scale.growth [--out growth.json]

Random images of MNIST's size; time and memory do not depend on what they show.
"""

import argparse
import json
import statistics
import time
from multiprocessing import get_context
from pathlib import Path

import torch

from fedveca.algorithms import FedAvg
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.folder import describe_environment
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

UNEVEN, EVEN = torch.tensor([20, 2, 2, 2, 2]), torch.tensor([6, 6, 6, 5, 5])


def cohort(name: str, clients: int, batch: int, rows: int, threads: int = 0) -> tuple[LocalCohort, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (rows,), generator=generator)
    problem = model(name, (1, 28, 28), 10)
    shares = partition("case1", y, 10, clients)
    local = LocalCohort(
        FedAvg(0.01), problem, x, y, shares, batch=batch, want_loss=False, pixels="unit", threads=threads
    )
    return local, problem.init()


def uneven_over_even(name: str, threads: int) -> float:
    """The median over turns of a round of [20, 2, 2, 2, 2] steps over one of the same 28 steps dealt evenly."""
    local, w = cohort(name, 5, 100, 60_000, threads)
    order, ids = FedAvg(0.01).order(FedAvg(0.01).init(w, EVEN)), torch.arange(5)
    ratios = []
    for k in range(12):
        seconds = []
        for tau in (UNEVEN, EVEN):
            began = time.perf_counter()
            local(k, order, ids, tau)
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios[2:])


def peak(job: tuple[str, int]) -> float:
    """MB at the most, in a process of its own, with all clients in flight."""
    name, clients = job
    local, w = cohort(name, clients, 20, 60_000)
    order = FedAvg(0.01).order(FedAvg(0.01).init(w, torch.ones(clients)))
    local(0, order, torch.arange(clients), torch.full((clients,), 2))
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = {
        "environment": describe_environment("cpu"),
        "uneven_over_even": {
            f"{name}, {threads or 'all'} threads": uneven_over_even(name, threads)
            for name in ("svm", "cnn")
            for threads in (1, 0)
        },
    }
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        jobs = [("svm", 100), ("svm", 1_000), ("svm", 10_000), ("cnn", 5), ("cnn", 50), ("cnn", 500)]
        peaks = pool.map(peak, jobs, 1)
    result["peak_mb"] = {f"{name}, {n} clients": mb for (name, n), mb in zip(jobs, peaks, strict=True)}
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
