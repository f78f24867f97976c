"""Files of a folder that someone else may have made: no link leads out of it, no size is trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedveca.errors import UserError
from fedveca.runs.schema import find_inside
from fedveca.safe_files import open_regular


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
        k = 0
        while (line := file.readline(most + 1)).endswith(b"\n"):
            yield line.decode("utf-8")
            k += 1
        if len(line) > most:
            raise UserError(f"line {k + 1} of {name} is too long: at most {most} bytes are allowed")


def leads_out(folder: Path, name: str) -> bool:
    """Whether a folder of the run folder is a link to elsewhere, or holds one."""
    home, links = os.path.realpath(folder), [p for p in (folder / name, *(folder / name).rglob("*")) if p.is_symlink()]
    return any(not Path(os.path.realpath(link)).is_relative_to(home) for link in links)
