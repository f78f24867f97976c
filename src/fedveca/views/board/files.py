"""What the board reads beyond `fedveca.runs.files`: the end of a growing file, a lock, settings of any content."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedveca.errors import UserError
from fedveca.runs.files import OBJECT_BYTES, parse_bounded, read_inside
from fedveca.runs.folder_types import Json
from fedveca.runs.schema import is_number
from fedveca.safe_files import open_regular

SETTINGS_BYTES, SETTINGS_DOTS = 2**16, 1000  # tomllib takes the square of a dotted key's length
HIGHEST_SETTING = 2**31 - 1  # of clients and rounds, as in Experiment
NAME_LETTERS = 100  # of a setting or a recorded quantity that is shown


class Stamp(NamedTuple):
    """Changes when a file does."""

    inode: int
    size: int
    changed: int


class Line(NamedTuple):
    """One line of rounds.jsonl; only `round` is checked."""

    round: int
    values: dict[str, Json]


def open_file(path: Path) -> BinaryIO:
    """A regular file to read; OSError for a link, a pipe, a device or nothing."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def stamp_file(path: Path | str) -> Stamp | None:
    """The stamp of a regular file; None for anything else."""
    try:
        about = os.lstat(path)
    except OSError:
        return None
    return Stamp(about.st_ino, about.st_size, about.st_mtime_ns) if stat.S_ISREG(about.st_mode) else None


def is_locked(path: Path) -> bool | None:
    """Whether a process has this lock file locked; None where that cannot be known."""
    try:
        import fcntl

        with open_file(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except (ImportError, OSError):
        return None


def read_settings(folder: Path) -> dict[str, object]:
    """What experiment.toml holds, whatever it is; UserError or OSError where it cannot be read."""
    name = "experiment.toml"
    content = read_inside(folder, name, SETTINGS_BYTES)
    if content.count(b".") > SETTINGS_DOTS:
        raise UserError(f"{name} has more than {SETTINGS_DOTS} dots")
    try:
        return parse_bounded(content, name, tomllib.loads)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}") from error


def get_count(settings: Mapping[str, object], name: str) -> int | None:
    """A number of clients or rounds, None where it is missing; UserError where it is not possible."""
    value = settings.get(name)
    if name not in settings or (type(value) is int and 1 <= value <= HIGHEST_SETTING):
        return value if type(value) is int else None
    text = f"{value!s:.40}" if isinstance(value, str | int | float) else "a list or a table"
    raise UserError(f"experiment.toml: {name} = {text} is not allowed; allowed: 1 to {HIGHEST_SETTING}")


def parse_line(content: bytes) -> Line | None:
    """One line of rounds.jsonl; None where it is not an object with a round."""
    try:
        values = parse_bounded(content, "the line", json.loads)
    except ValueError:
        return None
    k = values.get("round") if isinstance(values, dict) else None
    return Line(k, values) if type(k) is int and 0 <= k <= HIGHEST_SETTING else None


def read_last_lines(path: Path, block: int = 2**14) -> Iterator[Line | None]:
    """The last complete lines of rounds.jsonl, the last one first, None for an invalid one; only the end is read."""
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            start = max(0, size - block)
            file.seek(start)
            parts = file.read(size - start).split(b"\n")[0 if start == 0 else 1 : -1]
            if parts or start == 0 or block > OBJECT_BYTES:
                yield from map(parse_line, reversed(parts))
                return
            block *= 8


def to_plain_json(value: object) -> Json:
    """What JSON can say: null for a number that a run cannot have recorded, TOML's dates as text."""
    if isinstance(value, dict):
        return {name: to_plain_json(v) for name, v in value.items()}
    if isinstance(value, list):
        return [to_plain_json(v) for v in value]
    if value is None or isinstance(value, bool | str) or is_number(value):
        return value
    return None if isinstance(value, int | float) else str(value)


def is_shown_name(name: str) -> bool:
    """Whether a recorded name or a setting is one to show; a space begins those of the board itself."""
    return 0 < len(name) <= NAME_LETTERS and name[0] != " "


def round_number(value: float) -> float:
    """Six digits, which are more than a screen shows."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
