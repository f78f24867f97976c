"""The command line: wires, computes nothing. What each command does stands in commands/."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from fedveca.commands import deploy, experiments, inspect
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

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    for family in (experiments, inspect, deploy):
        family.add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
