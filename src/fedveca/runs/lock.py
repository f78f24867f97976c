"""One process at a time on a run folder: a lock that dies with its process, however that dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedveca.errors import UserError

NAME = ".lock"
UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems have no locks


class InUse(UserError):
    """Another process has the folder."""


@contextlib.contextmanager
def lock_folder(folder: Path, made: bool = False) -> Iterator[None]:
    """The folder is this process's alone meanwhile; `made`: it is made first, and removed if that fails.

    ValueError where that cannot be.
    """
    new = made and not folder.exists()
    try:
        if made:
            folder.mkdir(parents=True, exist_ok=True)
        handle = _take(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        yield
        new = False
    finally:
        try:
            if _same(handle, folder / NAME):
                with contextlib.suppress(OSError):
                    (folder / NAME).unlink()
                    if new:
                        folder.rmdir()  # only where nothing is in it
        finally:
            os.close(handle)


def _take(folder: Path) -> int:
    for _ in range(100):
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _lock(handle)
            if _same(handle, folder / NAME):  # else its holder has just taken it away
                if os.fstat(handle).st_nlink == 1:
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                    return handle
                (folder / NAME).unlink()  # the second name of another file, which is not written
        except (BlockingIOError, PermissionError) as error:
            os.lseek(handle, 0, os.SEEK_SET)
            number = os.read(handle, 20).decode(errors="replace")
            os.close(handle)
            who = f"process {number}" if number.isdigit() else "another process"
            raise InUse(f"{folder} is in use by {who}; wait for it or stop it") from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise InUse(f"{folder} cannot be locked: {NAME} in it changes all the time")


def _same(handle: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(handle), path.lstat())
    return False


if sys.platform == "win32":  # not tested: no such machine is at hand
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 30, os.SEEK_SET)  # the bytes before it stay readable
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in UNKNOWN:
                raise
