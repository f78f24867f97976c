"""Logs of a deployment's processes that do not grow for ever: the last few files of a bounded size.

The processes write to a file that was opened for appending, so whoever watches over them copies what is there and cuts
the file to nothing. A line that is written between the copy and the cut is lost; the processes notice nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from fedveca.errors import UserError
from fedveca.safe_files import open_new, open_regular

LOG_LIMIT = "FEDVECA_LOG_LIMIT"  # megabytes and files, for the processes of a node
_MOST_MEGABYTES = 1024 * 1024
_MOST_FILES = 1000


class LogLimit(NamedTuple):
    """How much of a log is stored: the file itself, and the `files` before it, each of at most about `megabytes`."""

    megabytes: float = 16.0
    files: int = 5

    def check(self) -> LogLimit:
        """Itself; UserError where a number is out of range."""
        if not 0 < self.megabytes <= _MOST_MEGABYTES:
            raise UserError(f"--log-mb {self.megabytes:g} is out of range; allowed: more than 0 to {_MOST_MEGABYTES}")
        if not 0 <= self.files <= _MOST_FILES:
            raise UserError(f"--log-files {self.files} is out of range; allowed: 0 to {_MOST_FILES}")
        return self

    def encode(self) -> str:
        """As a variable of the environment."""
        return f"{self.megabytes:g} {self.files}"


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """The two options of a program that bound its logs."""
    limit = LogLimit()
    parser.add_argument(
        "--log-mb", type=float, default=limit.megabytes, metavar="MB", help="size of a log file (default %(default)g)"
    )
    parser.add_argument(
        "--log-files", type=int, default=limit.files, metavar="N", help="former log files to keep (default %(default)s)"
    )


def read_log_limit() -> LogLimit:
    """What the environment says, or the default."""
    try:
        megabytes, files = os.environ[LOG_LIMIT].split()
        return LogLimit(float(megabytes), int(files)).check()
    except (KeyError, ValueError):
        return LogLimit()


def rotate_log(path: Path, limit: LogLimit) -> bool:
    """Makes room in a log that is too long: `log` becomes `log.1`, that `log.2`, and the oldest is removed.

    Args:
        path: the log, which processes have open for appending.
        limit: how much is stored.

    Returns:
        Whether there was a reason to.
    """
    try:
        if path.stat().st_size <= limit.megabytes * 2**20:
            return False
        for number in range(limit.files, 0, -1):
            newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            older = path.with_name(f"{path.name}.{number}")
            if newer is path:
                source = open_regular(path, os.O_RDONLY)
                with os.fdopen(source, "rb") as old, os.fdopen(open_new(older), "wb") as new:
                    shutil.copyfileobj(old, new)
            elif newer.exists():
                os.replace(newer, older)
        os.truncate(path, 0)
    except OSError:
        return False  # a full disk, or a log that was removed meanwhile: the next look may do
    return True
