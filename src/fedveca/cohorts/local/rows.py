"""The clients' rows on one device, and the quickest way to each batch of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import tee
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedveca.tasks.datasets.dataset import UNIT, moments, read_channels
from fedveca.tasks.datasets.lazy import LazyRows

_AHEAD = 2  # steps whose rows are read while another one is computed
_READERS = 4  # threads that read ahead
_PIECE_BYTES = 2**22  # of prepared rows that are worked on at a time: they stay in a cache, and two threads rarely meet
_PIECE_ROWS = 64  # a piece has a multiple of these: a product with a vector rounds by the place of a row in its group
Feed = Callable[[Tensor], Iterator[tuple[Tensor, Tensor]]]  # row numbers [steps, n, B] -> the rows of each step


class StoredRows(NamedTuple):
    """Rows as they came, before they are prepared."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D, ...]
    scaling: tuple[Tensor, Tensor] | None  # what is taken from each row or channel, and what it is multiplied by then
    at: Tensor  # the numbers in x of the rows that were asked for


def make_client_rows(
    x: Tensor | LazyRows, y: Tensor, order: Tensor, pixels: str, device: torch.device
) -> ClientRows | LazyClientRows:
    """The rows `order` of x and y: in the device's memory, or read from where they lie."""
    if isinstance(x, LazyRows):
        return LazyClientRows(x, y, order, pixels, device)
    return ClientRows(x, y, order, pixels, device)


class ClientRows:
    """Stored as compactly as they came, prepared for the model when picked: bytes are quicker to fetch than floats."""

    feed: Feed | None = None  # a captured step picks its rows itself

    def __init__(self, x: Tensor, y: Tensor, order: Tensor, pixels: str, device: torch.device) -> None:
        self.x, self.y, self.device = _reorder(x, order).to(device), y[order].to(device), device
        self.numel = self.x[0].numel()  # of one row
        self.kind = torch.int64 if x.dtype == torch.int64 else torch.float32  # what a model takes
        self.unit = UNIT if pixels == "unit" else 1.0  # what a number of a row is multiplied by
        self._moments = None  # what to subtract from each row, and what to multiply it by then
        channels = read_channels(pixels)
        self._channels = channels.scaling(device) if channels else None  # the same of each channel of all rows
        self._buffers = threading.local()
        if pixels == "standardised":
            parts = [moments(part) for part in torch.split(self.x, 8192)]
            self._moments = torch.cat([shift for shift, _ in parts]), torch.cat([scale for _, scale in parts])

    def pick(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [n, B, ...] as float32 (tokens int64) and labels [n, B, ...]."""
        x, y = self._prepare(lambda v: v.index_select(0, index.flatten()))
        return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])

    def blocks(self, start: int, size: int, count: int, block: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`count` of the `size` rows from `start`, evenly spaced, `block` at a time; all are read where they lie.

        On the CPU, rows that have to be prepared are valid until the next block's.
        """
        for at in range(0, count, block):
            stop = min(at + block, count)
            if count < size:
                yield self.pick(start + torch.arange(at, stop, device=self.device) * size // count)
            elif self._is_ready or self.device.type != "cpu":
                yield self._prepare(lambda v, rows=slice(start + at, start + stop): v[rows])  # type: ignore[misc]
            else:
                ready = self._get_room(stop - at)
                for _ in self._prepare_pieces(start + at, ready):
                    pass
                yield ready, self.y[start + at : start + stop]

    def pieces(self, start: int, stop: int) -> Iterator[Tensor]:
        """The rows from `start` to `stop`, prepared, few enough at a time to stay in the cache; on the CPU.

        A piece is valid until the next one.
        """
        if self._is_ready:
            yield from torch.split(self.x[start:stop], self._piece)
            return
        ready = self._get_room(self._piece)
        for at in range(start, stop, self._piece):
            yield from self._prepare_pieces(at, ready[: stop - at])

    def stored(self, index: Iterable[Tensor]) -> Iterator[StoredRows]:
        """Where the rows of each tensor of row numbers lie: among all the others, which are in memory."""
        for at in index:
            yield StoredRows(self.x, self.y, self._moments or self._channels, at)

    @property
    def _is_ready(self) -> bool:
        """Whether a model takes the rows as they are stored."""
        return self.x.dtype == self.kind and self.unit == 1 and not (self._moments or self._channels)

    @cached_property
    def _piece(self) -> int:
        return _count_piece(self.numel)

    def _prepare_pieces(self, start: int, ready: Tensor) -> Iterator[Tensor]:
        """Prepares as many rows from `start` as `ready` has room for, there, while they are in the cache."""
        for at, piece in enumerate(torch.split(ready, self._piece)):
            rows = slice(start + at * self._piece, start + at * self._piece + len(piece))
            piece.copy_(self.x[rows])
            if self._moments:
                piece.sub_(self._moments[0][rows]).mul_(self._moments[1][rows])
            elif self._channels:
                piece.sub_(self._channels[0]).mul_(self._channels[1])
            elif self.unit != 1:
                piece.mul_(self.unit)
            yield piece

    def batches(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows [n, B] of each step of index [steps, n, B], on the CPU, yet to be multiplied by `unit`.

        Picked one step at a time into the same buffer, valid until the next step's: so they are still in the cache
        when the step reads them.
        """
        at, form = index.flatten(1), index.shape[1:]
        labels = self.y.index_select(0, at.flatten()).view(*index.shape, *self.y.shape[1:])
        raw, ready = self._get_buffers(at.shape[1])
        x = ready.view(*form, *ready.shape[1:])
        for rows, y in zip(at, labels, strict=True):
            torch.index_select(self.x, 0, rows, out=raw)
            if raw.dtype != ready.dtype:
                ready.copy_(raw)
            if self._moments:
                shift, scale = self._moments
                ready.sub_(shift.index_select(0, rows)).mul_(scale.index_select(0, rows))
            elif self._channels:
                ready.sub_(self._channels[0]).mul_(self._channels[1])
            yield x, y

    def _get_buffers(self, rows: int) -> tuple[Tensor, Tensor]:
        """This thread's buffers for rows as they are stored and as the model takes them; one if these have one dtype.

        New memory would cost more than what is written to it.
        """
        if len(getattr(self._buffers, "raw", ())) < rows:
            self._buffers.raw = self.x.new_empty(rows, *self.x.shape[1:])
            self._buffers.ready = self._buffers.raw.to(self.kind)
        return self._buffers.raw[:rows], self._buffers.ready[:rows]

    def _get_room(self, rows: int) -> Tensor:
        """This thread's room for prepared rows of a pass; it may be written to whether or not a gradient is wanted."""
        if len(getattr(self._buffers, "room", ())) < rows:
            with torch.inference_mode(False):
                self._buffers.room = torch.empty(rows, *self.x.shape[1:], dtype=self.kind)
        room: Tensor = self._buffers.room[:rows]
        return room

    def _prepare(self, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = pick(self.x)
        if self._moments:
            x = (x.float() - pick(self._moments[0])) * pick(self._moments[1])
        elif self._channels:
            x = (x.float() - self._channels[0]) * self._channels[1]
        elif self.unit != 1:
            x = x.float() * self.unit
        return x.to(self.kind), pick(self.y)


class LazyClientRows:
    """Rows that are read when they are needed, and while others are computed with; labels are in memory.

    A batch has the same bytes as that of `ClientRows`. What is held are the row numbers, and a few batches.
    """

    def __init__(self, x: LazyRows, y: Tensor, order: Tensor, pixels: str, device: torch.device) -> None:
        self.x, self.y, self.device = x[order], y[order].to(device), device
        self.numel = int(np.prod(x.shape[1:]))
        self.kind = torch.int64 if x.dtype == torch.int64 else torch.float32
        self.unit = UNIT if pixels == "unit" else 1.0
        self.standardised = pixels == "standardised"
        channels = read_channels(pixels)
        self._channels = channels.scaling(device) if channels else None

    def pick(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """As `ClientRows.pick`."""
        return next(self.feed(index[None]))

    def blocks(self, start: int, size: int, count: int, block: int) -> Iterator[tuple[Tensor, Tensor]]:
        """As `ClientRows.blocks`."""
        parts = torch.split(start + torch.arange(count) * size // count, block)
        for part, raw in zip(parts, self._read_ahead(parts), strict=True):
            yield self._prepare(raw), self.y.index_select(0, part.to(self.device))

    def pieces(self, start: int, stop: int) -> Iterator[Tensor]:
        """As `ClientRows.pieces`."""
        parts = torch.split(torch.arange(start, stop), _count_piece(self.numel))
        yield from map(self._prepare, self._read_ahead(parts))

    def feed(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The prepared rows and the labels of each step of index [steps, ...], on the device."""
        form = index.shape[1:]
        for at, raw in zip(index.flatten(1), self._read_ahead(index.flatten(1).cpu()), strict=True):
            x, y = self._prepare(raw), self.y.index_select(0, at.to(self.device))
            yield x.view(*form, *x.shape[1:]), y.view(*form, *y.shape[1:])

    def batches(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """As `ClientRows.batches`."""
        at, form = index.flatten(1), index.shape[1:]
        labels = self.y.index_select(0, at.flatten()).view(*index.shape, *self.y.shape[1:])
        for raw, y in zip(self._read_ahead(at), labels, strict=True):
            x = raw.to(self.kind)
            scaling = moments(raw) if self.standardised else self._channels
            if scaling:
                x.sub_(scaling[0]).mul_(scaling[1])
            yield x.view(*form, *x.shape[1:]), y

    def stored(self, index: Iterable[Tensor]) -> Iterator[StoredRows]:
        """As `ClientRows.stored`: only the rows that were asked for, one after another."""
        parts, ahead = tee(index)
        for at, raw in zip(parts, self._read_ahead(part.flatten() for part in ahead), strict=True):
            scaling = moments(raw) if self.standardised else self._channels
            yield StoredRows(raw, self.y.index_select(0, at.flatten()), scaling, torch.arange(len(raw)).view(at.shape))

    def _prepare(self, raw: Tensor) -> Tensor:
        x = raw.to(self.device)
        scaling = moments(x) if self.standardised else self._channels
        if scaling:
            x = (x.float() - scaling[0]) * scaling[1]
        elif self.unit != 1:
            x = x.float() * self.unit
        return x.to(self.kind)

    def _read_ahead(self, steps: Iterable[Tensor]) -> Iterator[Tensor]:
        """The rows of each step as they lie in their file; those of the next steps are read meanwhile."""
        waiting = deque[Future[Tensor]]()
        for rows in steps:
            waiting.append(self._readers.submit(self.x.read, rows))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_READERS, initializer=torch.set_num_threads, initargs=(1,))


def _count_piece(numel: int) -> int:
    """Rows of a piece, where a row has so many numbers."""
    return max(1, _PIECE_BYTES // (4 * numel * _PIECE_ROWS)) * _PIECE_ROWS


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Rows in `order`, in memory that NumPy allocates in large pages: rows picked at random miss fewer pages."""
    out = torch.from_numpy(np.empty((len(order), *x.shape[1:]), x.numpy().dtype))
    return torch.index_select(x, 0, order, out=out)
