"""A file that the user named, to be written: where it may be, and how it gets there whole."""

from __future__ import annotations

from pathlib import Path

from fedveca.errors import UserError, printable
from fedveca.runs.files import write_atomic
from fedveca.runs.folder_writer import FILES, MEMORY_FILE, is_draft
from fedveca.runs.lock import LOCK_FILE

USED = (*FILES, MEMORY_FILE, LOCK_FILE, "deployment")  # by a run, in its folder


def require_file(path: Path) -> None:
    """UserError where a file cannot be written: no folder for it, something else there, or a file of a run."""
    said, home = printable(str(path), 400), path.parent
    if path.is_dir():
        raise UserError(f"{said} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{said} is not a regular file; name another")
    if not home.is_dir():
        why = "is not a folder" if home.exists() else "does not exist"
        raise UserError(f"{said} cannot be written: the folder {printable(str(home), 400)} {why}")
    if run := _find_run(path):
        raise UserError(f"{said} is a file of the run in {printable(str(run), 400)}; name another file")


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; UserError in one sentence where that cannot be done."""
    require_file(path)
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"{printable(str(path), 400)} cannot be written: {error.strerror or error}") from error


def _find_run(path: Path) -> Path | None:
    """The run folder that uses this file; None where none does."""
    whole = path.parent.resolve() / path.name
    for folder in whole.parents:
        name = whole.relative_to(folder).parts[0]
        if (name in USED or is_draft(name)) and (folder / "experiment.toml").exists():
            return folder
    return None
