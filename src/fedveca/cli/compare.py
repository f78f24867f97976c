"""fedveca compare: several methods over several seeds."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace

from fedveca.cli.arguments import (
    Command,
    add_open,
    add_run,
    check_counts,
    choose_folder,
    open_page,
    parse_experiment,
    print_result,
)
from fedveca.views.terminal.loading import show_loading


def add(command: Command) -> None:
    examples = (
        ("fedveca compare digits-case3 --seeds 3 --open", "the paper's methods, and a report in the browser"),
        ("fedveca compare --methods corrected,scaffold lr=0.1", "two methods, with a setting"),
        ("fedveca compare cnn-mnist-case3 --workers 3", "three seeds in parallel"),
    )
    compare = command("compare", _compare, "Compare methods over seeds, by the paper's fair protocol.", examples)
    add_run(compare)
    compare.add_argument("--seeds", type=int, default=3, metavar="N", help="independent repetitions (default 3)")
    compare.add_argument(
        "--methods",
        default="",
        metavar="M,M",
        help="methods to compare, or all (default: those of the paper); where the first one chooses its own "
        "local steps, the others get at most as many",
    )
    compare.add_argument("--workers", type=int, default=1, metavar="N", help="seeds that run in parallel (default 1)")
    add_open(compare)


def _compare(args: argparse.Namespace) -> int:
    from fedveca.runs.catalog import known_methods
    from fedveca.runs.experiment import reject_custom

    name, experiment = parse_experiment(args.words)
    known = tuple(known_methods())
    named = known if args.methods == "all" else tuple(args.methods.split(",") if args.methods else ())
    methods = named or tuple(method for method, facts in known_methods().items() if facts["paper"])
    for method in methods:
        reject_custom({"method": method})
        replace(experiment, method=method)  # rejects what is not known
    with show_loading(args.quiet or args.json):  # what is wrong with the settings is said before
        check_counts(args)
        from fedveca.runs.compare import compare, list_fitting, make_table
        from fedveca.views.comparison import compare_curves, list_gaps, list_targets
        from fedveca.views.figures.curves import draw_curves
        from fedveca.views.report.report import write_report
        from fedveca.views.series import group_curves
        from fedveca.views.terminal.comparison import make_method_table
        from fedveca.views.terminal.lines import name_device
        from fedveca.views.terminal.screen import Screen
    if args.methods == "all":
        methods = list_fitting(experiment, methods)
    out = choose_folder(args.out, f"{name}-compare")
    with Screen(args.quiet or args.json, name_device(args.device)) as screen:
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
        if not named and (left_out := [method for method in known if method not in methods]):
            screen.print(f"not shown: {', '.join(left_out)} (add with --methods all)")
        elif args.methods == "all" and len(methods) < len(known):
            unfit = ", ".join(method for method in known if method not in methods)
            screen.print(f"not shown: {unfit} (not possible with these settings)")
        for label, file in (("report", "report.html"), ("figure", "curves.svg"), ("table", "table.json")):
            screen.print_path(label, out / file)
        screen.suggest(f"fedveca board {shlex.quote(str(out))}")
        for run in runs:
            screen.report_divergence(run)
    if args.open:
        open_page(out / "report.html")
    comparison = compare_curves(group_curves(runs))
    result = {
        "folder": str(out),
        "report": str(out / "report.html"),
        "table": make_table(runs),
        "differences": list_gaps(comparison),
        "targets": list_targets(comparison),
    }
    print_result(args, result)
    return int(any(run.diverged for run in runs))
