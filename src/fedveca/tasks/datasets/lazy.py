"""Rows that are read when a step needs them, for data that do not fit in memory.

A file is read by position (pread), not mapped: what was read does not stay in the process's memory, and a file that has
become shorter is an error with a sentence, not the end of the process.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from typing import Any, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from fedveca.errors import UserError, explain_error, printable, show_value
from fedveca.tasks.datasets.archives import quote_error
from fedveca.tasks.datasets.arrays import to_signed, to_tensor

_HASHED = 64  # rows that stand for all, where rows are to be recognised


class RowReader(Protocol):
    """Where rows lie; any thread may read."""

    shape: tuple[int, ...]  # [D, ...]
    dtype: torch.dtype  # of the rows as they come
    fixed: bool  # whether a row is the same each time it is read

    def read(self, index: Tensor) -> Tensor:
        """The rows index [n], [n, ...] on the CPU, in memory of their own."""
        ...


class LazyRows:
    """Rows [D, ...] that stay where they are until they are read; the first axis is indexed like a tensor's."""

    def __init__(self, reader: RowReader, dtype: torch.dtype, said: str, index: Tensor | None = None) -> None:
        """Takes rows of a reader.

        Args:
            reader: Where they lie.
            dtype: What they are converted to: uint8 for images, int64 for tokens, float32 for the rest.
            said: What an error calls them.
            index: Which of the reader's rows these are, [D]; None takes all.
        """
        self.reader, self.dtype, self.said, self.index = reader, dtype, said, index

    def __len__(self) -> int:
        return self.reader.shape[0] if self.index is None else len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.reader.shape[1:])

    def dim(self) -> int:
        return len(self.reader.shape)

    @overload
    def __getitem__(self, at: int) -> Tensor: ...
    @overload
    def __getitem__(self, at: slice | Tensor) -> LazyRows: ...
    def __getitem__(self, at: int | slice | Tensor) -> Tensor | LazyRows:
        """One row is read; several are chosen, and read later."""
        if isinstance(at, int):
            return self.read(torch.arange(len(self))[at : at + 1 or None])[0]
        mine = torch.arange(len(self)) if self.index is None else self.index
        return LazyRows(self.reader, self.dtype, self.said, mine[at])

    def cast(self, dtype: torch.dtype) -> LazyRows:
        """The same rows, converted to another type when they are read."""
        return LazyRows(self.reader, dtype, self.said, self.index)

    def read(self, index: Tensor) -> Tensor:
        """The rows index [n], [n, ...]; UserError where one is not finite, or a token is below 0."""
        at = index if self.index is None else self.index[index]
        rows = self.reader.read(at).to(self.dtype)
        if self.dtype.is_floating_point and not bool(torch.isfinite(rows).all()):
            bad = ~torch.isfinite(rows).flatten(1).all(1)
            raise UserError(f"{self.said} is not finite in row {int(at[bad][0])}")
        if self.dtype == torch.int64 and bool((rows < 0).any()):
            bad = (rows < 0).flatten(1).any(1)
            raise UserError(f"{self.said} holds a number below 0 in row {int(at[bad][0])}; tokens are from 0 up")
        return rows

    def identify(self) -> bytes:
        """A hash of some of the rows, evenly spaced; of none where they may differ each time."""
        found = hashlib.sha256()
        if self.reader.fixed and len(self):
            some = torch.arange(min(_HASHED, len(self))) * len(self) // min(_HASHED, len(self))
            found.update(self.read(some).contiguous().flatten().view(torch.uint8).numpy().data)
        return found.digest()


def take_first(x: Tensor | LazyRows, most: int = 256) -> Tensor:
    """Rows in memory as they are; of others the first, to try something on."""
    return x if isinstance(x, Tensor) else x.read(torch.arange(min(most, len(x))))


class FileReader:
    """Rows of numbers that lie one after another in a file."""

    fixed = True

    def __init__(self, path: str, offset: int, kind: str, shape: tuple[int, ...]) -> None:
        """Opens the file, in every process that this object is sent to.

        Args:
            path: The file, absolute.
            offset: Bytes before the first row.
            kind: NumPy's text for the type of a number, with its byte order.
            shape: [D, ...].
        """
        self.path, self.offset, self.kind, self.shape = path, offset, kind, shape
        self.row = np.dtype((np.dtype(kind), shape[1:])).itemsize  # bytes
        self.dtype = to_signed(np.empty(0, np.dtype(kind).newbyteorder("=")), "").dtype
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise UserError(f"{printable(path, 400)} cannot be read: {error.strerror or error}") from error
        weakref.finalize(self, os.close, self._file)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[FileReader], tuple[str, int, str, tuple[int, ...]]]:
        return FileReader, (self.path, self.offset, self.kind, self.shape)

    def read(self, index: Tensor) -> Tensor:
        """Rows that follow one another in the file are read at once."""
        at = index.numpy()
        out = np.empty((len(at), *self.shape[1:]), self.kind)
        room = out.reshape(-1).view(np.uint8).data
        ends = [*(np.flatnonzero(np.diff(at) != 1) + 1).tolist(), len(at)] if len(at) else []
        first = 0
        for end in ends:
            self._fill(room[first * self.row : end * self.row], self.offset + int(at[first]) * self.row)
            first = end
        return to_signed(out.astype(out.dtype.newbyteorder("="), copy=False), printable(self.path, 400))

    def _fill(self, room: memoryview, at: int) -> None:
        while len(room):
            got = self._read_some(room, at)
            if not got:
                raise UserError(f"{printable(self.path, 400)} has become shorter: it ends before byte {at + len(room)}")
            room, at = room[got:], at + got

    def _read_some(self, room: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file, [room], at)
        with self._lock:  # Windows has no read by position
            os.lseek(self._file, at, os.SEEK_SET)
            content = os.read(self._file, len(room))
        room[: len(content)] = content
        return len(content)


class ItemReader:
    """The x of a map-style data set of pairs (x, y); its `__getitem__` is called once per row and read, never twice at
    the same time."""

    fixed = False

    def __init__(self, dataset: Any, said: str) -> None:
        self.dataset, self.said, self._lock = dataset, f"{said} ({type(dataset).__name__})", threading.Lock()
        try:
            rows = len(dataset)
        except TypeError as error:
            raise UserError(f"{self.said} cannot be counted and indexed: {quote_error(error)}") from error
        if not rows:
            raise UserError(f"{said} has no rows")
        first = self._read_pair(0)[0]
        self.shape, self.dtype = (rows, *first.shape), first.dtype

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def read(self, index: Tensor) -> Tensor:
        rows = []
        with self._lock:
            for i in index.tolist():
                row = self._read_pair(i)[0]
                if row.shape != self.shape[1:] or row.dtype != self.dtype:
                    raise UserError(
                        f"{self.said}: x of row {i} is {row.dtype} {list(row.shape)}, "
                        f"of row 0 {self.dtype} {list(self.shape[1:])}"
                    )
                rows.append(row)
        return torch.stack(rows) if rows else torch.empty((0, *self.shape[1:]), dtype=self.dtype)

    def read_targets(self) -> Tensor:
        """The y of all rows; x is read with it, and dropped."""
        found = [to_tensor(self._read_pair(i)[1], f"{self.said}: y of row {i}") for i in range(self.shape[0])]
        for i, y in enumerate(found):
            if y.shape != found[0].shape:
                raise UserError(
                    f"{self.said}: y of row {i} has the shape {list(y.shape)}, of row 0 {list(found[0].shape)}"
                )
        return torch.stack(found)

    def _read_pair(self, i: int) -> tuple[Tensor, Any]:
        try:
            item = self.dataset[i]
        except TypeError as error:
            raise UserError(f"{self.said} cannot be counted and indexed: {quote_error(error)}") from error
        except Exception as error:
            raise UserError(f"{self.said} fails at row {i}: {quote_error(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{self.said} gives {type(item).__name__} for a row; it must give pairs (x, y)")
        return to_tensor(item[0], f"{self.said}: x of row {i}"), item[1]


def load_file(values: Any, said: str) -> Any:
    """What an .npy file holds, mapped, where `values` is its path; else `values` as they are."""
    if not isinstance(values, str | os.PathLike):
        return values
    try:
        return np.load(values, mmap_mode="r")
    except Exception as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else explain_error(error)
        raise UserError(f"{said}={show_value(os.fspath(values))} is not an .npy file of numbers: {why}") from error


def open_array_file(values: Any, said: str) -> FileReader:
    """The file of an array that is mapped from one, or of an .npy file's path."""
    array = load_file(values, said)
    if not isinstance(array, np.memmap) or array.filename is None:
        kind = type(values).__name__
        raise UserError(f"{said} is {kind}, and lazy=True reads from a file: give the path of an .npy file or a memmap")
    if array.dtype.kind not in "buif":
        raise UserError(f"{said} holds {array.dtype}, not numbers")
    if not array.flags.c_contiguous:
        raise UserError(
            f"{said} does not lie row by row in its file; np.save(path, np.ascontiguousarray(x)) writes it so"
        )
    root = array
    while isinstance(root.base, np.memmap):  # of a part of the file
        root = root.base
    offset = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return FileReader(os.path.abspath(array.filename), offset, array.dtype.str, array.shape)
