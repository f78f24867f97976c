"""Files of a folder that someone else may have made, and files that are written whole or not at all.

No link, pipe or device is opened, and no size is trusted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fedveca.errors import UserError, printable
from fedveca.runs.schema import Json, parse_object

SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
SECOND_NAME = "has a second name (a hard link)"
OBJECT_BYTES = 4 * 2**20  # the most of a JSON file that is read at once
DEEPEST = 32  # lists and objects within each other; a run writes three


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file; OSError for anything else, and where it is written, for one with two names."""
    handle = os.open(path, flags | SAFE, 0o644)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, f"{path.name} is not a file")
        if flags & (os.O_WRONLY | os.O_RDWR) and about.st_nlink > 1:
            raise OSError(errno.EMLINK, f"{path.name} {SECOND_NAME}")
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_new(path: Path) -> int:
    """A descriptor of a new file, to read and write; a file or link in its place is removed, unread."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def find_inside(folder: Path, name: str) -> Path:
    """A file of the folder; UserError for what is not a file, or a link that leads out of the folder."""
    path = folder / name
    if path.exists() and not path.is_file():
        raise UserError(f"{name} is not a file")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{name} is a link that leads out of it")  # also where nothing is there yet
    if not path.exists():
        raise UserError(f"{name} is missing")
    return path


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """A file of the folder; UserError where it is not one, leads out, or has more bytes than `most`."""
    with os.fdopen(open_regular(find_inside(folder, name).resolve(), os.O_RDONLY), "rb") as file:
        content = file.read(most + 1) if (size := os.fstat(file.fileno()).st_size) <= most else b""
    if max(size, len(content)) > most:
        raise UserError(f"{name} is too large: {size} bytes, at most {most} are allowed")
    return content


def read_lines(folder: Path, name: str, most: int) -> Iterator[str]:
    """The lines of a file of the folder, one by one; a last line without its end is not a line."""
    with os.fdopen(open_regular(find_inside(folder, name).resolve(), os.O_RDONLY), "rb") as file:
        k = 0
        while (line := file.readline(most + 1)).endswith(b"\n"):
            yield line.decode("utf-8")
            k += 1
        if len(line) > most:
            raise UserError(f"line {k + 1} of {name} is too long: at most {most} bytes are allowed")


def read_object(folder: Path, name: str, most: int = OBJECT_BYTES) -> dict[str, Json]:
    """The names and values of a JSON file; UserError or OSError where it cannot be what a run wrote."""
    found = parse_object(read_inside(folder, name, most).decode(), name)
    level: list[Json] = [found]
    for _ in range(DEEPEST):
        inner: list[Json] = []
        for each in level:
            parts = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            inner += [part for part in parts if isinstance(part, dict | list)]
        if not inner:
            return found
        level = inner
    raise UserError(f"{name} is nested more than {DEEPEST} deep")


def require_inside(folder: Path, name: str, exempt: str = "") -> None:
    """UserError where `name` is a link or a pipe, or holds a link that leads out of it; `exempt` is a file's name."""
    top = folder / name
    left, home = [top], top.resolve()
    while left:
        path = left.pop()
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        place = printable(str(path.relative_to(folder)))
        if stat.S_ISLNK(mode) and path == top:
            raise UserError(f"{place} in the run folder is a link")
        if stat.S_ISLNK(mode) and path.name != exempt and not Path(os.path.realpath(path)).is_relative_to(home):
            raise UserError(f"{place} in the run folder is a link that leads out of {name}")
        if stat.S_ISDIR(mode):
            left += [path / entry for entry in os.listdir(path)]
        elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise UserError(f"{place} in the run folder is neither a file nor a folder")


def leads_out(folder: Path, name: str) -> bool:
    """Whether a folder of the run folder is a link to elsewhere, or holds one."""
    home, links = os.path.realpath(folder), [p for p in (folder / name, *(folder / name).rglob("*")) if p.is_symlink()]
    return any(not Path(os.path.realpath(link)).is_relative_to(home) for link in links)


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces a file: a reader sees the former content or the new one, never a part."""
    os.replace(write_draft(path, content), path)


def write_draft(path: Path, content: bytes) -> Path:
    """The content on the disk, next to the place that it is for."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return draft
