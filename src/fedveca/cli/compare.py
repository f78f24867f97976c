"""fedveca compare: several methods over several seeds."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_run, check_counts, choose_folder, parse_experiment, print_result


def add(command: Command) -> None:
    compare = command("compare", _compare, "Compare methods over seeds, by the paper's fair protocol.")
    add_run(compare)
    compare.add_argument("--seeds", type=int, default=3, metavar="N", help="independent repetitions (default 3)")
    compare.add_argument(
        "--methods",
        default="",
        metavar="M,M",
        help="methods to compare (default: those of the paper); where the first one chooses its own local steps, "
        "the others get the same total",
    )
    compare.add_argument("--workers", type=int, default=1, metavar="N", help="seeds that run in parallel (default 1)")


def _compare(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fedveca.algorithms.registry import paper_methods
    from fedveca.runs.compare import compare, make_table
    from fedveca.runs.experiment import reject_custom
    from fedveca.views.figures.curves import draw_curves
    from fedveca.views.report.report import write_report
    from fedveca.views.terminal.comparison import make_method_table
    from fedveca.views.terminal.screen import Screen

    check_counts(args)
    name, experiment = parse_experiment(args.words)
    methods = tuple(args.methods.split(",")) if args.methods else paper_methods()
    for method in methods:
        reject_custom({"method": method})
        replace(experiment, method=method)  # rejects what is not known
    out = choose_folder(args.out, f"{name}-compare")
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
            draw_curves(runs, out / f"curves.{suffix}", f"{name}: {args.seeds} seeds, mean and one standard deviation")
        write_report(runs, out / "report.html")
        screen.print(make_method_table(runs, name, screen.out.width))
        screen.print(f"report: {out / 'report.html'}   figure: {out / 'curves.svg'}   table: {out / 'table.json'}")
        for run in runs:
            screen.report_divergence(run)
    print_result(args, {"folder": str(out), "report": str(out / "report.html"), "table": make_table(runs)})
    return int(any(run.diverged for run in runs))
