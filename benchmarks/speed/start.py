"""How long it takes to start: Python, PyTorch, the command line, and a whole run of one round.

Each is a process of its own, and in every pass all take turns; with `--against`, this checkout and the package of
another `src` folder. Ratios to importing PyTorch are of processor time in the same pass, so that company on the machine
shows less. The exit code is 1 where a budget is exceeded.

    python -m benchmarks.speed.start --out docs/results/start.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.speed.machine import machine

HERE = Path(__file__).parents[2] / "src"
RUN = "fedveca run digits-case3 rounds=1"
TORCH = 'python -c "import torch"'
LIBRARY = 'python -c "from fedveca import run"'
BARE = ["python -c pass", TORCH]  # the same in every checkout
COMMANDS = [LIBRARY, "fedveca --help", "fedveca list", RUN]
MOST_SECONDS = {"fedveca --help": 0.3}
MOST_OF_TORCH = {LIBRARY: 1.5}
DEAREST = 10  # modules that are listed


class Cost(NamedTuple):
    """What one process took."""

    seconds: float
    processor: float  # seconds of user and system


class Module(NamedTuple):
    """What importing a module takes, without what it imports itself."""

    name: str
    milliseconds: float


def run_command(command: str, source: Path, *options: str) -> tuple[Cost, str]:
    """What a command takes with the package of `source`, in an empty folder, and what it writes to stderr."""
    _, _, code = command.partition("python -c ")
    words = ["-c", code.strip('"')] if code else ["-m", *command.split()]
    if command == RUN:
        words += ["--device", "cpu"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        env = os.environ | {"PYTHONPATH": str(source)}
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *options, *words], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        written = errors.read()
    if process.returncode:
        raise SystemExit(f"{command} failed with {process.returncode}: {written[-1000:]}")
    return Cost(round(seconds, 3), round(used.ru_utime + used.ru_stime, 3)), written


def list_dearest(times: str) -> list[Module]:
    """The modules that take longest, from what `python -X importtime` writes."""
    found = re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", times, re.MULTILINE)
    modules = sorted((Module(name, int(microseconds) / 1000) for microseconds, name in found), key=lambda m: m[1])
    return modules[: -DEAREST - 1 : -1]


def summarize(costs: list[Cost], torch: list[Cost]) -> dict[str, float]:
    """Medians over passes: seconds, and the share of what importing PyTorch takes."""
    shares = [cost.processor / bare.processor for cost, bare in zip(costs, torch, strict=True)]
    return {
        "seconds": round(statistics.median(cost.seconds for cost in costs), 2),
        "processor": round(statistics.median(cost.processor for cost in costs), 2),
        "of_torch": round(statistics.median(shares), 2),
    }


def find_excess(table: dict[str, dict[str, float]]) -> list[str]:
    """Which commands exceed their budget."""
    return [
        f"{command}: {table[command][unit]:.2f} {said}, of at most {most}"
        for unit, said, budget in (("seconds", "s", MOST_SECONDS), ("of_torch", "x import torch", MOST_OF_TORCH))
        for command, most in budget.items()
        if table[command][unit] > most
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--against", type=Path, help="the src folder of another checkout")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sources = {"this": HERE} | ({"before": args.against.resolve()} if args.against else {})
    turns = [("this", command) for command in BARE] + [(name, command) for command in COMMANDS for name in sources]
    taken: dict[tuple[str, str], list[Cost]] = {turn: [] for turn in turns}
    for k in range(args.passes + 1):
        for name, command in turns:
            cost, _ = run_command(command, sources[name])
            if k:  # the first pass fills the caches: of files, and of Python's bytecode
                taken[name, command].append(cost)
    tables: dict[str, dict[str, dict[str, float]]] = {name: {} for name in sources}
    for (name, command), costs in taken.items():
        found = tables[name][command] = summarize(costs, taken["this", TORCH])
        print(f"{name:6}  {command:36} {found['seconds']:6.2f} s  {found['of_torch']:5.2f} x import torch")
    dearest = list_dearest(run_command(RUN, HERE, "-X", "importtime")[1])
    for module in dearest:
        print(f"{module.milliseconds:8.1f} ms  {module.name}")
    if args.out:
        modules = [module._asdict() for module in dearest]
        content = {"machine": machine(), "passes": args.passes, "commands": tables, "dearest": modules}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
    excess = find_excess(tables["this"])
    for text in excess:
        print(f"over budget: {text}")
    return int(bool(excess))


if __name__ == "__main__":
    sys.exit(main())
