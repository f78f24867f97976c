"""reproduce: leaves for cli/study.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveca.cli.arguments import Command, add_output, check_counts, parse_folder, print_result


def add(command: Command) -> None:
    again = command("reproduce", _reproduce, "Make the paper's tables and figures next to the paper's own numbers.")
    again.add_argument(
        "what",
        nargs="?",
        default="all",
        metavar="WHAT",
        help="table1, curves, premise, cases, instant, alpha, clients or all (the default)",
    )
    again.add_argument("--seeds", type=int, default=10, metavar="N", help="independent repetitions (default 10)")
    again.add_argument(
        "--out",
        type=parse_folder,
        default=Path("reproduction"),
        metavar="DIR",
        help="folder of runs and results; what is finished there is not repeated (default reproduction)",
    )
    again.add_argument("--tasks", default="", metavar="T,T", help="some of svm-mnist,cnn-mnist,cnn-cifar10")
    again.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    again.add_argument("--workers", type=int, default=1, metavar="N", help="seeds side by side (default 1)")
    again.add_argument("--data-dir", default="", metavar="DIR", help="folder that holds the data sets")
    add_output(again)


def _reproduce(args: argparse.Namespace) -> int:
    from fedveca.runs.folder import require_free
    from fedveca.runs.reproduce import TASKS, reproduce, studies
    from fedveca.runs.run import resolve_device
    from fedveca.views.terminal.screen import Screen

    check_counts(args)
    tasks = tuple(args.tasks.split(",")) if args.tasks else TASKS
    wanted = studies(args.what, tasks)
    resolve_device(args.device)
    require_free(args.out)
    with Screen(args.quiet or args.json) as screen:
        runs = reproduce(
            args.what,
            args.seeds,
            args.out,
            tasks=tasks,
            device=args.device,
            workers=args.workers,
            data_dir=args.data_dir,
            observers=[screen],
        )
        stopped = [run for mine in runs.values() for run in mine if "stopped" in run.summary]
        for run in stopped:
            screen.report_divergence(run)
        if stopped:
            print_result(args, {"folder": str(args.out), "stopped": [str(run.folder) for run in stopped]})
            return 1
        from fedveca.views.paper import write
        from fedveca.views.report import report

        report.write_report([run for mine in runs.values() for run in mine], args.out / "report.html")
        made = []
        only = f" --tasks {args.tasks}" if args.tasks else ""
        for what, of in wanted.items():
            command = f"fedveca reproduce {what} --seeds {args.seeds}{only}"
            made.append(write(what, of, runs, args.out / "results", command))
            screen.paper(made[-1])
        screen.print(f"report: {args.out / 'report.html'}   results: {args.out / 'results'}   runs: {args.out}")
    print_result(args, {"folder": str(args.out), "report": str(args.out / "report.html"), "results": made})
    return 0
