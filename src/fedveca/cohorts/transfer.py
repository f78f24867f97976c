"""How vectors travel between server and clients: the setting `wire`, the same in a simulation and over nodes.

- float32, float16, bfloat16: every number by itself, down and up.
- int8, topk: up only, as `encodings` has them. The model goes down in float32, and the changes of running statistics
  (BatchNorm's), which are few, go up in float32.

With topk a client remembers, for each of its vectors by name, the part that it has not sent, and adds it to that
vector of its next round. So everything is sent sooner or later: what was sent and what is remembered add up to the
sum of the vectors.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Named, Order, Report
from fedveca.cohorts.answer_form import find_answer
from fedveca.cohorts.encodings import ArrayForm, Encoding, Int8Encoding, TopKEncoding
from fedveca.cohorts.flower.wire import DTYPES, narrow
from fedveca.cohorts.random import draw_fractions
from fedveca.errors import UserError, show_value

RESIDUAL = "residual/"  # how the names begin under which clients remember what they have not sent
_PURPOSE = 75  # of the draws, next to the vector's name


class VectorTransfer:
    """The form of vectors on their way."""

    def __init__(self, wire: str = "float32", share: float = 0.1, seed: int = 0) -> None:
        """Prepares the form of a run's vectors.

        Args:
            wire: "float32", "float16", "bfloat16", "int8" or "topk".
            share: With topk, the share of a vector's numbers that a client sends per round.
            seed: Of the draws with int8; they are a pure function of (seed, round, client, vector's name).
        """
        self.wire, self.seed = wire, seed
        self.encoding: Encoding | None = None
        if wire not in DTYPES:
            self.encoding = Int8Encoding() if wire == "int8" else TopKEncoding(share)
        self.down = "float32" if self.encoding else wire  # of the model, and of running statistics in both directions
        self.width: int = DTYPES[self.down].itemsize  # bytes of a number on its way down
        self.sent: Named = {}  # [n, ...] each: the arrays of the last call of `send`, for a node, which has one client
        self._lengths: dict[str, int] | None = None  # of the vectors that clients remember a part of

    def receive(self, order: Order) -> Order:
        """The order as clients have it."""
        if self.down == "float32":
            return order
        return Order(self._round(order.w), {name: self._round(v) for name, v in order.aux.items()})

    def make_memory(self, algorithm: Algorithm, order: Order) -> Named:
        """[P] each: what a client that was never seen remembers of vectors that it has not sent: zeros."""
        if self.encoding is None or not self.encoding.remembers:
            return {}
        if self._lengths is None:
            self._lengths = find_answer(algorithm, order).vectors
        return {RESIDUAL + name: order.w.new_zeros(length) for name, length in self._lengths.items()}

    def send(self, k: int, ids: Tensor, vectors: Named, recalled: Named) -> tuple[Named, Named]:
        """What clients send in round k.

        Args:
            k: The round.
            ids: [n] the clients, where the vectors are.
            vectors: [n, P] each; NaN arrives where a vector is not finite.
            recalled: What the clients remember, with the parts that they have not sent.

        Returns:
            The vectors [n, P] as the server takes them, and what the clients remember of them from now on.
        """
        if self.encoding is None:
            rounds = self.down != "float32"
            return {name: self._round(v) for name, v in vectors.items()} if rounds else vectors, {}
        arrived, residuals, sent = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for name, v in vectors.items():
            if name == STATISTICS:
                arrived[name] = sent[name] = v
                continue
            if "/" in name:
                raise UserError(
                    f"finish gives a vector called {show_value(name)}; wire={self.wire} allows no slash in it"
                )
            whole = v + recalled[RESIDUAL + name] if self.encoding.remembers else v
            draw = partial(draw_fractions, _PURPOSE + (zlib.crc32(name.encode()) << 8), self.seed, k, ids)
            arrays = self.encoding.encode(whole, draw)
            decoded = self.encoding.decode(arrays, v.shape[-1])
            arrived[name] = torch.where(torch.isfinite(whole.norm(dim=-1, keepdim=True)), decoded, torch.nan)
            if self.encoding.remembers:
                residuals[RESIDUAL + name] = whole - decoded
            sent |= {name + end: array for end, array in arrays.items()}
        self.sent = sent
        return arrived, residuals

    def pack(self, mean: Named) -> dict[str, NDArray[np.generic]]:
        """The arrays of a node's answer; `mean` is that of its one client, as a cohort reports it after `send`."""
        if self.encoding is None:
            return {name: narrow(v.cpu().numpy(), self.wire) for name, v in mean.items()}
        forms = self.find_forms({name: len(v) for name, v in mean.items()})
        return {name: self.sent[name][0].cpu().numpy().astype(form.dtype) for name, form in forms.items()}

    def find_forms(self, lengths: Mapping[str, int]) -> dict[str, ArrayForm]:
        """The arrays as which vectors of these lengths travel, by their names."""
        found = dict[str, ArrayForm]()
        for name, size in lengths.items():
            if self.encoding is None or name == STATISTICS:
                found[name] = ArrayForm(DTYPES[self.down], size)
            else:
                found |= {name + end: form for end, form in self.encoding.find_forms(size).items()}
        return found

    def count_bytes(self, lengths: Mapping[str, int]) -> int:
        """Bytes of one client's vectors of these lengths on their way up: numbers, scales and indices."""
        return sum(form.dtype.itemsize * form.length for form in self.find_forms(lengths).values())

    def label(self, report: Report) -> Report:
        """The report with the bytes of its vectors."""
        if self.wire == "float32":
            return report
        payload = self.count_bytes({name: v.numel() for name, v in report.mean.items()})
        return report._replace(width=self.width, payload=payload)

    def _round(self, v: Tensor) -> Tensor:
        return v.to(torch.float16 if self.down == "float16" else torch.bfloat16).to(v.dtype)


PLAIN = VectorTransfer()
