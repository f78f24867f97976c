"""Whether runs have become slower: this source tree against another commit, without simulated devices.

    python -m benchmarks.speed.against 96492fa --pairs 40

A process per tree stays loaded, and both run the same small experiments in turn, so that a busy machine slows both.
What is compared is the processor time of a run; the ratio is the median over pairs, with the interval of its mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from fedveca.runs.statistics import paired_difference

ROOT = Path(__file__).parents[2]
SETTINGS = {  # many short rounds, in which what a round costs besides its local steps shows most
    "svm": {"model": "svm", "clients": 10, "batch": 8, "tau_0": 2, "rounds": 150, "test_every": 150},
    "mlp": {"model": "mlp", "clients": 5, "batch": 16, "tau_0": 5, "rounds": 40, "test_every": 40},
}
WORKER = """
import sys, time, json, torch
torch.set_num_threads(1)
import fedveca
for line in sys.stdin:
    e = fedveca.Experiment(**json.loads(line))
    start = time.process_time()
    fedveca.run(e, device="cpu")
    print(time.process_time() - start, flush=True)
"""


def start_worker(source: Path) -> subprocess.Popen[str]:
    """A process that runs the experiments it is given with the package of a folder."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def time_run(worker: subprocess.Popen[str], settings: dict[str, object]) -> float:
    """Processor seconds of a run."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(json.dumps(settings) + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def extract_source(commit: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--pairs", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workers = {"now": start_worker(ROOT / "src"), "then": start_worker(extract_source(args.commit, Path(folder)))}
        try:
            for name, settings in SETTINGS.items():
                seconds: dict[str, list[float]] = {"now": [], "then": []}
                for pair in range(args.pairs + 1):  # the first one warms up
                    for tree in sorted(workers, reverse=bool(pair % 2)):
                        seconds[tree].append(time_run(workers[tree], settings))
                now, then = seconds["now"][1:], seconds["then"][1:]
                ratios = [a / b for a, b in zip(now, then, strict=True)]
                found = paired_difference(ratios, [1.0] * len(ratios))
                low, high = found.interval or (found.mean, found.mean)
                print(
                    f"{name}: {statistics.median(then):.3f} s then, {statistics.median(now):.3f} s now; "
                    f"{100 * (statistics.median(ratios) - 1):+.1f} % (mean {100 * low:+.1f} to {100 * high:+.1f} %)",
                    flush=True,
                )
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()


if __name__ == "__main__":
    main()
