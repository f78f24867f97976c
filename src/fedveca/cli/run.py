"""fedveca run: one experiment, from the start or resumed."""

from __future__ import annotations

import argparse
from typing import Any

from fedveca.cli.arguments import (
    Command,
    add_run,
    choose_folder,
    list_named_settings,
    parse_experiment,
    parse_folder,
    print_result,
)
from fedveca.cli.monitor import add_monitor, parse_monitor, watch_run
from fedveca.errors import UserError
from fedveca.views.terminal.loading import show_loading


def add(command: Command) -> None:
    examples = (
        ("fedveca run", "the preset digits-case3: seconds, no download"),
        ("fedveca run digits-case3 method=fedavg rounds=20", "a preset and settings of your own"),
        ("fedveca run --resume runs/NAME rounds=200", "more rounds of a run"),
    )
    run = command("run", _run, "Run one experiment.", examples)
    add_run(run)
    add_monitor(run)
    run.add_argument(
        "--resume", type=parse_folder, metavar="DIR", help="resume the run in DIR; rounds=N for more rounds"
    )


def _run(args: argparse.Namespace) -> int:
    monitor = parse_monitor(args)
    quiet = args.quiet or args.json or args.log == "json"
    if args.resume:
        settings = _parse_resumed(args)
    else:
        name, experiment = parse_experiment(args.words)
    with show_loading(quiet):  # what is wrong with the settings is said before
        from fedveca.runs.experiment import name_folder
        from fedveca.runs.resources import discard_unbegun
        from fedveca.runs.run import resume, run
        from fedveca.runs.unused_settings import list_unused
        from fedveca.views.terminal.screen import Screen
    with watch_run(monitor) as watching, Screen(quiet) as screen:
        observers = [screen, *watching]
        if args.resume:
            done = resume(args.resume, **settings, device=args.device, observers=observers)
        else:
            for sentence in list_unused(experiment, list_named_settings(args.words), [experiment.method]):
                screen.warn(sentence)
            out = choose_folder(args.out, f"{name}-{name_folder(experiment.method)}")
            with discard_unbegun(out):
                done = run(experiment, out, device=args.device, observers=observers)
        screen.summarize(done)
    print_result(args, {"folder": str(done.folder), "summary": done.summary})
    return int(done.diverged)


def _parse_resumed(args: argparse.Namespace) -> dict[str, Any]:
    """The settings with which a run is resumed; UserError where they or the run cannot be."""
    from dataclasses import replace

    from fedveca.runs.experiment import parse_settings
    from fedveca.runs.folder import Run

    settings = parse_settings(args.words)
    if args.out is not None or set(settings) - {"rounds", "data_dir"}:
        raise UserError("--resume takes the run as it is; only rounds=N and data_dir=DIR may be given with it")
    replace(Run.open(args.resume).experiment, **settings)  # rejects what is out of range
    return settings
