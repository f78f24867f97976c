"""How long many runs take: the demo's 18, a column of Table I, and 60 runs of 1,000 clients, with their peak memory.

Each command is a process of its own. In every pass the sources take turns: this checkout, and another one where
`--against` names its `src`.

    python -m benchmarks.speed.population --data DIR --against ../other/src --out docs/results/population.json
    python -m benchmarks.speed.population --data DIR --device cuda --jobs cnn-mnist,cnn-cifar10,svm --rounds 20 \\
        --passes 1 --against ../other/src --out docs/results/population-cuda.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.speed.machine import machine

HERE = Path(__file__).parents[2] / "src"
SVM = ["compare", "svm-mnist-case3"]
_PR_SET_CHILD_SUBREAPER = 36  # of Linux: processes whose parent has ended become this one's children
JOBS = {  # -1: in one process; else in as many as the command chooses
    "demo": ["compare", "digits-case3", "--seeds", "3"],
    "demo-1": ["compare", "digits-case3", "--seeds", "3", "--workers", "1"],
    "column": [*SVM, "--seeds", "10"],
    "svm-1000": [*SVM, "--seeds", "10", "clients=1000", "partition=case1", "rounds=3"],
}
BEFORE = {  # version 0.1 had one process unless it was told otherwise; its `make demo` had three
    "demo": [*JOBS["demo"], "--workers", "3"],
    "column": [*JOBS["column"], "--workers", "2"],
    "svm-1000": [*JOBS["svm-1000"], "--workers", "2"],
}
CUDA_JOBS = {  # the three columns of Table I, with fewer seeds
    "cnn-cifar10": ["compare", "cnn-cifar10-case3", "--seeds", "3"],
    "cnn-mnist": ["compare", "cnn-mnist-case3", "--seeds", "3"],
    "svm": [*SVM, "--seeds", "3"],
}


class Cost(NamedTuple):
    """What one command took."""

    seconds: float
    processor: float  # seconds of all its processes
    megabytes: float  # peak of the largest process


def measure(words: list[str], source: Path, device: str) -> Cost:
    """Runs a command of the package in `source`, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        start_it = "import sys; from fedveca.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", start_it, *words, "--device", device, "--quiet", "--out", f"{folder}/out"]
        start = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        used_by = [used]
        with contextlib.suppress(ChildProcessError):
            while True:  # processes that outlive it by a moment
                used_by.append(os.wait3(0)[2])
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed with {process.returncode}")
    processor = sum(each.ru_utime + each.ru_stime for each in used_by)
    return Cost(round(seconds, 2), round(processor, 2), round(max(each.ru_maxrss for each in used_by) / 1024, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="folder of MNIST's four gzipped idx files, or of its folder")
    parser.add_argument("--against", type=Path, help="the src folder of another checkout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--jobs", default="", metavar="JOB,JOB", help="of the CPU or of CUDA; all of the device's where none is named"
    )
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="fewer rounds of each run, for a quick look")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.data:
        os.environ["FEDVECA_DATA"] = str(args.data.resolve())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    known = JOBS if args.device == "cpu" else CUDA_JOBS
    jobs = args.jobs.split(",") if args.jobs else list(known)
    sources = {"this": HERE} | ({"before": args.against.resolve()} if args.against else {})
    found: dict[str, dict[str, list[Cost]]] = {job: {name: [] for name in sources} for job in jobs}
    for k in range(args.passes):
        for job in jobs:
            for name, source in sources.items():
                words = (BEFORE if name == "before" and args.device == "cpu" else known).get(job, known[job])
                words = words + ([f"rounds={args.rounds}"] if args.rounds else [])
                found[job][name].append(measure(words, source, args.device))
                print(f"pass {k + 1}: {job}, {name}: {found[job][name][-1]}", flush=True)
    table = {
        job: {name: {"passes": [cost._asdict() for cost in costs], **_summarize(costs)} for name, costs in mine.items()}
        for job, mine in found.items()
    }
    content = {"machine": machine(), "rounds": args.rounds or "those of the presets", "jobs": table}
    args.out.write_text(json.dumps(content, indent=1) + "\n")


def _summarize(costs: list[Cost]) -> dict[str, float]:
    return {name: statistics.median(getattr(cost, name) for cost in costs) for name in Cost._fields}


if __name__ == "__main__":
    main()
