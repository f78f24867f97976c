"""fedveca run: one experiment, from the start or resumed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedveca.cli.arguments import Command, add_run, choose_folder, parse_experiment, parse_folder, print_result
from fedveca.errors import UserError
from fedveca.views.terminal.loading import show_loading

if TYPE_CHECKING:
    from fedveca.runs.folder import Run
    from fedveca.views.terminal.screen import Screen


def add(command: Command) -> None:
    run = command("run", _run, "Run one experiment (default: the preset digits-case3).")
    add_run(run)
    run.add_argument(
        "--resume", type=parse_folder, metavar="DIR", help="resume the run in DIR; rounds=N for more rounds"
    )


def _run(args: argparse.Namespace) -> int:
    with show_loading(args.quiet or args.json):
        from fedveca.runs.resources import discard_unbegun
        from fedveca.runs.run import run
        from fedveca.views.terminal.screen import Screen

    with Screen(args.quiet or args.json) as screen:
        if args.resume:
            done = _resume(args, screen)
        else:
            name, experiment = parse_experiment(args.words)
            out = choose_folder(args.out, f"{name}-{experiment.method}")
            with discard_unbegun(out):
                done = run(experiment, out, device=args.device, observers=[screen])
        screen.summarize(done)
    print_result(args, {"folder": str(done.folder), "summary": done.summary})
    return int(done.diverged)


def _resume(args: argparse.Namespace, screen: Screen) -> Run:
    from dataclasses import replace

    from fedveca.runs.experiment import parse_settings
    from fedveca.runs.folder import Run
    from fedveca.runs.run import resume

    settings = parse_settings(args.words)
    if args.out is not None or set(settings) - {"rounds", "data_dir"}:
        raise UserError("--resume takes the run as it is; only rounds=N and data_dir=DIR may be given with it")
    replace(Run.open(args.resume).experiment, **settings)  # rejects what is out of range
    return resume(args.resume, **settings, device=args.device, observers=[screen])
