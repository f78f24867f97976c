"""The command line: wires, computes nothing."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from fedveca.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 for a run that could not go on, 2 for bad input, 130 for Ctrl-C."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") or "words" not in args for word in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.words += rest  # settings may stand on both sides of an --option
    try:
        code: int = args.command(args)
        return code
    except (ValueError, OSError) as error:
        print(f"fedveca: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedveca: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedveca", description="Federated Vectorized Averaging: run, compare and deploy federated methods.",
        epilog="`fedveca list` shows every method, data set, model, partition, preset and setting.",
    )
    parser.add_argument("--version", action="version", version=f"fedveca {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    def takes_experiment(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("words", nargs="*", metavar="[PRESET] key=value ...", help="a preset, then settings")

    def takes_run(sub: argparse.ArgumentParser) -> None:
        takes_experiment(sub)
        sub.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: a new one under runs/)")
        sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
        sub.add_argument("--quiet", action="store_true", help="say only what went wrong")

    run = command("run", _run, "Run one experiment (preset digits-case3 unless named).")
    takes_run(run)
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in DIR; rounds=N for more rounds")
    compare = command("compare", _compare, "Run the paper's fair protocol over all methods.")
    takes_run(compare)
    compare.add_argument("--seeds", type=int, default=3, metavar="N", help="independent repetitions (default 3)")
    compare.add_argument("--workers", type=int, default=1, metavar="N", help="seeds run side by side (default 1)")
    again = command("reproduce", _reproduce, "Make the paper's tables and figures beside the paper's own numbers.")
    again.add_argument(
        "what", nargs="?", default="all", metavar="WHAT",
        help="table1, curves, premise, cases, instant, alpha, clients or all (the default)",
    )
    again.add_argument("--seeds", type=int, default=10, metavar="N", help="independent repetitions (default 10)")
    again.add_argument(
        "--out", type=Path, default=Path("reproduction"), metavar="DIR",
        help="folder of runs and results; what is finished there is not repeated (default reproduction)",
    )
    again.add_argument("--tasks", default="", metavar="T,T", help="some of svm-mnist,cnn-mnist,cnn-cifar10")
    again.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    again.add_argument("--workers", type=int, default=1, metavar="N", help="seeds side by side (default 1)")
    again.add_argument("--data-dir", default="", metavar="DIR", help="folder that holds the data sets")
    again.add_argument("--quiet", action="store_true", help="say only what went wrong")
    takes_experiment(command("partition", _partition, "Show how many rows of each label every client owns."))
    command("list", _list, "Show methods, data, models, partitions, presets and every setting.")
    data = command("data", _data, "Fetch a data set and check every byte of it.")
    data.add_argument("action", choices=("get",))
    data.add_argument("name", metavar="NAME")
    data.add_argument("--data-dir", default="", metavar="DIR", help="folder that may hold it already")
    return parser


def _experiment(words: list[str]) -> tuple[str, Any]:
    from fedveca.runs.experiment import Experiment, parse, preset

    named = words[0] if words and "=" not in words[0] else "digits-case3"
    settings = words[1:] if words and "=" not in words[0] else words
    return Path(named).stem, Experiment(**(preset(named) | parse(settings)))


def _out(given: Path | None, name: str) -> Path:
    """The named folder, or the first free one under runs/."""
    if given:
        return given
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    return next(p for n in range(1, 10_000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())


def _positive(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)} is out of range; allowed: >= 1")


def _run(args: argparse.Namespace) -> int:
    from fedveca.runs.run import run
    from fedveca.tasks.fetch import silent
    from fedveca.views.terminal import Screen

    if args.resume:
        return _resume(args)
    name, experiment = _experiment(args.words)
    out = _out(args.out, f"{name}-{experiment.method}")
    with Screen(args.quiet) as screen:
        say = silent if args.quiet else None
        done = run(experiment, out, device=args.device, watch=screen.run(experiment), say=say)
        screen.summary(done)
    return 1 if "stopped" in done.summary else 0


def _resume(args: argparse.Namespace) -> int:
    from fedveca.runs.experiment import parse
    from fedveca.runs.record import Run
    from fedveca.runs.run import resume
    from fedveca.views.terminal import Screen

    settings = parse(args.words)
    if args.out or set(settings) - {"rounds"}:
        raise ValueError("--resume takes the run as it is; only rounds=N may be given with it")
    experiment = Run.open(args.resume).experiment
    with Screen(args.quiet) as screen:
        watch = screen.run(experiment)
        done = resume(args.resume, rounds=settings.get("rounds", 0), device=args.device, watch=watch, tell=screen.warn)
        screen.summary(done)
    return 1 if "stopped" in done.summary else 0


def _compare(args: argparse.Namespace) -> int:
    from fedveca.runs.compare import compare, table
    from fedveca.views.figures import curves
    from fedveca.views.terminal import Screen

    _positive(args, "seeds", "workers")
    name, experiment = _experiment(args.words)
    out = _out(args.out, f"{name}-compare")
    with Screen(args.quiet) as screen:
        runs = compare(
            experiment, args.seeds, out, device=args.device, workers=args.workers, started=screen.run,
            ended=screen.ended if args.workers > 1 else None,
        )
        for suffix in ("svg", "png"):
            curves(runs, out / f"curves.{suffix}", f"{name}: {args.seeds} seeds, mean and one standard deviation")
        screen.table(table(runs), name)
        screen.say(f"figure: {out / 'curves.svg'}   table: {out / 'table.json'}")
        for done in runs:
            screen.stopped(done)
    return 1 if any("stopped" in done.summary for done in runs) else 0


def _reproduce(args: argparse.Namespace) -> int:
    from fedveca.runs.record import refuse
    from fedveca.runs.reproduce import TASKS, reproduce, studies
    from fedveca.runs.run import resolve
    from fedveca.views.terminal import Screen

    _positive(args, "seeds", "workers")
    tasks = tuple(args.tasks.split(",")) if args.tasks else TASKS
    wanted = studies(args.what, tasks)
    resolve(args.device)
    refuse(args.out)
    with Screen(args.quiet) as screen:
        runs = reproduce(
            args.what, args.seeds, args.out, tasks=tasks, device=args.device, workers=args.workers,
            data_dir=args.data_dir, started=screen.run,
            ended=(lambda study, run: screen.ended(run, study.name)) if args.workers > 1 else None,
        )
        stopped = [run for mine in runs.values() for run in mine if "stopped" in run.summary]
        for run in stopped:
            screen.stopped(run)
        if stopped:
            return 1
        from fedveca.views.paper import write

        only = f" --tasks {args.tasks}" if args.tasks else ""
        for what, of in wanted.items():
            command = f"fedveca reproduce {what} --seeds {args.seeds}{only}"
            screen.paper(write(what, of, runs, args.out / "results", command))
        screen.say(f"results: {args.out / 'results'}   runs: {args.out}")
    return 0


def _partition(args: argparse.Namespace) -> int:
    from fedveca.runs.build import build
    from fedveca.tasks.partition import label_counts
    from fedveca.views.terminal import Screen

    _, experiment = _experiment(args.words)
    built = build(experiment)
    with Screen() as screen:
        screen.partition(label_counts(built.shares, built.data.y, built.data.classes))
    return 0


def _list(args: argparse.Namespace) -> int:
    from fedveca.views.terminal import Screen

    with Screen() as screen:
        screen.settings()
    return 0


def _data(args: argparse.Namespace) -> int:
    from fedveca.tasks.fetch import get

    print(get(args.name, args.data_dir))
    return 0


if __name__ == "__main__":
    sys.exit(main())
