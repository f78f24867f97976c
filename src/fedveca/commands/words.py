"""What several commands share: the words that name an experiment, the folder, whole counts."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


def takes_experiment(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("words", nargs="*", metavar="[PRESET] key=value ...", help="a preset, then settings")


def takes_run(sub: argparse.ArgumentParser) -> None:
    takes_experiment(sub)
    sub.add_argument("--out", metavar="DIR", help="folder to write (default: a new one under runs/)")
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    says(sub)


def says(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--quiet", action="store_true", help="say only what went wrong")
    sub.add_argument("--json", action="store_true", help="quiet, and the result as one JSON object on standard output")


def experiment_of(words: list[str]) -> tuple[str, Any]:
    """The preset's name, and it with the settings."""
    from fedveca.runs.experiment import Experiment, parse, preset

    named = words[0] if words and "=" not in words[0] else "digits-case3"
    settings = words[1:] if words and "=" not in words[0] else words
    return Path(named).stem, Experiment(**(preset(named) | parse(settings)))


def out_of(given: Path | str | None, name: str) -> Path:
    """The named folder, or the first free one under runs/."""
    if given is not None:
        from fedveca.runs.record import require_name

        return require_name(given)
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    return next(p for n in range(1, 10_000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())


def positive(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)} is out of range; allowed: >= 1")


def tell(args: argparse.Namespace, result: dict[str, Any], text: str = "") -> None:
    """The result on standard output: one JSON object for machines, a line for people if there is one."""
    if args.json:
        print(json.dumps(result, allow_nan=False))
    elif text and not args.quiet:
        print(text)
