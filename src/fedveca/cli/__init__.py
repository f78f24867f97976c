"""The command line: it wires and computes nothing. Each command has a file next to this one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from fedveca.cli import board, compare, data, deploy, export, figure, partition, predict, report, run, study
from fedveca.cli import list as list_
from fedveca.errors import UserError
from fedveca.runs.interrupt import FolderUnwritable, Stopped, is_out_of_memory, terminate_as_interrupt
from fedveca.version import __version__

LONGEST_SENTENCE = 4000  # characters of a sentence
SHORT_OF_MEMORY = (
    "out of memory: take fewer clients, a smaller model or batch, or a machine with more; "
    "a run folder that has rounds can be resumed"
)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0; 1 for a run that diverged or could not be written, 2 for bad input, 130 for Ctrl-C and SIGTERM."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") or "words" not in args for word in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.words += rest  # settings may stand on both sides of an --option
    try:
        with terminate_as_interrupt():
            code: int = args.command(args)
        return code
    except (UserError, OSError, MemoryError, RuntimeError, ImportError) as error:
        if is_out_of_memory(error) or is_out_of_memory(error.__cause__):
            print(f"fedveca: {SHORT_OF_MEMORY}", file=sys.stderr)
            return 1
        if not isinstance(error, UserError | OSError):
            raise
        print(f"fedveca: {_sentence(error)}", file=sys.stderr)
        return 1 if isinstance(error, FolderUnwritable) else 2
    except KeyboardInterrupt as error:
        print(f"fedveca: {str(error) or 'interrupted'}", file=sys.stderr, flush=True)
        if argv is None and not isinstance(error, Stopped):
            os._exit(130)  # now: not when a thread of arithmetic is done
        return 130


def _sentence(error: Exception) -> str:
    """An error's text without control characters and not without end; a list of places that were tried has lines."""
    text = str(error) if len(str(error)) <= LONGEST_SENTENCE else f"{str(error)[:LONGEST_SENTENCE]}..."
    lines = "\n" if "\n  - " in text else ""
    return "".join(c if c.isprintable() or c in lines else repr(c)[1:-1] for c in text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedveca",
        description="Federated Vectorized Averaging: run, compare and deploy federated methods.",
        epilog="`fedveca list` lists every method, data set, model, partition, preset and setting.",
    )
    parser.add_argument("--version", action="version", version=f"fedveca {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    for each in (run, compare, study, partition, list_, data, report, figure, board, predict, export, deploy):
        each.add(command)
    return parser
