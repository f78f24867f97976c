"""Whether what stands in a run folder can be what a run wrote: files of its own, numbers where numbers belong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from fedveca.errors import UserError

WHOLE = ("ids", "left_out", "tau")  # lists of whole numbers
LISTS = ("beta", "delta", "A")
NUMBERS = ("tau_k", "train_loss", "test_loss", "test_accuracy", "seconds", "L", "premise", "bytes_up", "bytes_down")
LARGEST = sys.float_info.max


def find_inside(folder: Path, name: str) -> Path:
    """A file of the folder; ValueError for what is no file, or a link that leads out of it."""
    path = folder / name
    if path.exists() and not path.is_file():
        raise UserError(f"{name} is no file")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{name} is a link that leads out of it")  # also where nothing is there yet
    if not path.exists():
        raise UserError(f"{name} is missing")
    return path


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The names and values of a line of JSON."""
    try:
        out = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} is not JSON: {why}") from error
    if not isinstance(out, dict):
        raise UserError(f"{where} is no table of names")
    return out


def validate_records(rounds: list[dict[str, Any]], summary: dict[str, Any], first: int = 0) -> None:
    """ValueError where a known name has a value that no run writes; the rounds are those from `first` on."""
    for k, line in enumerate(rounds, first):
        wrong = [name for name in WHOLE if name in line and not _each(line[name], _whole)]
        wrong += [name for name in LISTS if name in line and not _each(line[name], _number)]
        wrong += [name for name in NUMBERS if name in line and not _number(line[name])]
        if type(line.get("round")) is not int or line["round"] != k:
            wrong.append("round")
        if wrong:
            raise UserError(f"line {k + 1} of rounds.jsonl has no good {wrong[0]}")
    if summary:
        wrong = [] if _whole(summary.get("tau_all")) else ["tau_all"]
        wrong += [name for name in ("last", "kept") if not _end(summary.get(name))]
        if wrong:
            raise UserError(f"summary.json has no good {wrong[0]}")


def _each(value: Any, good: Any) -> bool:
    return isinstance(value, list) and all(map(good, value))


def _end(value: Any) -> bool:
    """A model's round and its numbers on the test rows."""
    numbers = isinstance(value, dict) and _whole(value.get("round")) and "test_loss" in value
    return numbers and all(map(_number, value.values()))


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _number(value: Any) -> bool:
    """What a run writes of a number: null where it was not finite."""
    return value is None or (type(value) in (int, float) and abs(value) <= LARGEST)


def _refuse(word: str) -> NoReturn:
    raise UserError(f"{word} is no number of JSON")
