"""Which studies each table and figure of Section V is made from, and the command that makes them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedveca.cli.arguments import print_result
from fedveca.errors import UserError, quoted, suggest
from fedveca.runs.result_folders import require_studies
from fedveca.runs.run import resolve_device
from fedveca.runs.study import Study, read_study, run_study
from fedveca.views.report.report import write_report
from fedveca.views.terminal.screen import Screen
from studies.paper.reported import TASKS, task_of
from studies.paper.results import Content, write_results
from studies.paper.tables import make_claims, make_table1

FILES = {  # by result, the studies in this folder
    "table1": "table1.toml",
    "curves": "table1.toml",
    "premise": "table1.toml",
    "cases": "cases.toml",
    "instant": "instant.toml",
    "alpha": "alpha.toml",
    "clients": "clients.toml",
}


def read_studies(what: str = "all", tasks: Sequence[str] = TASKS) -> dict[str, tuple[Study, ...]]:
    """The studies of each result that `what` names, as far as `tasks` has them; UserError where that is none."""
    if what not in (*FILES, "all"):
        raise UserError(f"{quoted(what)} is not known{suggest(what, FILES)}; it is one of {', '.join((*FILES, 'all'))}")
    for task in tasks:
        if task not in TASKS:
            raise UserError(f"--tasks {quoted(task)} is not known; it names some of {','.join(TASKS)}")
    found = {}
    for name in FILES if what == "all" else (what,):
        of = read_study(Path(__file__).with_name(FILES[name]))
        if mine := tuple(study for study in of if task_of(study.name) in tasks):
            found[name] = mine
        elif what != "all":
            raise UserError(f"{what} has no runs of {','.join(tasks)}; its tasks are {task_of(of[0].name)}")
    return found


def main(args: argparse.Namespace) -> int:
    """`fedveca reproduce`: runs what is not finished yet, then writes results/ and report.html."""
    wanted = read_studies(args.what, args.tasks.split(",") if args.tasks else TASKS)
    resolve_device(args.device)
    require_studies(args.out)
    with Screen(args.quiet or args.json) as screen:
        runs = run_study(
            list({study.name: study for of in wanted.values() for study in of}.values()),
            args.out,
            seeds=args.seeds,
            device=args.device,
            workers=args.workers,
            data_dir=args.data_dir,
            observers=[screen],
        )
        every = [run for mine in runs.values() for run in mine]
        diverged = [run for run in every if run.diverged]
        for run in diverged:
            screen.report_divergence(run)
    if diverged:  # a table without them would not be the paper's
        print_result(args, {"folder": str(args.out), "stopped": [str(run.folder) for run in diverged]})
        return 1
    write_report(every, args.out / "report.html")
    only = f" --tasks {args.tasks}" if args.tasks else ""
    made = []
    for what, of in wanted.items():
        command = f"fedveca reproduce {what} --seeds {args.seeds}{only}"
        made.append(write_results(what, of, runs, args.out / "results", command))
        if not screen.quiet:
            _show(screen, made[-1])
    screen.print(f"report: {args.out / 'report.html'}   results: {args.out / 'results'}   runs: {args.out}")
    print_result(args, {"folder": str(args.out), "report": str(args.out / "report.html"), "results": made})
    return 0


def _show(screen: Screen, content: Content) -> None:
    """A result compared with the paper's: its table where it has one, and what the paper says of it."""
    if isinstance(content["results"], list):
        for task in content["results"]:
            screen.print(make_table1(task))
    screen.print(make_claims(content["what"], content["claims"]))
