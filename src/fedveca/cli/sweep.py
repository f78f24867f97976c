"""fedveca sweep: each method at its own best settings, then compared."""

from __future__ import annotations

import argparse
import os
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
from fedveca.errors import UserError
from fedveca.views.terminal.loading import show_loading

MOST_PROCESSES = 8  # that are started where nobody has said how many


def add(command: Command) -> None:
    examples = (
        ("fedveca sweep digits-case3 lr=0.03,0.1,0.3 --methods fedveca,fedavg,scaffold", "three rates, three methods"),
        ("fedveca sweep lr=0.03,0.1 alpha=0.9,0.95 --seeds 5 --out tuned", "alpha is tried with FedVeca alone"),
        ("fedveca sweep lr=0.01..1 --trials 20", "a range, searched by Optuna"),
    )
    text = "Tune each method on validation rows of other seeds, then compare all at their best."
    sub = command("sweep", _sweep, text, examples)
    add_run(sub)
    sub.usage = "%(prog)s [PRESET] key=A,B [key=value ...]"
    words = next(action for action in sub._actions if action.dest == "words")
    words.help = f"{words.help}, and those to try: lr=0.01,0.1 or a range, lr=0.001..0.1"
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of the comparison (default 3)")
    sub.add_argument(
        "--methods",
        default="",
        metavar="M,M",
        help="methods to tune and compare (default: those of the paper); where the first one chooses its own local "
        "steps, the others get at most as many",
    )
    sub.add_argument(
        "--tuning-seeds",
        type=int,
        metavar="N",
        help="other seeds, which choose the settings (default: --seeds)",
    )
    sub.add_argument(
        "--trials",
        type=int,
        default=20,
        metavar="N",
        help="settings per method where one is a range (default 20)",
    )
    sub.add_argument(
        "--workers", type=int, metavar="N", help="runs side by side (default: one for each core, at most 8; on CUDA 1)"
    )
    add_open(sub)


def _sweep(args: argparse.Namespace) -> int:
    from fedveca.runs.catalog import known_methods
    from fedveca.runs.experiment import reject_custom
    from fedveca.runs.search import check_space, parse_space, split_sweep

    preset = args.words[:1] if args.words and "=" not in args.words[0] else []
    fixed, swept = split_sweep(args.words[len(preset) :])
    name, experiment = parse_experiment([*preset, *fixed])
    if not swept:
        raise UserError("a sweep needs a setting with several values, such as lr=0.01,0.1 or lr=0.001..0.1")
    space = parse_space(swept)
    check_space(experiment, space)
    methods = tuple(args.methods.split(",")) if args.methods else ()
    methods = methods or tuple(method for method, facts in known_methods().items() if facts["paper"])
    for method in methods:
        reject_custom({"method": method})
        replace(experiment, method=method)  # rejects what is not known
    for option, count in (("--tuning-seeds", args.tuning_seeds), ("--trials", args.trials)):
        if count is not None and count < 1:
            raise UserError(f"{option} {count} is out of range; allowed: >= 1")
    with show_loading(args.quiet or args.json):  # what is wrong with the settings is said before
        check_counts(args)
        from fedveca.runs.compare import make_table
        from fedveca.runs.run import resolve_device
        from fedveca.runs.sweep import sweep
        from fedveca.views.comparison import compare_curves, list_gaps, list_targets
        from fedveca.views.report.report import write_report
        from fedveca.views.series import group_curves
        from fedveca.views.terminal.comparison import make_method_table
        from fedveca.views.terminal.lines import name_device
        from fedveca.views.terminal.screen import Screen
        from fedveca.views.terminal.sweep import make_sweep_table
    out = choose_folder(args.out, f"{name}-sweep")
    workers = args.workers or (min(MOST_PROCESSES, _count_cores()) if resolve_device(args.device) == "cpu" else 1)
    with Screen(args.quiet or args.json, name_device(args.device)) as screen:
        done = sweep(
            experiment,
            swept,
            args.seeds,
            out,
            methods=methods,
            tuning_seeds=args.tuning_seeds,
            trials=args.trials,
            device=args.device,
            workers=workers,
            observers=[screen],
        )
        write_report(done.runs, out / "report.html")
        screen.print(make_sweep_table(done.content, name, screen.out.width))
        screen.print("")
        screen.print(make_method_table(done.runs, f"{name}: each method with its chosen settings", screen.out.width))
        for label, file in (("report", "report.html"), ("sweep", "sweep.json"), ("table", "reported/table.json")):
            screen.print_path(label, out / file)
        screen.suggest(f"fedveca board {shlex.quote(str(out))}")
        for run in done.runs:
            screen.report_divergence(run)
    if args.open:
        open_page(out / "report.html")
    comparison = compare_curves(group_curves(done.runs))
    result = {
        "folder": str(out),
        "report": str(out / "report.html"),
        "settings": done.settings,
        "sweep": done.content,
        "table": make_table(done.runs),
        "differences": list_gaps(comparison),
        "targets": list_targets(comparison),
    }
    print_result(args, result)
    return int(any(run.diverged for run in done.runs))


def _count_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
