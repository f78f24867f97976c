"""study, and reproduce, which runs the studies of the paper."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from fedveca.cli.arguments import Command, add_device, add_output, check_counts, parse_folder, print_result
from fedveca.errors import UserError

ROOT = Path(__file__).parents[3]  # of the repository, where this is a clone


def add(command: Command) -> None:
    text = "Run the studies of a TOML file: methods over seeds, with a table and a report."
    study = command("study", _study, text, (("fedveca study mine.toml --seeds 5", "with five seeds of each"),))
    study.add_argument("file", metavar="FILE.toml", help="the studies: preset, settings, methods, seeds")
    study.add_argument("--seeds", type=int, metavar="N", help="seeds of each study (default: as the file says)")
    _takes_runs(study, None, "runs/ and the file's name")
    text = "Make the paper's tables and figures; needs a clone of the repository."
    again = command("reproduce", _reproduce, text, (("fedveca reproduce table1 --seeds 10", "the paper's Table I"),))
    again.add_argument(
        "what",
        nargs="?",
        default="all",
        metavar="WHAT",
        help="table1, curves, premise, cases, instant, alpha, clients or all (the default)",
    )
    again.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds of each study (default 10)")
    again.add_argument("--tasks", default="", metavar="T,T", help="some of svm-mnist,cnn-mnist,cnn-cifar10")
    _takes_runs(again, Path("reproduction"), "reproduction")


def _takes_runs(sub: argparse.ArgumentParser, out: Path | None, where: str) -> None:
    sub.add_argument(
        "--out",
        type=parse_folder,
        default=out,
        metavar="DIR",
        help=f"folder of runs and results; what is finished there is not repeated (default {where})",
    )
    add_device(sub)
    sub.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    sub.add_argument("--data-dir", default="", metavar="DIR", help="folder that holds the data sets")
    add_output(sub)


def _study(args: argparse.Namespace) -> int:
    from fedveca.runs.files import write_atomic
    from fedveca.runs.result_folders import require_studies

    check_counts(args)
    out = args.out or Path("runs") / Path(args.file).stem
    require_studies(out)
    from fedveca.runs.run import resolve_device  # it loads PyTorch
    from fedveca.runs.study import read_study, run_study, tabulate_study
    from fedveca.views.report.report import write_report
    from fedveca.views.terminal.screen import Screen
    from fedveca.views.terminal.study import study_table

    studies = read_study(args.file)
    resolve_device(args.device)
    with Screen(args.quiet or args.json) as screen:
        runs = run_study(
            studies,
            out,
            seeds=args.seeds,
            device=args.device,
            workers=args.workers,
            data_dir=args.data_dir,
            observers=[screen],
        )
        every = [run for mine in runs.values() for run in mine]
        for run in every:
            screen.report_divergence(run)
    content = [tabulate_study(study, runs[study.name]) for study in studies]
    write_atomic(out / "study.json", json.dumps({"studies": content}, indent=1, allow_nan=False).encode() + b"\n")
    write_report(every, out / "report.html")
    for table in content if not screen.quiet else ():
        screen.print(study_table(table))
    screen.print(f"report: {out / 'report.html'}   table: {out / 'study.json'}   runs: {out}")
    print_result(args, {"folder": str(out), "report": str(out / "report.html"), "studies": content})
    return 1 if any(run.diverged for run in every) else 0


def _reproduce(args: argparse.Namespace) -> int:
    check_counts(args)
    root = next((root for root in (ROOT, Path.cwd()) if (root / "studies" / "paper" / "__main__.py").is_file()), None)
    if root is None:
        raise UserError(f"reproduce needs a clone of the repository: {Path.cwd()} has no folder studies/paper")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    code: int = import_module("studies.paper.reproduce").main(args)
    return code
