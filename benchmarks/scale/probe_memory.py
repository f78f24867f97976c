"""Peak memory of the probe: a small transformer whose rows are short and whose activations are large.

    python -m benchmarks.scale.probe_memory [--rounds 6] [--threads 0] [--out probe_memory.json]

28 clients with 256 rows each train a GPT of 120,704 parameters. A row is 32 tokens, 256 bytes, but its gradient holds
hundreds of kilobytes: what is bounded by the size of rows and parameters alone takes gigabytes here. Each job runs in a
process of its own; memory is the process's peak (VmHWM), and what it had before the run.
"""

import argparse
import json
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.scale.lazy import memory_mb
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.tasks.custom import from_arrays

CLIENTS, ROWS, PLACES, WORDS = 28, 256, 32, 145
LIMIT_MB = 700  # of FedVeca with its default probe


class MemoryJob(NamedTuple):
    method: str
    keep: str
    probe: int | str
    rounds: int
    threads: int


class PeakMemory(NamedTuple):
    parameters: int
    before_mb: float
    peak_mb: float
    seconds: float
    tau: list[list[int]]  # by round


def measure_memory(job: MemoryJob) -> PeakMemory:
    """One run, on tokens of which each is the one before it plus one of three steps: something can be learned."""
    if job.threads:
        torch.set_num_threads(job.threads)
    draws = np.random.default_rng(0)
    first = draws.integers(0, WORDS, (CLIENTS * ROWS + 100, 1))
    tokens = (first + np.cumsum(draws.integers(1, 4, (len(first), PLACES + 1)), 1)) % WORDS
    x, y = tokens[:, :-1], tokens[:, 1:]
    data = from_arrays(x[100:], y[100:], test=(x[:100], y[:100]), tokens=True, classes=WORDS)
    e = Experiment(
        method=job.method,
        model="gpt",
        partition="iid",
        clients=CLIENTS,
        rounds=job.rounds,
        batch=16,
        lr=0.05,
        tau_0=4,
        keep=job.keep,  # type: ignore[arg-type]
        probe=job.probe,  # type: ignore[arg-type]
    )
    before, began = memory_mb("VmRSS"), time.perf_counter()
    done = run(e, data=data, device="cpu")
    spent = time.perf_counter() - began
    size = sum(v.numel() for v in done.model.values())
    return PeakMemory(size, before, memory_mb("VmHWM"), spent, [record["tau"] for record in done.rounds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's number")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jobs = {
        "fedavg, no probe": MemoryJob("fedavg", "last", "auto", args.rounds, args.threads),
        "fedveca, default probe": MemoryJob("fedveca", "best", "auto", args.rounds, args.threads),
        "fedveca, all rows": MemoryJob("fedveca", "best", 0, args.rounds, args.threads),
    }
    result: dict[str, object] = {"environment": describe_environment("cpu"), "limit_mb": LIMIT_MB}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for title, found in zip(jobs, pool.imap(measure_memory, jobs.values(), 1), strict=True):
            result[title] = found._asdict()
            mean = [round(sum(tau) / len(tau), 2) for tau in found.tau]
            print(
                f"{title}: {found.peak_mb:.0f} MB at most, {found.before_mb:.0f} MB before; mean tau {mean}", flush=True
            )
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
