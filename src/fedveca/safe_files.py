"""How a file is opened where someone else may have put something in its place: no link, pipe or device is opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
SECOND_NAME = "has a second name (a hard link)"


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file; OSError for anything else, and where it is written, for one with two names."""
    handle = os.open(path, flags | _SAFE, 0o644)
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
