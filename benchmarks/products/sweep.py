"""How long a sweep takes: python -m benchmarks.products.sweep [--workers 2] [--out sweep.json].

Three rates, four methods, three tuning seeds and three reported seeds on digits: 48 runs of 80 rounds, in the processes
of `fedveca sweep`. Next to the seconds on the clock it prints the processor's, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from fedveca.cli import main as run_command

COMMAND = "sweep digits-case3 lr=0.01,0.03,0.1 --methods fedveca,fedavg,fedprox,scaffold --seeds 3 --device cpu --quiet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        code = run_command([*COMMAND.split(), "--workers", str(args.workers), "--out", f"{folder}/sweep"])
        runs = len(list(Path(folder).rglob("summary.json")))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = {
        "command": f"fedveca {COMMAND} --workers {args.workers}",
        "runs": runs,
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 1),
    }
    assert code == 0
    print(f"{runs} runs: {result['seconds']} s, {result['processor_seconds']} s of the processor")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
