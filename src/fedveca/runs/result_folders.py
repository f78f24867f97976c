"""The folders of comparisons, sweeps and studies: what is resumed there, and what is not written over.

The runs are what marks such a folder: the first of them is written before anything else, and tables come later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fedveca.errors import UserError, printable
from fedveca.runs.folder import require_free
from fedveca.runs.folder_writer import FILES, is_draft
from fedveca.runs.lock import LOCK_FILE
from fedveca.runs.sweep_file import REPORTED, TUNING

RUN_NAME = re.compile(r".+-seed\d+")  # of a run in the folder of a comparison


def require_comparison(out: Path | str) -> None:
    """UserError where a comparison cannot be written: the folder holds something else."""
    _require_own(Path(out), "a comparison", _holds_comparison)


def require_sweep(out: Path | str) -> None:
    """UserError where a sweep cannot be written: the folder holds something else, such as a comparison."""
    _require_own(Path(out), "a sweep", _holds_sweep)


def require_studies(out: Path | str) -> None:
    """UserError where studies cannot be written: the folder holds something else."""
    _require_own(Path(out), "studies", _holds_studies)


def _require_own(out: Path, kind: str, holds_own: Callable[[Path], bool]) -> None:
    """UserError where a folder cannot be written, or holds a file and is not one of its kind."""
    require_free(out)
    if not out.is_dir():
        return
    others = sorted(path.name for path in out.iterdir() if not _is_empty(path))
    if others and not holds_own(out):
        said = f"{out} is not empty and is not a folder of {kind}"
        raise UserError(f"{said}: it holds {printable(others[0])}; name a new folder")


def _holds_comparison(folder: Path) -> bool:
    return any(RUN_NAME.fullmatch(path.name) and _holds_run(path) for path in _list_folders(folder))


def _holds_sweep(folder: Path) -> bool:
    return _holds_tuning(folder) or _holds_comparison(folder / REPORTED)


def _holds_tuning(folder: Path) -> bool:
    return any(map(_holds_comparison, _list_folders(folder / TUNING)))


def _holds_studies(folder: Path) -> bool:
    """Folders of comparisons, and no run next to them: a folder such as runs/ is not one of studies."""
    folders = _list_folders(folder)
    return any(map(_holds_comparison, folders)) and not any(map(_holds_run, folders)) and not _holds_tuning(folder)


def _holds_run(folder: Path) -> bool:
    """Whether a run has begun there, if only by its lock."""
    return any(path.name in (*FILES, LOCK_FILE) or is_draft(path.name) for path in folder.iterdir())


def _list_folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _is_empty(path: Path) -> bool:
    """Whether it is a folder without a file, however deep: what a process leaves that was killed at once."""
    return path.is_dir() and all(below.is_dir() for below in path.rglob("*"))
