"""fedveca report: one HTML file about runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_open, add_run_folders, open_page, open_runs, print_result
from fedveca.errors import UserError, count_noun, printable

REPORT_NAME = "report.html"
GENERATOR = b'<meta name="generator" content="fedveca '  # near the start of every report
GENERATOR_WITHIN = 2**16


def add(command: Command) -> None:
    examples = (
        ("fedveca report runs --open", "all runs in runs/, in the browser"),
        ("fedveca report runs/A runs/B -o both.html", "two runs"),
    )
    text = "Write a self-contained HTML file about runs: a table, curves, and every round of the controller."
    report = command("report", _report, text, examples)
    add_run_folders(report)
    report.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write, or to replace (default: report.html inside the folder that is named, where an earlier "
        "report is replaced; of several folders, a new report.html here)",
    )
    add_open(report)


def _report(args: argparse.Namespace) -> int:
    out = args.out or choose_report(args.runs)
    runs = open_runs(args)
    from fedveca.views.report.report import write_report  # it loads PyTorch

    made = write_report(runs, out)
    size = f"{count_noun(made['runs'], 'run')}, {made['bytes'] / 1e6:.1f} MB"
    if args.open:
        open_page(out)
    print_result(args, made, f"report: {printable(str(out), 4096)} ({size})")
    return 0


def choose_report(folders: list[Path]) -> Path:
    """Where a report goes that nobody named a file for; UserError where it would replace something else.

    The report inside a folder is always of the runs of that folder, so that it may be made again. A report of several
    folders has no such place: it is written here, once.
    """
    if len(folders) > 1:
        if (out := Path(REPORT_NAME)).exists():
            raise UserError(f"{out} exists; name another file with -o FILE, or replace it with -o {out}")
        return out
    out = folders[0] / REPORT_NAME
    if out.is_file():
        with open(out, "rb") as file:
            if GENERATOR not in file.read(GENERATOR_WITHIN):
                said = f"{printable(str(out), 400)} exists and was not made by fedveca"
                raise UserError(f"{said}; name a file with -o FILE")
    return out
