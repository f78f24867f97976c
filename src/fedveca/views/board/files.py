"""Reading below one folder and nowhere else: no link is followed, nothing but plain files is opened."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedveca.errors import UserError
from fedveca.runs.schema import LARGEST_NUMBER as LARGEST

MOST = 4 * 2**20  # bytes of a file that is read whole
SETTINGS, DOTS = 2**16, 1000  # bytes and dots of experiment.toml: tomllib takes the square of a dotted key's length
DEEPEST, PARTS = 32, 2**17  # lists and tables within each other, and in all: an empty one takes 30 times its text
LARGEST_COUNT = 2**31 - 1  # of clients and rounds, as in Experiment
FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A plain file; OSError for a link, a pipe, a device or nothing."""
    with os.fdopen(os.open(path, FLAGS | getattr(os, "O_BINARY", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a plain file")
        yield file


def stamp(path: Path | str) -> tuple[int, int, int] | None:
    """Changes when a plain file does; None where there is none."""
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns) if stat.S_ISREG(seen.st_mode) else None


def held(path: Path) -> bool | None:
    """Whether a process has this lock file locked; None where that cannot be known."""
    try:
        import fcntl

        with opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except (ImportError, OSError):
        return None


def toml(path: Path) -> dict[str, Any]:
    """ValueError in one sentence where it cannot be read."""
    try:
        text = _text(path, SETTINGS)
        if text.count(".") > DOTS:
            raise UserError(f"it has more than {DOTS} dots")
        return {name: plain(value) for name, value in _shallow(tomllib.loads(text)).items()}
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(path, error) from error


def settings(path: Path) -> dict[str, Any]:
    """The settings of a run; ValueError in one sentence where a number of clients or rounds is not possible."""
    found = toml(path)
    for name in ("clients", "rounds"):
        if name in found and not (type(found[name]) is int and 1 <= found[name] <= LARGEST_COUNT):
            given = f"{found[name]!s:.40}" if isinstance(found[name], str | int | float) else "that"
            raise UserError(f"{path.name} is invalid: {name} = {given} is not allowed; allowed: 1 to {LARGEST_COUNT}")
    return found


def table(path: Path) -> dict[str, Any]:
    """A JSON file's names; ValueError in one sentence where it holds none."""
    try:
        content = plain(_parse(_text(path, MOST).encode()))
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(path, error) from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} is no table of names")
    return content


def line(content: bytes) -> dict[str, Any] | None:
    """One line of rounds.jsonl; None where it is no table with a round."""
    try:
        parsed = _parse(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or type(parsed.get("round")) is not int or not 0 <= parsed["round"] < 2**31:
        return None
    return parsed


def ends(path: Path, block: int = 2**14) -> Iterator[dict[str, Any] | None]:
    """The last whole lines of rounds.jsonl, the last one first, None for an invalid one; only the end is read."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            start = max(0, size - block)
            file.seek(start)
            parts = file.read(size - start).split(b"\n")[0 if start == 0 else 1 : -1]
            if parts or start == 0 or block > MOST:
                yield from map(line, reversed(parts))
                return
            block *= 8


def plain(value: Any) -> Any:
    """What JSON can say: no number beyond a float's range, TOML's dates as text."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None
    return value if value is None or isinstance(value, str) else str(value)


def _parse(content: bytes) -> Any:
    """JSON that is neither nested too deeply nor made of too many parts."""
    parts = content.count(b"[") + content.count(b"{")
    if parts > PARTS:
        raise UserError(f"it has more than {PARTS} lists and tables")
    return json.loads(content) if parts <= DEEPEST else _shallow(json.loads(content))


def _shallow(value: Any) -> Any:
    """The value; ValueError where it is nested too deeply."""
    level = [value]
    for _ in range(DEEPEST):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [v for values in inner for v in values if isinstance(v, (dict, list))]
        if not level:
            return value
    raise UserError(f"it is nested more than {DEEPEST} deep")


def _invalid(path: Path, error: Exception) -> ValueError:
    why = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return ValueError(f"{path.name} cannot be read: {why!s:.400}")


def _text(path: Path, most: int) -> str:
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"it is larger than {most} bytes")
    return content.decode()
