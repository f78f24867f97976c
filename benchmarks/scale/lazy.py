"""Rows that are read when they are needed: seconds per round and peak memory, next to rows in memory.

    python -m benchmarks.scale.lazy [--gigabytes 50] [--models logistic mlp] [--folder /tmp] [--out lazy.json]

Three jobs, each in a process of its own: a small array in memory, the same array read from its file, and a sparse file
of 50 GB, which takes no room on the disk: what is read there are zeros that the kernel makes, so that the time is of
reading by position and copying, not of a disk. Memory is the process's peak (VmHWM), and what it had before the data.
"""

import argparse
import json
import statistics
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedveca.algorithms import FedAvg
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.folder import describe_environment
from fedveca.tasks.custom import from_arrays
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

SHAPE = (3, 64, 64)  # 12 kB per row
ROW = 3 * 64 * 64
SMALL = 20_000  # rows: 246 MB
CLIENTS, TAU, BATCH, ROUNDS = 10, 5, 32, 6


class Job(NamedTuple):
    model: str
    path: str
    rows: int
    lazy: bool


class Measured(NamedTuple):
    data_mb: float
    set_up: float  # seconds
    per_round: float  # seconds, the median after the first
    fastest: float
    before_mb: float  # memory of the process before the data
    peak_mb: float


def memory_mb(which: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(which)).split()[1]) / 1024


def measure(job: Job) -> Measured:
    """Rounds of FedAvg with a probe of 100 rows per client."""
    problem, before, began = model(job.model, SHAPE, 10), memory_mb("VmRSS"), time.perf_counter()
    x = np.memmap(job.path, np.uint8, "r", shape=(job.rows, *SHAPE))
    y = np.random.default_rng(0).integers(0, 10, job.rows)
    data = from_arrays(x, y, test=(x[:100], y[:100]), lazy=job.lazy)
    del x
    shares = partition("iid", data.y, 10, CLIENTS)
    method = FedAvg(0.01)
    cohort = LocalCohort(method, problem, data.x, data.y, shares, batch=BATCH, probe=100, pixels=data.pixels)
    order, seconds = method.order(method.init(problem.init(), torch.full((CLIENTS,), TAU))), []
    set_up = time.perf_counter() - began
    for k in range(ROUNDS):
        began = time.perf_counter()
        cohort(k, order, torch.arange(CLIENTS), torch.full((CLIENTS,), TAU))
        seconds.append(time.perf_counter() - began)
    return Measured(
        job.rows * ROW / 1e6, set_up, statistics.median(seconds[1:]), min(seconds), before, memory_mb("VmHWM")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=50)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--models", nargs="+", default=["logistic", "mlp"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, object] = {"environment": describe_environment("cpu")}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        small, large = str(Path(folder) / "small"), str(Path(folder) / "large")
        np.random.default_rng(0).integers(0, 256, (SMALL, ROW), dtype=np.uint8).tofile(small)
        rows = int(args.gigabytes * 1e9) // ROW
        with open(large, "wb") as file:
            file.truncate(rows * ROW)
        for name in args.models:
            jobs = {
                "in memory": Job(name, small, SMALL, False),
                "lazy": Job(name, small, SMALL, True),
                f"lazy, {args.gigabytes:g} GB sparse": Job(name, large, rows, True),
            }
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                found = {}
                for title, one in zip(jobs, pool.imap(measure, jobs.values(), 1), strict=True):
                    found[title] = one._asdict()
                    print(name, title, found[title], flush=True)
            result[name] = found
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
