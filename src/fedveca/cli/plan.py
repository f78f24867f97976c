"""fedveca plan: what an experiment will take on devices."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_experiment, add_output, parse_experiment, print_result
from fedveca.errors import UserError
from fedveca.views.terminal.loading import show_loading


def add(command: Command) -> None:
    examples = (
        ("fedveca plan digits-case3 --devices phones", "seconds, bytes, joules and memory on a population"),
        ("fedveca plan clients=3 --devices devices.toml --target 0.85", "until the test accuracy is 85 %"),
        ("fedveca plan clients=3 --devices devices.toml --past runs/A runs/B", "and how right it was before"),
    )
    text = "Say what an experiment will take on devices, before it starts."
    sub = command("plan", _plan, text, examples)
    add_experiment(sub)
    sub.add_argument(
        "--devices",
        default="",
        metavar="FILE",
        help="profiles of the devices, as `fedveca devices` writes them, or the name of a population such as phones",
    )
    sub.add_argument(
        "--target", type=float, default=0.0, metavar="VALUE", help="test metric at which the run ends, such as 0.85"
    )
    sub.add_argument(
        "--past",
        nargs="+",
        type=Path,
        default=[],
        metavar="RUN",
        help="run folders over these devices: what would have been said before, compared with what they took",
    )
    add_output(sub)


def _plan(args: argparse.Namespace) -> int:
    from fedveca.runs.clock_settings import read_devices
    from fedveca.runs.folder import Run

    words = [word for word in args.words if not (args.devices and word.startswith("devices="))]
    words += [f"devices={args.devices}"] if args.devices else []
    words += [f"target={args.target}"] if args.target else []
    _, experiment = parse_experiment(words)
    if not (devices := experiment.devices):
        raise UserError("a plan needs devices: --devices FILE, as `fedveca devices` writes it, or --devices phones")
    read_devices(devices)
    past = [Run.open(folder) for folder in args.past]
    with show_loading(args.quiet or args.json):
        from fedveca.runs.plan import make_plan
        from fedveca.views.terminal.console import make_console
        from fedveca.views.terminal.twin import list_plan, make_past_table, make_plan_table
    plan = make_plan(experiment, devices, past=past)
    if not args.json and not args.quiet:
        console = make_console()
        console.print(make_plan_table(plan, experiment))
        if plan.past:
            console.print(make_past_table(plan.past))
    print_result(args, list_plan(plan, devices))
    return 0
