"""How a file of a run folder is read: the folder may come from anyone, so nothing in it is trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from fedveca.errors import UserError, printable
from fedveca.runs.files import read_inside
from fedveca.runs.schema import parse_object

MOST = 4 * 2**20  # bytes of a file that is read whole
DEEPEST = 32  # lists and tables within each other; a run writes three


def read_table(folder: Path, name: str, most: int = MOST) -> dict[str, Any]:
    """The names and values of a JSON file; ValueError or OSError where it cannot be what a run wrote."""
    found = parse_object(read_inside(folder, name, most).decode(), name)
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [
            v
            for each in level
            for v in (each.values() if isinstance(each, dict) else each)
            if isinstance(v, dict | list)
        ]
        if not level:
            return found
    raise UserError(f"{name} is nested more than {DEEPEST} deep")


def require_inside(folder: Path, name: str, but: str = "") -> None:
    """ValueError where `name` is a link, or holds one that leads out of it (`but` for files of one name), or a pipe."""
    top = folder / name
    left, home = [top], top.resolve()
    while left:
        path = left.pop()
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        said = printable(str(path.relative_to(folder)))
        if stat.S_ISLNK(mode) and path == top:
            raise UserError(f"{said} in the run folder is a link")
        if stat.S_ISLNK(mode) and path.name != but and not Path(os.path.realpath(path)).is_relative_to(home):
            raise UserError(f"{said} in the run folder is a link that leads out of {name}")
        if stat.S_ISDIR(mode):
            left += [path / entry for entry in os.listdir(path)]
        elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise UserError(f"{said} in the run folder is neither a file nor a folder")
