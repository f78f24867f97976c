"""What `compare` and `sweep` share: which methods, how many seeds, what is equal, and the result."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.cli.arguments import add_open, open_page, print_result
from fedveca.errors import UserError

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.folder import Run
    from fedveca.runs.sweep import Sweep
    from fedveca.views.terminal.screen import Screen

MOST_PROCESSES = 8  # that are started where nobody has said how many


def add_methods(sub: argparse.ArgumentParser, *, what: str, some: str = "") -> None:
    """The methods of a comparison, its seeds, what they get as much of, and the report."""
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of the comparison (default 3)")
    sub.add_argument(
        "--methods",
        metavar="M,M",
        help=f"methods to {what}{some} (default: those of the paper); the first one sets the budget of the others",
    )
    sub.add_argument(
        "--fair",
        default="steps",
        choices=("steps", "rows", "bytes", "time"),
        metavar="BY",
        help="what the others get as much of as the first method: steps, where it chooses its own (default); gradient "
        "rows; bytes sent; or time, which does not repeat exactly",
    )
    add_open(sub)


def choose_methods(args: argparse.Namespace, experiment: Experiment) -> tuple[str, ...]:
    """The methods that were named, those of the paper, or all of them; UserError for none, or one that is not known."""
    from fedveca.runs.catalog import known_methods
    from fedveca.runs.experiment import reject_custom

    known = known_methods()
    if args.methods is None:
        return tuple(method for method, facts in known.items() if facts["paper"])
    if not args.methods:
        said = f"--methods {args.methods!r} names no method"
        raise UserError(f"{said}; name some, such as fedveca,fedavg, or leave --methods out for those of the paper")
    methods = tuple(known) if args.methods == "all" else tuple(args.methods.split(","))
    for method in methods:
        reject_custom({"method": method})
        replace(experiment, method=method)  # rejects what is not known
    return methods


def check_positive(**counts: int | None) -> None:
    """UserError where an option is a number below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"--{name.replace('_', '-')} {count} is out of range; allowed: >= 1")


def start_workers_early(args: argparse.Namespace, experiment: Experiment) -> None:
    """Has the process that workers come from load PyTorch while this one does, if there will be any."""
    from fedveca.runs.worker_server import start_server

    on_cpu = args.device == "cpu" or not Path("/dev/nvidiactl").exists()
    several = args.workers is None and _count_cores() > 1 and _gains_by_workers(args, experiment, tunes=False)
    if on_cpu and (several or (args.workers or 1) > 1) and "torch" not in sys.modules:
        start_server()


def count_workers(args: argparse.Namespace, experiment: Experiment, *, tunes: bool = True) -> int:
    """How many runs go on side by side: one per core where many are tried, or where a run keeps only one core busy.

    Where PyTorch may use fewer threads than there are cores, a comparison has as few workers.
    """
    import torch

    from fedveca.runs.run import resolve_device

    if args.workers or resolve_device(args.device) != "cpu" or not _gains_by_workers(args, experiment, tunes=tunes):
        return args.workers or 1
    return min(MOST_PROCESSES, _count_cores(), MOST_PROCESSES if tunes else torch.get_num_threads())


def _gains_by_workers(args: argparse.Namespace, experiment: Experiment, *, tunes: bool) -> bool:
    """Whether its runs are quicker in several processes; where seconds decide, a run has the machine to itself."""
    from fedveca.runs.worker_server import keeps_one_core_busy

    timed = args.fair == "time" or experiment.budget.startswith("seconds")
    return (tunes or keeps_one_core_busy(experiment)) and not timed


def print_sweep(screen: Screen, done: Sweep, name: str) -> None:
    """What was chosen for each method."""
    from fedveca.views.terminal.sweep import make_sweep_table

    screen.print(make_sweep_table(done.content, name, screen.out.width))
    screen.print("")


def print_comparison(
    screen: Screen,
    runs: Sequence[Run],
    out: Path,
    title: str,
    files: Mapping[str, str],
    left_out: list[str] | None = None,
    why: str = "",
) -> None:
    """The table of the methods, which ones are not in it and why, what was written, and what comes next."""
    from fedveca.views.report.report import write_report
    from fedveca.views.terminal.comparison import make_method_table

    write_report(runs, out / "report.html")
    screen.print(make_method_table(runs, title, screen.out.width))
    if left_out:
        screen.print_names("not shown", left_out, why)
    for label, file in files.items():
        screen.print_path(label, out / file)
    screen.suggest(f"fedveca board {shlex.quote(str(out))}")
    for run in runs:
        screen.report_divergence(run)


def end_comparison(
    args: argparse.Namespace, runs: Sequence[Run], out: Path, more: Mapping[str, object] | None = None
) -> int:
    """Opens the report, prints the result for machines, and says by the exit code whether a run diverged."""
    from fedveca.runs.compare import make_table
    from fedveca.views.comparison import compare_curves, list_gaps, list_targets, list_totals
    from fedveca.views.series import group_curves

    if args.open:
        open_page(out / "report.html")
    failed = int(any(run.diverged for run in runs))
    if not args.json:
        return failed
    comparison = compare_curves(group_curves(runs))
    result = {
        "folder": str(out),
        "report": str(out / "report.html"),
        **(more or {}),
        "fair": args.fair,
        "totals": list_totals(comparison),
        "table": make_table(list(runs)),
        "differences": list_gaps(comparison),
        "targets": list_targets(comparison),
    }
    print_result(args, result)
    return failed


def _count_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
