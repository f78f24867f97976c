"""Prints the table of docs/speed.md from its results: python -m benchmarks.public.table docs/results/public-speed.json.

A row is one case on one device. Ratios are of times from one run on one machine: above 1, ours took less time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.public.cases import CASES

HEAD = (
    "| benchmark and settings | published, on their hardware | measured on | plain loop | the framework | ours "
    "| plain loop / ours | framework / ours |\n|---|---|---|---|---|---|---|---|\n"
)
DEVICES = ("cpu", "cuda")


def make_table(found: dict[str, Any]) -> str:
    """The rows of all measured cases, and a sentence that names the others."""
    rows = [
        _make_row(name, found[f"{name} {device}"])
        for name in CASES
        for device in DEVICES
        if f"{name} {device}" in found
    ]
    missing = [f"`{name}`" for name in CASES if not any(f"{name} {device}" in found for device in DEVICES)]
    rest = f"\nNot measured yet: {', '.join(missing)}.\n" if missing else ""
    return HEAD + "".join(rows) + rest


def _make_row(name: str, times: dict[str, Any]) -> str:
    case, ours, plain = CASES[name], times["seconds"], times["plain_seconds"]
    peer = min(times["peers"], key=lambda each: float(each["seconds"]), default=None)
    cells = [
        f"{case['source']}: {case['settings_text']}",
        case["published"],
        _name_device(times),
        show_time(plain),
        f"{show_time(peer['seconds'])} ({peer['label']})" if peer else "not measured",
        _show_ours(times),
        show_ratio(plain / ours),
        show_ratio(peer["seconds"] / ours) if peer else "",
    ]
    return f"| {' | '.join(cells)} |\n"


def _name_device(times: dict[str, Any]) -> str:
    cores = times["machine"]["cores"]
    return f"{cores} CPU cores" if times["device"] == "cpu" else f"one {times['device']}"


def _show_ours(times: dict[str, Any]) -> str:
    """The time, what it is extrapolated from, whether rows are random, and the accuracy where it means something."""
    notes = []
    if times["rounds"] < times["of"]:
        notes.append(f"from {times['rounds']:,} of {times['of']:,} rounds")
    if times["rows"] == "random":
        notes.append("random rows")
    if "accuracy" in times:
        notes.append(f"accuracy {times['accuracy']:.2f} %")
    return ", ".join([f"**{show_time(times['seconds'])}**", *notes])


def show_time(seconds: float) -> str:
    """Such as 1.3 s, 2:05 or 1:42:01."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_ratio(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    print(make_table(json.loads(parser.parse_args().results.read_text("utf-8"))), end="")


if __name__ == "__main__":
    main()
