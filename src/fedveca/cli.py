"""The command line: wires, computes nothing. What each command does stands in commands/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from fedveca.commands import board, deploy, experiments, inspect, show
from fedveca.runs.stop import CutOff, Stopped, terminable
from fedveca.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 for a run that could not go on, 2 for bad input, 130 for Ctrl-C and SIGTERM."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") or "words" not in args for word in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.words += rest  # settings may stand on both sides of an --option
    try:
        with terminable():
            code: int = args.command(args)
        return code
    except (ValueError, OSError) as error:
        print(f"fedveca: {error}", file=sys.stderr)
        return 1 if isinstance(error, CutOff) else 2
    except KeyboardInterrupt as error:
        print(f"fedveca: {str(error) or 'interrupted'}", file=sys.stderr, flush=True)
        if argv is None and not isinstance(error, Stopped):
            os._exit(130)  # now: not when a thread of arithmetic is done
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedveca", description="Federated Vectorized Averaging: run, compare and deploy federated methods.",
        epilog="`fedveca list` shows every method, data set, model, partition, preset and setting.",
    )
    parser.add_argument("--version", action="version", version=f"fedveca {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    for family in (experiments, inspect, show, board, deploy):
        family.add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
