"""The clients' rows on one device, and the quickest way to each batch of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedveca.tasks.datasets.dataset import UNIT, moments, read_channels


class ClientRows:
    """Stored as compactly as they came, prepared for the model when picked: bytes are quicker to fetch than floats."""

    def __init__(self, x: Tensor, y: Tensor, order: Tensor, pixels: str, device: torch.device) -> None:
        self.x, self.y = _reorder(x, order).to(device), y[order].to(device)
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

    def read(self, at: int, stop: int) -> tuple[Tensor, Tensor]:
        """Rows that lie side by side."""
        return self._prepare(lambda v: v[at:stop])

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

    def _prepare(self, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = pick(self.x)
        if self._moments:
            x = (x.float() - pick(self._moments[0])) * pick(self._moments[1])
        elif self._channels:
            x = (x.float() - self._channels[0]) * self._channels[1]
        elif self.unit != 1:
            x = x.float() * self.unit
        return x.to(self.kind), pick(self.y)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Rows in `order`, in memory that NumPy allocates in large pages: rows picked at random miss fewer pages."""
    out = torch.from_numpy(np.empty((len(order), *x.shape[1:]), x.numpy().dtype))
    return torch.index_select(x, 0, order, out=out)
