"""How long importing takes, compared with importing torch alone: python -m benchmarks.products.imports"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

WAYS = {
    "torch": "import torch",
    "fedveca": "import fedveca",
    "torch, then fedveca.run": "import torch; from fedveca import run",
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main(times: int = 7) -> None:
    """Turn by turn, so that company on the machine is shared; medians."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(times):
        for name, code in WAYS.items():
            taken[name].append(seconds(code))
    bare = statistics.median(taken["torch"])
    for name, each in taken.items():
        print(f"{name:25} {statistics.median(each):6.2f} s  {statistics.median(each) / bare:5.2f} x torch")


if __name__ == "__main__":
    main()
