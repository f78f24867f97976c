"""What several commands share: the words that name an experiment, the folder, counts, and the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedveca.cli.parser import SETTINGS_NOTE, CommandFunction, Example
from fedveca.errors import UserError, printable, quoted

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.folder import Run

DEFAULT_PRESET = "digits-case3"
LONGEST_NAME = 255  # bytes of a file's name


class Command(Protocol):
    """Adds a command to the command line."""

    def __call__(
        self, name: str, function: CommandFunction, text: str, examples: Sequence[Example] = ()
    ) -> argparse.ArgumentParser: ...


def add_experiment(sub: argparse.ArgumentParser, before: str = "") -> None:
    """The words that name an experiment; `before` are the arguments in front of them."""
    sub.add_argument(
        "words",
        nargs="*",
        metavar="key=value",
        help=f"a preset (default {DEFAULT_PRESET}) or a TOML file, then settings such as rounds=20",
    )
    sub.usage = f"%(prog)s {before}[PRESET] [key=value ...]"
    sub.epilog = "\n\n".join(filter(None, (sub.epilog, SETTINGS_NOTE)))


def add_run(sub: argparse.ArgumentParser) -> None:
    """An experiment to run, its folder and its device."""
    add_experiment(sub)
    sub.add_argument("--out", type=parse_folder, metavar="DIR", help="folder to write (default: a new one in runs/)")
    add_device(sub)
    add_output(sub)


def add_device(sub: argparse.ArgumentParser) -> None:
    """Where to compute."""
    sub.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        metavar="DEVICE",
        help="auto, cpu or cuda (default auto: CUDA if present)",
    )


def add_quiet(sub: argparse.ArgumentParser) -> None:
    """Whether less is printed."""
    sub.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def add_output(sub: argparse.ArgumentParser) -> None:
    """How much is printed."""
    add_quiet(sub)
    sub.add_argument("--json", action="store_true", help="print only the result, as one JSON object")


def add_open(sub: argparse.ArgumentParser) -> None:
    """Whether the report is opened."""
    sub.add_argument("--open", action="store_true", help="open the report in a browser")


def open_page(path: Path) -> None:
    """Opens a file in the browser; where there is none, its path is printed and has to do."""
    webbrowser.open(path.absolute().as_uri())


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
    for at, word in enumerate(words):
        if "=" not in word and not word.endswith(".toml"):
            _explain_word(word, first=at == 0)
    table = (preset(*names) if names else {}) | parse_settings(words[len(names) :])
    reject_custom(table)
    experiment = Experiment(**table)
    return name_experiment(experiment, *names), experiment


def list_named_settings(words: list[str]) -> list[str]:
    """The settings that a command names as key=value."""
    return [word.partition("=")[0] for word in words if "=" in word]


def _explain_word(word: str, first: bool) -> None:
    """UserError for a word without `=` that is a setting's name or one of its values, or a preset after the first."""
    from fedveca.runs.experiment import Experiment
    from fedveca.runs.presets import presets
    from fedveca.runs.setting_checks import FIELDS
    from fedveca.views.terminal.lists import offer_values

    if word in presets() and not first:
        raise UserError(f"{word} is a preset; one preset comes first, and then settings as key=value")
    if word in presets() or not word.isprintable():
        return
    if word in FIELDS:
        example = str(getattr(Experiment(), word)) or next(iter(FIELDS[word].metadata["some"]), "...")
        raise UserError(f"{word} is a setting: {word}={example}; `fedveca list {word}` explains it")
    for key in FIELDS:
        if word in offer_values(key):
            raise UserError(f"{quoted(word)} is a value of the setting {key}: {key}={printable(word)}")


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
    from fedveca.runs.setting_checks import MOST_SEEDS, MOST_WORKERS

    counts = {name: getattr(args, name) for name in ("seeds", "workers") if getattr(args, name) is not None}
    for name, count in counts.items():
        most = MOST_SEEDS if name == "seeds" else MOST_WORKERS
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
