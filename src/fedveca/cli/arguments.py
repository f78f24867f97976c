"""What several commands share: the words that name an experiment, the folder, whole counts."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedveca.errors import UserError

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]
LONGEST_NAME = 255  # bytes of a file's name


def takes_experiment(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("words", nargs="*", metavar="[PRESET] key=value ...", help="a preset, then settings")


def takes_run(sub: argparse.ArgumentParser) -> None:
    takes_experiment(sub)
    sub.add_argument("--out", type=folder, metavar="DIR", help="folder to write (default: a new one under runs/)")
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    says(sub)


def says(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--quiet", action="store_true", help="say only what went wrong")
    sub.add_argument("--json", action="store_true", help="quiet, and the result as one JSON object on standard output")


def experiment_of(words: list[str]) -> tuple[str, Any]:
    """The preset's name, and it with the settings."""
    from fedveca.runs.experiment import Experiment, parse_settings, preset, reject_custom

    named = words[0] if words and "=" not in words[0] else "digits-case3"
    settings = words[1:] if words and "=" not in words[0] else words
    table = preset(named) | parse_settings(settings)
    reject_custom(table)
    return Path(named).stem, Experiment(**table)


def folder(text: str) -> Path:
    """A path that can be a folder's; the working folder is named by a dot, not by nothing."""
    if not text or "\0" in text or any(len(os.fsencode(part)) > LONGEST_NAME for part in Path(text).parts):
        cut = text if len(text) <= 120 else f"{text[:120]}..."
        raise argparse.ArgumentTypeError(f"{cut!r} cannot be the name of a folder")
    return Path(text)


def out_of(given: Path | None, name: str) -> Path:
    """The named folder, or the first free one under runs/."""
    if given:
        return given
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    return next(p for n in range(1, 10_000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())


def check_counts(args: argparse.Namespace) -> None:
    """ValueError where --seeds or --workers is out of range."""
    from fedveca.runs.overrides import MOST_SEEDS, MOST_WORKERS

    for name, most in (("seeds", MOST_SEEDS), ("workers", MOST_WORKERS)):
        given = getattr(args, name)
        if given is None:
            continue
        if given < 1:
            raise UserError(f"--{name} {given} is out of range; allowed: >= 1")
        if given > most:
            raise UserError(f"--{name} {given} is out of range; at most {most}")


def tell(args: argparse.Namespace, result: dict[str, Any], text: str = "") -> None:
    """The result on standard output: one JSON object for machines, a line for people if there is one."""
    if args.json:
        print(json.dumps(result, allow_nan=False))
    elif text and not args.quiet:
        print(text)
