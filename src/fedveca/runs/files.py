"""Files of a folder that someone else may have made, and files that are written whole or not at all.

No link, pipe or device is opened, and no size is trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from fedveca.errors import UserError, printable
from fedveca.runs.folder_types import Json
from fedveca.runs.schema import Direction, state_units
from fedveca.runs.validate_records import parse_object
from fedveca.safe_files import open_regular, sync_file
from fedveca.tasks.names import is_unit

OBJECT_BYTES = 4 * 2**20  # the most of a JSON file that is read at once
DEEPEST = 32  # lists and objects within each other; a run writes three
PARTS = 2**17  # lists and objects in all: an empty one takes 30 times its text
T = TypeVar("T")


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


def decode_text(content: bytes, where: str) -> str:
    """The text of a file or a line of it; UserError that names it where it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        said = f"{where} is not UTF-8 text"
        raise UserError(f"{said}: byte 0x{content[error.start]:02x} at position {error.start}") from error


def read_lines(folder: Path, name: str, most: int) -> Iterator[str]:
    """The lines of a file of the folder, one by one; a last line without its end is not a line."""
    with os.fdopen(open_regular(find_inside(folder, name).resolve(), os.O_RDONLY), "rb") as file:
        for k, line in enumerate(_complete_lines(file, name, most)):
            yield decode_text(line, f"line {k + 1} of {name}")


class LineTail:
    """The lines of a file that grows, each read once; a file that was replaced or cut is read again from its start.

    Args:
        folder: the folder of the file, which need not exist yet.
        name: the file's name.
        most: the most bytes that a line may have.
    """

    def __init__(self, folder: Path, name: str, most: int) -> None:
        self.folder, self.name, self.most = folder, name, most
        self.count = 0  # lines of the file that have been read
        self._inode = self._offset = 0

    def read(self) -> list[str]:
        """The complete lines that came since the last call; the last of them is number `count`."""
        if not (self.folder / self.name).exists():
            return []
        lines = []
        with os.fdopen(open_regular(find_inside(self.folder, self.name).resolve(), os.O_RDONLY), "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._offset:
                self.count, self._inode, self._offset = 0, about.st_ino, 0
            file.seek(self._offset)
            for line in _complete_lines(file, self.name, self.most, self.count):
                lines.append(decode_text(line, f"line {self.count + 1} of {self.name}"))
                self.count, self._offset = self.count + 1, self._offset + len(line)
        return lines


def _complete_lines(file: BinaryIO, name: str, most: int, before: int = 0) -> Iterator[bytes]:
    """The complete lines from here to the end; UserError for one that is too long. `before` lines came before."""
    k = before
    while (line := file.readline(most + 1)).endswith(b"\n"):
        yield line
        k += 1
    if len(line) > most:
        raise UserError(f"line {k + 1} of {name} is too long: at most {most} bytes are allowed")


def read_object(folder: Path, name: str, most: int = OBJECT_BYTES) -> dict[str, Json]:
    """The names and values of a JSON file; UserError or OSError where it cannot be what a run wrote."""
    return parse_bounded(read_inside(folder, name, most), name, lambda text: parse_object(text, name))


def parse_bounded(content: bytes, where: str, parse: Callable[[str], T]) -> T:
    """What `parse` makes of a text; UserError where it has too many lists and objects, or too deep ones."""
    if content.count(b"[") + content.count(b"{") > PARTS:
        raise UserError(f"{where} has more than {PARTS} lists and objects")
    try:
        found = parse(decode_text(content, where))
    except RecursionError as error:
        raise UserError(f"{where} is nested more than {DEEPEST} deep") from error
    level: list[object] = [found]
    for _ in range(DEEPEST):
        inner: list[object] = []
        for each in level:
            parts = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            inner += [part for part in parts if isinstance(part, dict | list)]
        if not inner:
            return found
        level = inner
    raise UserError(f"{where} is nested more than {DEEPEST} deep")


def read_directions(folder: Path) -> dict[str, Direction]:
    """What a custom metric stated about itself; nothing where environment.json cannot be what a run wrote.

    What it is measured in is known to the schema from here on.
    """
    with contextlib.suppress(OSError, ValueError):
        environment = read_object(folder, "environment.json")
        units = environment.get("units")
        if isinstance(units, dict):
            state_units({k: v for k, v in units.items() if isinstance(v, str) and is_unit(v)})
        stated = environment.get("better")
        if isinstance(stated, dict):
            return {k: cast(Direction, v) for k, v in stated.items() if v in ("higher", "lower")}
    return {}


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
            sync_file(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return draft
