"""What several commands share: the words that name an experiment, the folder, counts, and the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.errors import UserError

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.folder import Run

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]
LONGEST_NAME = 255  # bytes of a file's name


def add_experiment(sub: argparse.ArgumentParser) -> None:
    """The words that name an experiment."""
    sub.add_argument("words", nargs="*", metavar="[PRESET] key=value ...", help="a preset, then settings")


def add_run(sub: argparse.ArgumentParser) -> None:
    """An experiment to run, its folder and its device."""
    add_experiment(sub)
    sub.add_argument("--out", type=parse_folder, metavar="DIR", help="folder to write (default: a new one in runs/)")
    sub.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to compute (default: CUDA if present)"
    )
    add_output(sub)


def add_output(sub: argparse.ArgumentParser) -> None:
    """How much is printed."""
    sub.add_argument("--quiet", action="store_true", help="print errors only")
    sub.add_argument("--json", action="store_true", help="print only the result, as one JSON object")


def add_run_folders(sub: argparse.ArgumentParser) -> None:
    """The runs that a command shows."""
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a folder of run folders")
    add_output(sub)


def open_runs(args: argparse.Namespace) -> list[Run]:
    """Those runs; what is skipped is named on standard error."""
    from fedveca.views.paths import find_runs

    runs, skipped = find_runs(args.runs)
    for sentence in skipped:
        print(sentence, file=sys.stderr)
    return runs


def parse_experiment(words: list[str]) -> tuple[str, Experiment]:
    """A name for what is run, and the preset with the settings, or the settings alone where no preset is named."""
    from fedveca.runs.experiment import Experiment, name_experiment, parse_settings, preset, reject_custom

    names = [word for word in words[:1] if "=" not in word]
    table = (preset(*names) if names else {}) | parse_settings(words[len(names) :])
    reject_custom(table)
    experiment = Experiment(**table)
    return name_experiment(experiment, *names), experiment


def parse_folder(text: str) -> Path:
    """A path that can be a folder's; the working folder is named by a dot, not by nothing."""
    if not text or "\0" in text or any(len(os.fsencode(part)) > LONGEST_NAME for part in Path(text).parts):
        cut = text if len(text) <= 120 else f"{text[:120]}..."
        raise argparse.ArgumentTypeError(f"{cut!r} cannot be the name of a folder")
    return Path(text)


def choose_folder(out: Path | None, name: str) -> Path:
    """The folder that was asked for, or the first free one in runs/."""
    if out:
        return out
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    return next(p for n in range(1, 10_000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())


def check_counts(args: argparse.Namespace) -> None:
    """UserError where --seeds or --workers is out of range."""
    from fedveca.runs.overrides import MOST_SEEDS, MOST_WORKERS

    for name, most in (("seeds", MOST_SEEDS), ("workers", MOST_WORKERS)):
        count = getattr(args, name)
        if count is None:
            continue
        if count < 1:
            raise UserError(f"--{name} {count} is out of range; allowed: >= 1")
        if count > most:
            raise UserError(f"--{name} {count} is out of range; at most {most}")


def print_result(args: argparse.Namespace, result: Mapping[str, object], text: str = "") -> None:
    """The result on standard output: one JSON object for machines, a line for people if there is one."""
    if args.json:
        print(json.dumps(result, allow_nan=False))
    elif text and not args.quiet:
        print(text)
