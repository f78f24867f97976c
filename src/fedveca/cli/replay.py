"""fedveca replay: a deployment's run once more, in the simulator."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fedveca.cli.arguments import Command, add_output, parse_folder, print_result
from fedveca.errors import printable
from fedveca.views.terminal.loading import show_loading

ROWS_VARIABLE = "FEDVECA_NODE_DATA"  # as fedveca.deploy.node_process has it, which loads PyTorch


def add(command: Command) -> None:
    examples = (
        ("fedveca replay runs/deployed", "its rounds again, and how well their times are predicted"),
        ("fedveca replay runs/deployed --data 'rows-{client}.npz'", "with copies of the nodes' own rows"),
    )
    text = "Run a deployment's run again in the simulator, at its recorded times."
    sub = command("replay", _replay, text, examples)
    sub.add_argument("run", type=Path, metavar="RUN", help="a run folder of a deployment")
    sub.add_argument("--out", type=parse_folder, metavar="DIR", help="folder to write the replay to (default: none)")
    sub.add_argument(
        "--data",
        default="",
        metavar="NAME",
        help=f"the rows that the nodes had, as {ROWS_VARIABLE} names them there (default: the experiment's data set)",
    )
    sub.add_argument(
        "--devices",
        default="",
        metavar="FILE",
        help="profiles that predict the times (default: fitted to the other half of the rounds)",
    )
    add_output(sub)


def _replay(args: argparse.Namespace) -> int:
    from fedveca.runs.clock_settings import read_devices
    from fedveca.runs.folder import Run

    former = Run.open(args.run)
    devices = read_devices(args.devices) if args.devices else None
    if args.data:
        os.environ[ROWS_VARIABLE] = args.data
    with show_loading(args.quiet or args.json):
        from fedveca.deploy.replay import replay
        from fedveca.views.terminal.console import make_console
        from fedveca.views.terminal.twin import describe_errors, make_time_table
    done = replay(former, args.out, devices=devices)
    result = {
        "run": str(args.run),
        "folder": str(args.out) if args.out else None,
        "same": done.is_same,
        "difference": done.difference,
        "changed_rounds": [k + 1 for k in done.changed_rounds],
        "rounds": [
            {"round": t.round + 1, "measured": t.measured, "predicted": t.predicted, "error": t.error}
            for t in done.times
        ],
    }
    if not args.json and not args.quiet:
        console = make_console()
        console.print(make_time_table(done.times, done.run.rounds))
        console.print(describe_errors(done.times, f"by {printable(args.devices)}" if devices else "from other rounds"))
    print_result(args, result, _describe(done.is_same, done.difference, done.changed_rounds))
    if args.out and not args.quiet and not args.json:
        print(f"run folder: {printable(str(args.out), 4096)}")
    return 0 if done.is_same else 1


def _describe(same: bool, difference: float, changed: list[int]) -> str:
    if same:
        return f"the same run: the same local steps, and weights that differ by at most {difference:.2g}"
    steps = f", and other local steps from round {changed[0] + 1} on" if changed else ""
    return (
        f"not the same run: its weights differ by up to {difference:.2g}{steps}; the rows may not be those of the nodes"
    )
