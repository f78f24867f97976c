"""How a file is opened where someone else may have put something in its place: no link, pipe or device is opened.

And how a process waits until its content is on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
leave_turn: ContextVar[Callable[[Callable[[], object]], object] | None] = ContextVar("leave_turn", default=None)
_T = TypeVar("_T")
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


def work_aside(work: Callable[[], _T]) -> _T:
    """What `work` returns: hashing and writing, say. Of several runs in a process the others continue meanwhile."""
    aside = leave_turn.get()
    return cast(_T, aside(work)) if aside else work()


def sync_file(handle: int) -> None:
    """Waits until what was written is on the disk."""
    work_aside(partial(os.fsync, handle))
