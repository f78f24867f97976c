"""runs, show, diff, rm: what lies in run folders."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.cli.arguments import Command, add_output, print_result
from fedveca.errors import UserError, count_noun, find_near, printable

if TYPE_CHECKING:
    from fedveca.views.board.index import Row, RunIndex

HOME = Path("runs")  # where commands write runs that nobody named a folder for
NEWEST = "last"
RUN_HELP = "a run folder, a part of a run's name in runs/, or `last` for the newest one"
SORTS = ("age", "name", "score", "rounds", "state", "method")
MOST_NAMED = 5  # runs in a sentence


def add(command: Command) -> None:
    examples = (
        ("fedveca runs", "the runs in runs/, the newest first"),
        ("fedveca runs results --sort score", "another folder, the best first"),
        ("fedveca runs --json | jq '.runs[].id'", "for programs"),
    )
    runs = command("runs", _runs, "List runs: method, data, rounds, state, score and age.", examples)
    runs.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=HOME,
        metavar="FOLDER",
        help="folder that holds runs, down to 12 levels (default runs)",
    )
    runs.add_argument(
        "--sort",
        default="age",
        choices=SORTS,
        metavar="BY",
        help=f"{', '.join(SORTS[:-1])} or {SORTS[-1]} (default age: the newest first)",
    )
    add_output(runs)

    shown = (("fedveca show last", "the newest run in runs/"), ("fedveca show runs/NAME --all", "every setting"))
    show = command("show", _show, "Show a run: settings, result, partition, last rounds, how to resume.", shown)
    show.add_argument("run", metavar="RUN", help=RUN_HELP)
    show.add_argument("--all", action="store_true", help="show every setting")
    add_output(show)

    text = "Show which settings of two runs differ, and their results."
    diff = command("diff", _diff, text, (("fedveca diff runs/A runs/B", "what B changed"),))
    for name in ("a", "b"):
        diff.add_argument(name, metavar=name.upper(), help=RUN_HELP)
    add_output(diff)

    text = "Remove run folders, after asking; never one that is running."
    rm = command("rm", _rm, text, (("fedveca rm runs/A runs/B", "asks first"), ("fedveca rm runs/A --yes", "does not")))
    rm.add_argument("run", nargs="+", type=Path, metavar="RUN", help="a run folder, or a run's name in runs/")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_output(rm)


def _runs(args: argparse.Namespace) -> int:
    from fedveca.views.board.index import RunIndex
    from fedveca.views.terminal.console import make_console

    if (args.folder.exists() and not args.folder.is_dir()) or (not args.folder.exists() and args.folder != HOME):
        raise UserError(f"{printable(str(args.folder), 400)} is not a folder; name the one that holds runs")
    rows = _sort_rows(RunIndex(args.folder).list_runs(), args.sort)
    if not args.quiet and not args.json:
        if rows:
            from fedveca.views.terminal.runs import show_run_list

            show_run_list(make_console(full=True), rows)
        else:
            print(f"no runs in {args.folder}; `fedveca run` makes one")
    print_result(args, {"folder": str(args.folder), "runs": [asdict(row) for row in rows]})
    return 0


def _sort_rows(rows: list[Row], by: str) -> list[Row]:
    """Rows in the order that was asked for; those without a score come last, and lower is better for a loss."""
    keys: dict[str, Callable[[Row], tuple[object, ...]]] = {
        "age": lambda row: (-row.began, row.id),
        "name": lambda row: (row.id,),
        "score": lambda row: (row.score is None, row.metric, _rank(row), row.id),
        "rounds": lambda row: (-row.rounds, row.id),
        "state": lambda row: (row.state, -row.began, row.id),
        "method": lambda row: (str(row.method), -row.began, row.id),
    }
    return sorted(rows, key=keys[by])


def _rank(row: Row) -> float:
    return (row.score or 0.0) * (-1 if row.better == "higher" else 1)


def _show(args: argparse.Namespace) -> int:
    from fedveca.runs.folder import Run
    from fedveca.runs.interrupt import how_to_resume
    from fedveca.runs.theory import count_conditions
    from fedveca.views.board.index import RunIndex
    from fedveca.views.series import read_partition
    from fedveca.views.terminal.console import make_console
    from fedveca.views.terminal.runs import show_run

    folder = find_run(args.run)
    run, row = Run.open(folder), _find_row(RunIndex(folder))
    if not args.quiet and not args.json:
        show_run(make_console(full=True), run, row, args.all)
    result = {
        "folder": str(folder),
        "state": row.state,
        "settings": asdict(run.experiment),
        "summary": run.summary,
        "rounds": len(run.rounds),
        "conditions": {
            name: {"met": met, "rounds": rounds} for name, (_, met, rounds) in count_conditions(run.rounds).items()
        },
        "partition": read_partition(run, clients=200),
        "resume": how_to_resume(folder),
    }
    print_result(args, result)
    return 0


def _find_row(index: RunIndex) -> Row:
    return index.list_runs()[0]


def _diff(args: argparse.Namespace) -> int:
    from fedveca.runs.folder import Run
    from fedveca.views.terminal.console import make_console
    from fedveca.views.terminal.runs import list_differences, list_results, show_difference

    first, second = (Run.open(find_run(word)) for word in (args.a, args.b))
    if not args.quiet and not args.json:
        show_difference(make_console(full=True), first, second)
    folders = [str(run.folder) for run in (first, second)]
    result = {"runs": folders, "settings": list_differences(first, second), "results": list_results(first, second)}
    print_result(args, result)
    return 0


def find_run(word: str) -> Path:
    """The run folder that a word names; UserError where it is none, or may be one of several."""
    folder = Path(word)
    if word and folder.is_dir():
        if not (folder / "experiment.toml").is_file():
            raise UserError(f"{printable(word, 400)} is not a run folder: experiment.toml is missing")
        return folder
    from fedveca.views.board.index import RunIndex

    names = [row.id for row in RunIndex(HOME).list_runs()]  # the newest first
    found = names[:1] if word == NEWEST else [word] if word in names else [name for name in names if word in name]
    if word and len(found) == 1:
        return HOME / found[0]
    if word and found:
        some = ", ".join(printable(name) for name in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise UserError(f"{printable(word)} is part of several runs' names: {some}{more}; name one of them")
    hint = f" (did you mean {printable(near)}?)" if (near := find_near(word, names)) else ""
    raise UserError(f"{printable(word, 400) or repr(word)} is not a run{hint}; `fedveca runs` lists those in {HOME}")


def _rm(args: argparse.Namespace) -> int:
    folders = list(dict.fromkeys(_check_removable(path) for path in args.run))
    paths = [path for folder in folders for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    size = sum(path.lstat().st_size for path in paths)
    said = f"{count_noun(len(folders), 'run')} ({count_noun(len(paths), 'file')}, {size / 1e6:.1f} MB)"
    if not args.yes:
        if not sys.stdin.isatty():
            raise UserError(f"rm asks before it removes {said}, and there is no terminal to ask on; --yes answers it")
        for folder in folders:
            print(printable(str(folder), 400), file=sys.stderr)
        print(f"Remove {said}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed", file=sys.stderr)
            return 1
    removed: list[str] = []
    for folder in folders:
        _remove(folder)
        removed.append(str(folder))
    print_result(args, {"removed": removed}, f"removed {said}")
    return 0


def _check_removable(path: Path) -> Path:
    """The folder; UserError where it is not a run's own folder, is reached through a link, or is in use."""
    from fedveca.runs.lock import LOCK_FILE, InUse
    from fedveca.views.board.files import is_locked, stamp_file

    if not os.path.lexists(path) and (HOME / path).is_dir():
        path = HOME / path  # a name as `fedveca runs` lists it; never a part of one
    named = printable(str(path), 400)
    if path.is_symlink():
        raise UserError(f"{named} is a link; name the run folder itself")
    if not path.is_dir():
        raise UserError(f"{named} is not a folder; name run folders")
    missing = [name for name in ("experiment.toml", "rounds.jsonl") if not stamp_file(path / name)]
    if missing:
        raise UserError(f"{named} is not a run folder: {missing[0]} is missing, so it is not removed")
    if inner := next(path.rglob("*/experiment.toml"), None):
        raise UserError(f"{named} holds another run, {printable(inner.parent.name)}, so it is not removed")
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(f"{named} is the working folder, so it is not removed; go to another one first")
    if is_locked(path / LOCK_FILE):
        raise InUse(f"{named} is running; stop it first")
    return path


def _remove(folder: Path) -> None:
    """Removes it while this process has its lock, so that no run can be resumed in it meanwhile."""
    from fedveca.runs.lock import lock_folder

    if not os.access(folder.parent, os.W_OK):
        raise UserError(f"{printable(str(folder), 400)} cannot be removed: no permission in {folder.parent}")
    with lock_folder(folder):
        if folder.is_symlink():
            raise UserError(f"{printable(str(folder), 400)} is a link; name the run folder itself")
        shutil.rmtree(folder)
