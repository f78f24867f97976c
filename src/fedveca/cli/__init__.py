"""The command line: it wires and computes nothing. Each command has a file next to this one."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from fedveca.cli import (
    board,
    compare,
    completion,
    data,
    deploy,
    devices,
    export,
    figure,
    partition,
    plan,
    predict,
    replay,
    report,
    run,
    runs,
    study,
    sweep,
)
from fedveca.cli import list as list_
from fedveca.cli.parser import MainParser, explain_unknown
from fedveca.errors import UserError
from fedveca.runs.interrupt import FolderUnwritable, Stopped, is_out_of_memory, terminate_as_interrupt
from fedveca.version import __version__

LONGEST_SENTENCE = 4000  # characters of a sentence
SHORT_OF_MEMORY = (
    "out of memory: take fewer clients, a smaller model or batch, or a machine with more; "
    "a run folder that has rounds can be resumed"
)
BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended
COMMAND_GROUPS = {
    "run": (run, compare, sweep, study, partition),
    "look at results": (runs, report, figure, board),
    "use the model": (predict, export),
    "deploy": (deploy, plan, devices, replay),
    "find out more": (list_, data, completion),
}
EXAMPLES = (
    ("fedveca run", "one experiment on small digits: seconds, no download"),
    ("fedveca compare digits-case3 --seeds 3 --open", "six methods over three seeds, and a report"),
    ("fedveca runs", "what was run, and how well"),
)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0; 1 for a run that diverged or could not be written, 2 for bad input, 130 for Ctrl-C and SIGTERM."""
    try:
        try:
            return _run_command(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # also after a help text, which ends the program
    except BrokenPipeError:  # who reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
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


def _run_command(argv: list[str]) -> int:
    if argv[:1] == [completion.COMPLETE]:
        return completion.print_candidates(make_parser(), argv[1:])
    parser = make_parser()
    if not argv:
        parser.print_help()
        return 0
    if not argv[0].startswith("-") and argv[0] not in parser.commands.choices:
        parser.explain_command(argv[0])
    args, rest = parser.parse_known_args(argv)
    if "command" not in args:
        explain_unknown(parser, rest, argv)
    if any(word.startswith("-") or "words" not in args for word in rest):
        explain_unknown(args.parser, rest, argv)
    if rest:
        args.words += rest  # settings may stand on both sides of an --option
    with terminate_as_interrupt():
        code: int = args.command(args)
    return code


def _sentence(error: Exception) -> str:
    """An error's text without control characters and not without end; a list of places that were tried has lines."""
    text = str(error) if len(str(error)) <= LONGEST_SENTENCE else f"{str(error)[:LONGEST_SENTENCE]}..."
    lines = "\n" if "\n  - " in text else ""
    return "".join(c if c.isprintable() or c in lines else repr(c)[1:-1] for c in text)


def make_parser() -> MainParser:
    """The whole command line."""
    parser = MainParser(EXAMPLES, description="Federated learning with FedVeca: run, compare and deploy experiments.")
    parser.add_argument("-V", "--version", action="version", version=f"fedveca {__version__}", help="print the version")
    for group, modules in COMMAND_GROUPS.items():
        for module in modules:
            module.add(partial(parser.add_command, group))
    text = "Explain a command."
    help_ = parser.add_command("find out more", "help", partial(_help, parser), text)
    help_.add_argument("about", nargs="*", metavar="COMMAND", help="the command, such as run or deploy local")
    return parser


def _help(parser: MainParser, args: argparse.Namespace) -> int:
    if args.about and args.about[0] not in parser.commands.choices:
        parser.explain_command(args.about[0])
    parser.parse_args([*args.about, "--help"])
    return 0
