"""fedveca report: one HTML file about runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_run_folders, open_runs, print_result
from fedveca.errors import printable


def add(command: Command) -> None:
    text = "Write a self-contained HTML file about runs: a table, curves, and every round of the controller."
    report = command("report", _report, text)
    add_run_folders(report)
    out = Path("report.html")
    report.add_argument(
        "-o", "--out", type=Path, default=out, metavar="FILE", help="file to write (default report.html)"
    )


def _report(args: argparse.Namespace) -> int:
    from fedveca.views.report.report import write_report

    runs = open_runs(args)
    made = write_report(runs, args.out)
    size = f"{made['runs']} run{'' if made['runs'] == 1 else 's'}, {made['bytes'] / 1e6:.1f} MB"
    print_result(args, made, f"report: {printable(str(args.out), 4096)} ({size})")
    return 0
