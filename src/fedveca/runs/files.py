"""Files of a folder that someone else may have made: no link, pipe or device is opened, no size is trusted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedveca.errors import UserError
from fedveca.runs.schema import find_inside

SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
SECOND_NAME = "has a second name (a hard link)"


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
    """A descriptor of a new file, to read and write; a file or link that stands in its place is removed, unread."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """A file of the folder; ValueError where it is none, leads out, or has more bytes than `most`."""
    with os.fdopen(open_regular(find_inside(folder, name).resolve(), os.O_RDONLY), "rb") as file:
        content = file.read(most + 1) if (size := os.fstat(file.fileno()).st_size) <= most else b""
    if max(size, len(content)) > most:
        raise UserError(f"{name} is too large: {size} bytes, at most {most} are allowed")
    return content


def read_lines(folder: Path, name: str, most: int) -> Iterator[str]:
    """The lines of a file of the folder, one by one; a torn last line is not a line."""
    with os.fdopen(open_regular(find_inside(folder, name).resolve(), os.O_RDONLY), "rb") as file:
        for line in _complete_lines(file, name, most):
            yield line.decode("utf-8")


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
                lines.append(line.decode("utf-8"))
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


def leads_out(folder: Path, name: str) -> bool:
    """Whether a folder of the run folder is a link to elsewhere, or holds one."""
    home, links = os.path.realpath(folder), [p for p in (folder / name, *(folder / name).rglob("*")) if p.is_symlink()]
    return any(not Path(os.path.realpath(link)).is_relative_to(home) for link in links)
