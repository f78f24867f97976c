"""fedveca sweep: each method at its own best settings, then compared."""

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
    add_methods(sub, what="tune and compare")
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


def _sweep(args: argparse.Namespace) -> int:
    from fedveca.runs.result_folders import require_sweep
    from fedveca.runs.search import check_space, parse_space, split_sweep

    preset = args.words[:1] if args.words and "=" not in args.words[0] else []
    fixed, swept = split_sweep(args.words[len(preset) :])
    name, experiment = parse_experiment([*preset, *fixed])
    if not swept:
        raise UserError("a sweep needs a setting with several values, such as lr=0.01,0.1 or lr=0.001..0.1")
    check_space(experiment, parse_space(swept))
    methods = choose_methods(args, experiment)
    check_positive(tuning_seeds=args.tuning_seeds, trials=args.trials)
    check_counts(args)
    out = choose_folder(args.out, f"{name}-sweep")
    require_sweep(out)
    start_workers_early(args, experiment)
    with show_loading(args.quiet or args.json):  # what is wrong with the settings is said before
        from fedveca.runs.sweep import sweep
        from fedveca.views.terminal.lines import name_device
        from fedveca.views.terminal.screen import Screen
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
            workers=count_workers(args, experiment),
            observers=[screen],
            fair=args.fair,
        )
        print_sweep(screen, done, name)
        files = {"report": "report.html", "sweep": "sweep.json", "table": "reported/table.json"}
        print_comparison(screen, done.runs, out, f"{name}: each method with its chosen settings", files)
    return end_comparison(args, done.runs, out, {"settings": done.settings, "sweep": done.content})
