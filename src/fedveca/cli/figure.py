"""fedveca figure: runs drawn for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_run_folders, open_runs, print_result
from fedveca.errors import printable


def add(command: Command) -> None:
    examples = (
        ("fedveca figure runs/NAME -o curves.pdf", "test values over rounds, for LaTeX"),
        ("fedveca figure runs/NAME --against bytes", "the same over what was sent"),
        ("fedveca figure runs/NAME --what tau", "local steps of every client"),
    )
    figure = command("figure", _figure, "Draw runs for a paper, as SVG, PDF or PNG.", examples)
    add_run_folders(figure)
    out = Path("figure.svg")
    figure.add_argument(
        "-o",
        "--out",
        type=Path,
        default=out,
        metavar="FILE",
        help="file to write: .svg, .pdf or .png (default figure.svg)",
    )
    figure.add_argument(
        "--what",
        default="curves",
        choices=("curves", "tau", "instant", "partition", "clients"),
        metavar="WHAT",
        help="curves: test values over rounds (default); tau: local steps per client; instant: what FedVeca estimates; "
        "partition: rows of each label per client; clients: test values over clients and rounds",
    )
    figure.add_argument(
        "--against",
        default="rounds",
        choices=("rounds", "steps", "rows", "bytes", "seconds", "clock", "joules"),
        metavar="AXIS",
        help="of curves: rounds (default), steps, rows, bytes or seconds, and of devices clock or joules",
    )


def _figure(args: argparse.Namespace) -> int:
    runs = open_runs(args)
    from fedveca.views.figures.run import draw_figure  # it loads PyTorch

    draw_figure(args.what, runs, args.out, args.against)
    result = {"figure": str(args.out), "what": args.what, "against": args.against, "runs": len(runs)}
    print_result(args, result, f"figure: {printable(str(args.out), 4096)}")
    return 0
