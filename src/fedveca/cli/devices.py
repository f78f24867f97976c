"""fedveca devices: profiles of the devices that runs were on."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_output, print_result
from fedveca.errors import UserError, count_noun, printable
from fedveca.views.terminal.loading import show_loading


def add(command: Command) -> None:
    examples = (
        ("fedveca devices runs/deployed -o devices.toml", "the nodes of a deployment, as profiles"),
        ("fedveca run digits-case3 clients=3 devices=devices.toml", "simulate another experiment on them"),
    )
    text = "Fit profiles of devices to the recorded times of runs, for the setting devices."
    sub = command("devices", _devices, text, examples)
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, of a deployment over the devices")
    sub.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="file to write, or to replace (default devices.toml)"
    )
    add_output(sub)


def _devices(args: argparse.Namespace) -> int:
    out = args.out or Path("devices.toml")
    if out.suffix != ".toml":
        raise UserError(f"--out {printable(str(out))} is not a .toml file")
    from fedveca.runs.folder import Run
    from fedveca.runs.output_file import require_file, write_file

    require_file(out)
    runs = [Run.open(folder) for folder in args.runs]
    clients = {run.experiment.clients for run in runs}
    if len(clients) > 1:
        raise UserError(f"the runs have different numbers of clients ({', '.join(map(str, sorted(clients)))})")
    with show_loading(args.quiet or args.json):
        from fedveca.runs.device_fit import collect_samples, fit_devices, predict_own_rounds, write_devices
        from fedveca.views.terminal.console import make_console
        from fedveca.views.terminal.twin import describe_errors, make_device_table
    samples = [sample for run in runs for sample in collect_samples(run)]
    profiles = fit_devices(samples, clients.pop())
    rounds = count_noun(sum(len(run.rounds) for run in runs), "round")
    names = ", ".join(str(run.folder) for run in runs)
    write_file(out, write_devices(profiles, f"fitted by fedveca devices to {rounds} of {names}").encode())
    times = [
        time
        for run in runs
        if len(run.rounds) > 3 and run.experiment.schedule != "buffered"
        for time in predict_own_rounds(run)
    ]
    if not args.json and not args.quiet:
        console = make_console()
        console.print(make_device_table(profiles, samples))
        if times:
            console.print(describe_errors(times))
    errors = [time.error for time in times]
    made = {"devices": str(out), "clients": len(profiles), "answers": len(samples), "errors": errors}
    print_result(args, made, f"devices: {printable(str(out), 4096)}")
    return 0
