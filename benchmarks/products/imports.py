"""How long importing takes, and commands that need no PyTorch: python -m benchmarks.products.imports"""

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
COMMANDS = ("--help", "list", "list alpha", "rum", "run roundz=3", "runs", "completion bash", "__complete run method=")


def seconds(*words: str) -> float:
    """Of a Python process with these arguments; what it prints is not shown."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True)
    taken = time.perf_counter() - start
    assert done.returncode in (0, 2), done.stderr  # 2: a typing error
    return taken


def main(times: int = 7) -> None:
    """Turn by turn, so that company on the machine is shared; medians."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(times):
        for name, code in WAYS.items():
            taken[name].append(seconds("-c", code))
    bare = statistics.median(taken["torch"])
    for name, each in taken.items():
        print(f"{name:25} {statistics.median(each):6.2f} s  {statistics.median(each) / bare:5.2f} x torch")
    commands: dict[str, list[float]] = {command: [] for command in COMMANDS}
    for _ in range(times):
        for command, each in commands.items():
            each.append(seconds("-m", "fedveca", *command.split()))
    for command, each in commands.items():
        print(f"fedveca {command:25} {statistics.median(each):6.2f} s, at best {min(each):.2f} s")


if __name__ == "__main__":
    main()
