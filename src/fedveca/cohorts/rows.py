"""The clients' rows on one device, and the quickest way to each batch of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedveca.tasks.data import moments, prepare


class Rows:
    """On the CPU ready for the model, once; on CUDA as compact as they came, made ready as they are picked."""

    def __init__(self, x: Tensor, y: Tensor, order: Tensor, pixels: str, device: torch.device) -> None:
        on_cpu = device.type == "cpu"
        self.x, self.y = _laid(x, order, pixels) if on_cpu else x[order].to(device), y[order].to(device)
        self.numel = self.x[0].numel()  # of one row
        self._moments = None  # what to take from each row, and what to multiply it by then
        self._own = threading.local()
        if not on_cpu and pixels != "as-is":
            parts = [moments(part, pixels) for part in torch.split(self.x, 8192)]
            self._moments = torch.cat([shift for shift, _ in parts]), torch.cat([scale for _, scale in parts])

    def pick(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [n, B, ...] as float32 (tokens int64) and labels [n, B, ...]."""
        x, y = self._ready(lambda v: v.index_select(0, index.flatten()))
        return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])

    def read(self, at: int, stop: int) -> tuple[Tensor, Tensor]:
        """Rows that lie side by side."""
        return self._ready(lambda v: v[at:stop])

    def batches(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows [n, B] of each step of index [steps, n, B], on the CPU, good until the next are asked for.

        Picked one step at a time into the same place: so they are still in the cache when the step reads them.
        """
        at, form = index.flatten(1), index.shape[1:]
        labels = self.y.index_select(0, at.flatten()).view(*index.shape, *self.y.shape[1:])
        room = self._room(at.shape[1])
        x = room.view(*form, *room.shape[1:])
        for rows, y in zip(at, labels, strict=True):
            torch.index_select(self.x, 0, rows, out=room)
            yield x, y

    def _room(self, rows: int) -> Tensor:
        """This thread's place for rows: fresh memory would cost more than what is laid there."""
        if getattr(self._own, "room", None) is None or len(self._own.room) < rows:
            self._own.room = torch.empty(rows, *self.x.shape[1:], dtype=self.x.dtype)
        room: Tensor = self._own.room[:rows]
        return room

    def _ready(self, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = pick(self.x)
        if self._moments:
            x = (x.float() - pick(self._moments[0])) * pick(self._moments[1])
        return x if x.dtype == torch.int64 else x.float(), pick(self.y)


def _laid(x: Tensor, order: Tensor, pixels: str) -> Tensor:
    """Rows in `order`, ready for the model, piece by piece: beside x nothing else lies in memory as large.

    NumPy asks large pages for it: rows picked at random miss fewer.
    """
    kind = np.int64 if x.dtype == torch.int64 else np.float32
    out = torch.from_numpy(np.empty((len(order), *x.shape[1:]), kind))
    for piece, room in zip(torch.split(order, 8192), torch.split(out, 8192), strict=True):
        room.copy_(prepare(x[piece], pixels))
    return out
