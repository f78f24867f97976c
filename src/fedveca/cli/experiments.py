"""run, compare."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, check_counts, experiment_of, folder, out_of, takes_run, tell
from fedveca.errors import UserError


def add(command: Command) -> None:
    run = command("run", _run, "Run one experiment (preset digits-case3 unless named).")
    takes_run(run)
    run.add_argument("--resume", type=folder, metavar="DIR", help="go on with the run in DIR; rounds=N for more rounds")
    compare = command("compare", _compare, "Run the paper's fair protocol over all methods.")
    takes_run(compare)
    compare.add_argument("--seeds", type=int, default=3, metavar="N", help="independent repetitions (default 3)")
    compare.add_argument(
        "--methods", default="", metavar="M,M", help="which; the first, if it chooses its steps, sets the others' total"
    )
    compare.add_argument("--workers", type=int, default=1, metavar="N", help="seeds run side by side (default 1)")


def _run(args: argparse.Namespace) -> int:
    from fedveca.runs.resources import discard_unbegun
    from fedveca.runs.run import run
    from fedveca.views.terminal.screen import Screen

    if args.resume:
        return _resume(args)
    name, experiment = experiment_of(args.words)
    out = out_of(args.out, f"{name}-{experiment.method}")
    with Screen(args.quiet or args.json) as screen, discard_unbegun(out):
        done = run(experiment, out, device=args.device, observers=[screen])
        screen.summary(done)
    tell(args, {"folder": str(done.folder), "summary": done.summary})
    return 1 if "stopped" in done.summary else 0


def _resume(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fedveca.runs.experiment import parse_settings
    from fedveca.runs.folder import Run
    from fedveca.runs.run import resume
    from fedveca.views.terminal.screen import Screen

    settings = parse_settings(args.words)
    if args.out is not None or set(settings) - {"rounds", "data_dir"}:
        raise UserError("--resume takes the run as it is; only rounds=N and data_dir=DIR may be given with it")
    replace(Run.open(args.resume).experiment, **settings)  # rejects what is out of range
    with Screen(args.quiet or args.json) as screen:
        done = resume(args.resume, **settings, device=args.device, observers=[screen])
        screen.summary(done)
    tell(args, {"folder": str(done.folder), "summary": done.summary})
    return 1 if "stopped" in done.summary else 0


def _compare(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fedveca.algorithms.registry import paper_methods
    from fedveca.runs.compare import compare, make_table
    from fedveca.runs.experiment import reject_custom
    from fedveca.views.figures.curves import curves
    from fedveca.views.report.report import write
    from fedveca.views.terminal.screen import Screen

    check_counts(args)
    name, experiment = experiment_of(args.words)
    methods = tuple(args.methods.split(",")) if args.methods else paper_methods()
    for method in methods:
        reject_custom({"method": method})
        replace(experiment, method=method)  # refuses what is not known
    out = out_of(args.out, f"{name}-compare")
    with Screen(args.quiet or args.json) as screen:
        runs = compare(
            experiment,
            args.seeds,
            out,
            methods=methods,
            device=args.device,
            workers=args.workers,
            observers=[screen],
        )
        for suffix in ("svg", "png"):
            curves(runs, out / f"curves.{suffix}", f"{name}: {args.seeds} seeds, mean and one standard deviation")
        write(runs, out / "report.html")
        screen.table(make_table(runs), name)
        screen.say(f"report: {out / 'report.html'}   figure: {out / 'curves.svg'}   table: {out / 'table.json'}")
        for done in runs:
            screen.stopped(done)
    tell(args, {"folder": str(out), "report": str(out / "report.html"), "table": make_table(runs)})
    return 1 if any("stopped" in done.summary for done in runs) else 0
