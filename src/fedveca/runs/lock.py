"""One process at a time on a run folder: a lock that dies with its process, however that dies."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedveca.errors import UserError
from fedveca.safe_files import open_regular

LOCK_FILE = ".lock"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems have none


_command = 0  # in a worker: the process that its folders are locked for


def lock_on_behalf_of(process: int) -> None:
    """Locks name this process from now on, since ending a worker would not end its command."""
    global _command
    _command = process


class InUse(UserError):
    """Another process has the folder."""


@contextlib.contextmanager
def lock_folder(folder: Path, make: bool = False) -> Iterator[None]:
    """The folder is this process's alone meanwhile; `make`: it is made first, and removed if that fails.

    UserError where that cannot be. The lock's file stays: removing it would let two waiting processes lock two files.
    """
    new, path = make and not folder.exists(), folder / LOCK_FILE
    lock = FileLock(path, timeout=0)
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InUse(f"{folder} is in use by {_find_holder(path)}; wait for it or stop it") from error
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        with contextlib.suppress(OSError), os.fdopen(open_regular(path, os.O_WRONLY), "wb") as file:
            file.truncate()
            file.write(str(_command or os.getpid()).encode())
        yield
        new = False
    finally:
        with contextlib.suppress(OSError):
            if new and os.listdir(folder) == [LOCK_FILE]:
                path.unlink()  # while it is locked: whoever waits for it sees that it is gone
                folder.rmdir()
        lock.release()


def _find_holder(path: Path) -> str:
    with contextlib.suppress(OSError), os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        number = file.read(20).decode(errors="replace")
        return f"process {number}" if number.isdigit() else "another process"
    return "another process"
