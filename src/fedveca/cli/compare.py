"""fedveca compare: several methods over several seeds."""

from __future__ import annotations

import argparse

from fedveca.cli.arguments import Command, add_run, check_counts, choose_folder, parse_experiment
from fedveca.cli.comparing import (
    add_methods,
    check_positive,
    choose_methods,
    count_workers,
    end_comparison,
    print_comparison,
    print_sweep,
    start_workers_early,
)
from fedveca.errors import UserError
from fedveca.views.terminal.loading import show_loading


def add(command: Command) -> None:
    examples = (
        ("fedveca compare digits-case3 --seeds 3 --open", "the paper's methods, and a report in the browser"),
        ("fedveca compare --methods corrected,scaffold lr=0.1", "two methods, with a setting"),
        ("fedveca compare cnn-mnist-case3 --workers 3", "three runs at a time"),
        ("fedveca compare --fair rows --tune lr,server_lr", "equal gradient rows, each method with its best rates"),
    )
    compare = command("compare", _compare, "Compare methods over seeds, with equal budgets.", examples)
    add_run(compare)
    add_methods(compare, what="compare", some=", or all")
    compare.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs side by side (default on the CPU: one for each core, at most 8, for svm, logistic and mlp and with "
        "--tune; else 1)",
    )
    compare.add_argument(
        "--tune",
        default="",
        metavar="KEY,KEY",
        help="choose these settings for each method first, on other seeds: lr (a tenth to ten times), server_lr (0.3 "
        "to 3), or values such as lr=0.01,0.1; by validation rows where val is above 0, else by the training loss",
    )
    compare.add_argument("--tune-seeds", type=int, metavar="N", help="seeds that choose, with --tune (default 2)")


def _compare(args: argparse.Namespace) -> int:
    from fedveca.runs.catalog import known_methods
    from fedveca.runs.result_folders import require_comparison, require_sweep
    from fedveca.runs.search import check_space, make_grid, parse_space

    name, experiment = parse_experiment(args.words)
    methods = choose_methods(args, experiment)
    grid = make_grid(args.tune, experiment) if args.tune else {}
    if grid:
        check_space(experiment, parse_space(grid))
    elif args.tune_seeds is not None:
        raise UserError(f"--tune-seeds {args.tune_seeds} needs --tune, such as --tune lr")
    check_positive(tune_seeds=args.tune_seeds)
    check_counts(args)
    out = choose_folder(args.out, f"{name}-compare")
    (require_sweep if grid else require_comparison)(out)
    start_workers_early(args, experiment)
    with show_loading(args.quiet or args.json):  # what is wrong with the settings is said before
        from fedveca.runs.compare import compare, list_fitting
        from fedveca.runs.sweep import sweep
        from fedveca.views.figures.curves import draw_curves
        from fedveca.views.terminal.lines import name_device
        from fedveca.views.terminal.screen import Screen
    known = tuple(known_methods())
    if args.methods == "all":
        methods = list_fitting(experiment, methods)
    left_out = [method for method in known if method not in methods] if args.methods in (None, "all") else []
    why = "(add with --methods all)" if args.methods is None else "(not possible with these settings)"
    files = {"report": "report.html", "figure": "curves.svg", "table": "table.json"}
    title, more = name, {}
    with Screen(args.quiet or args.json, name_device(args.device)) as screen:
        if grid:
            done = sweep(
                experiment,
                grid,
                args.seeds,
                out,
                methods=methods,
                tuning_seeds=args.tune_seeds or 2,
                device=args.device,
                workers=count_workers(args, experiment),
                observers=[screen],
                fair=args.fair,
                choose_by="validation" if experiment.val else "training",
            )
            runs, more = done.runs, {"settings": done.settings, "sweep": done.content}
            files |= {"table": "reported/table.json", "tuning": "sweep.json"}
            title = f"{name}: each method with its chosen settings"
            print_sweep(screen, done, name)
        else:
            runs = compare(
                experiment,
                args.seeds,
                out,
                methods=methods,
                device=args.device,
                workers=count_workers(args, experiment, tunes=False),
                observers=[screen],
                fair=args.fair,
            )
        for suffix in ("svg", "png"):
            draw_curves(runs, out / f"curves.{suffix}", f"{name}: {args.seeds} seeds, mean and one standard deviation")
        print_comparison(screen, runs, out, title, files, left_out, why)
    return end_comparison(args, runs, out, more)
