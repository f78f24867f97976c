"""report, figure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedveca.cli.arguments import Command, says, tell


def add(command: Command) -> None:
    report = command("report", _report, "Write one HTML file about runs: table, curves, what happened inside.")
    _takes_runs(report)
    report.add_argument("-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    figure = command("figure", _figure, "Draw runs for a paper: SVG, PDF or PNG, by the file's name.")
    _takes_runs(figure)
    figure.add_argument("-o", "--out", type=Path, default=Path("figure.svg"), metavar="FILE", help="(figure.svg)")
    figure.add_argument(
        "--what",
        default="curves",
        choices=("curves", "tau", "instant", "partition"),
        help="loss and accuracy (default), local steps by client, all that FedVeca estimates, label mix",
    )


def _takes_runs(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a folder of run folders")
    says(sub)


def _report(args: argparse.Namespace) -> int:
    from fedveca.errors import printable
    from fedveca.views.report.report import find_runs, write

    runs, passed = find_runs(args.runs)
    for sentence in passed:
        print(sentence, file=sys.stderr)
    made = write(runs, args.out)
    tell(args, made, f"report: {printable(str(args.out), 4096)} ({made['runs']} runs, {made['bytes'] / 1e6:.1f} MB)")
    return 0


def _figure(args: argparse.Namespace) -> int:
    from fedveca.errors import printable
    from fedveca.views.figures.run import draw
    from fedveca.views.report.report import find_runs

    runs, passed = find_runs(args.runs)
    for sentence in passed:
        print(sentence, file=sys.stderr)
    draw(args.what, runs, args.out)
    tell(
        args,
        {"figure": str(args.out), "what": args.what, "runs": len(runs)},
        f"figure: {printable(str(args.out), 4096)}",
    )
    return 0
