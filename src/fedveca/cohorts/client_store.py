"""Rows of equal length in one file, one for each client, so written that no checkpoint's row is ever overwritten.

A row that changes goes to a free place of the file; its old place becomes free only when neither of
the two checkpoints on disk can point there. So a checkpoint is only the list of places, costs what has changed,
and stays valid whenever the process is killed.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.errors import UserError
from fedveca.safe_files import open_new, open_regular, sync_file, work_aside

NOWHERE = -1
PIECE_BYTES = 64 * 2**20  # handled at once


class ClientMemoryError(UserError):
    """What the clients remember is damaged on disk, or does not fit the run."""


class RowsError(OSError):
    """A row that could not be written to the file, or read from it, while a run is under way."""


class ClientStore:
    """A file in `path`, or a nameless one that goes with the process."""

    def __init__(self, clients: int, width: int, path: Path | None = None) -> None:
        self.width, self.path = width, path  # floats of a row
        self.at = torch.full((clients,), NOWHERE)  # [N] the place of each client's row
        self.sums = torch.zeros(clients, dtype=torch.int64)  # [N] checksum of each client's row
        self.fresh = torch.zeros(clients, dtype=torch.bool)  # [N] written since the last checkpoint
        self.free: list[int] = []
        self.left = deque([[], [], []], 3)  # type: deque[list[int]]  # places left since, before the last checkpoint
        self.end = 0  # places of the file
        self._file = NOWHERE  # its descriptor

    @property
    def piece(self) -> int:
        """Rows handled at once."""
        return max(1, PIECE_BYTES // (4 * self.width))

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Stores rows [n, width] of distinct clients."""
        if not len(ids):
            return
        new = ids[~self.fresh[ids]]
        leaving = self.at[new]
        self.left[-1] += leaving[leaving != NOWHERE].tolist()
        self.at[new] = torch.tensor(self._take_places(len(new)), dtype=torch.int64)
        self.fresh[ids] = True
        place, order = self.at[ids].sort()
        content = rows.detach().cpu().contiguous().numpy()[order.numpy()]

        def store() -> list[int]:
            for a, b, first in _find_stretches(place, self.piece):
                self._move_rows(os.pwrite, content[a:b], first)
            return [zlib.crc32(row) for row in content]

        self.sums[ids[order]] = torch.tensor(work_aside(store))

    def read(self, ids: Tensor) -> Tensor:
        """[n, width]: the rows of clients that have one."""
        place, order = self.at[ids].sort()
        content = np.empty((len(ids), self.width), np.float32)
        for a, b, first in _find_stretches(place, self.piece):
            self._move_rows(lambda fd, room, at: os.preadv(fd, [room], at), content[a:b], first)
        out = torch.empty(len(ids), self.width)
        out[order] = torch.from_numpy(content)
        return out

    def save(self) -> dict[str, Tensor]:
        """Writes all rows to disk and returns what a checkpoint needs to find them."""
        if self._file != NOWHERE:
            sync_file(self._file)
        self.free += self.left[0]  # no checkpoint on disk is as old
        self.left.append([])
        self.fresh.fill_(False)
        ids = torch.nonzero(self.at != NOWHERE).flatten()
        return {"ids": ids, "at": self.at[ids], "sums": self.sums[ids], "width": torch.tensor(self.width)}

    def forget(self) -> None:
        """No client has a row any more; their places become free once no checkpoint can point there."""
        self.left[-1] += self.at[self.at != NOWHERE].tolist()
        self.at.fill_(NOWHERE)
        self.fresh.fill_(False)

    @staticmethod
    def load(clients: int, path: Path, saved: dict[str, Tensor]) -> ClientStore:
        """The store as it was saved; ClientMemoryError where a row has changed."""
        store = ClientStore(clients, int(saved["width"]), path)
        ids = saved["ids"]
        store.at[ids], store.sums[ids] = saved["at"], saved["sums"]
        try:
            store._open(new=False)
            store.end = os.fstat(store._file).st_size // (4 * store.width)
            if int(saved["at"].max()) >= store.end:
                raise OSError(errno.EIO, "it ends too early")
            for some in torch.split(ids, store.piece):
                found = torch.tensor([zlib.crc32(row) for row in store.read(some).numpy()])
                if not torch.equal(found, store.sums[some]):
                    raise ClientMemoryError(f"{path.name} is damaged: a row does not match its checksum")
        except OSError as error:
            raise ClientMemoryError(f"{path.name} cannot be read: {error}") from error
        free = torch.ones(min(store.end, 8 * clients), dtype=torch.bool)  # five of each are enough; the rest is left
        free[saved["at"][saved["at"] < len(free)]] = False
        store.left[-1] += torch.nonzero(free).flatten().tolist()  # the other checkpoint may point there
        return store

    def _take_places(self, n: int) -> list[int]:
        """Free places, in rising order, then new ones at the end."""
        self.free.sort()
        taken, self.free = self.free[:n], self.free[n:]
        first, self.end = self.end, self.end + n - len(taken)
        return [*taken, *range(first, self.end)]

    def _open(self, new: bool) -> None:
        if self.path:
            self._file = open_new(self.path) if new else open_regular(self.path, os.O_RDWR)
        else:
            self._file, name = tempfile.mkstemp(prefix="fedveca-")
            os.unlink(name)
        weakref.finalize(self, os.close, self._file)

    def _move_rows(self, move: Callable[[int, memoryview, int], int], rows: NDArray[np.float32], first: int) -> None:
        """Moves the rows from or to the places from `first` on, in as many calls as it takes."""
        try:
            if self._file == NOWHERE:
                self._open(new=True)
            left, at = rows.data.cast("B"), 4 * self.width * first
            while left:
                done = move(self._file, left, at)
                if done == 0:
                    raise OSError(errno.EIO, "the file of the clients' memory ends too early")
                left, at = left[done:], at + done
        except OSError as error:
            raise RowsError(error.errno, error.strerror) from error


def _find_stretches(place: Tensor, most: int) -> Iterator[tuple[int, int, int]]:
    """Stretches [a, b) of rising places that lie side by side, at most so many, and the first place of each."""
    breaks = (torch.nonzero(place.diff() != 1).flatten() + 1).tolist()
    for start, stop in zip([0, *breaks], [*breaks, len(place)], strict=True):
        for a in range(start, stop, most):
            yield a, min(a + most, stop), int(place[a])
