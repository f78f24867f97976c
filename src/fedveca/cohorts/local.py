"""Clients in this process: all local steps of a round, many clients at once. The one clever file.

Clients are sorted by tau and dealt into chunks. Those of a chunk step together as one batch and leave it
when their steps are done, so a round costs the steps taken and memory is bounded by a chunk. A problem of
small layers or in closed form fills a chunk with many clients; a convolutional one has one client a chunk
and one thread a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedveca.algorithms.contract import Algorithm, Named, Order, Report
from fedveca.cohorts.draws import rows as draw_rows
from fedveca.cohorts.team import Team
from fedveca.tasks.data import prepare
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem

CHUNK_BYTES = 128 * 2**20  # of batch rows or of parameters that one chunk may hold
THREAD_FLOATS = 2**20  # inputs of one step of all clients that make a second thread worth its while
SMALL = 256  # clients of at most so many probe rows are probed side by side


class Part(NamedTuple):
    """What a group of clients adds to the round."""

    total: Named  # [P] each: sum of D_i v_i over the clients that are well
    each: Named  # [n] each, "well" among them
    memory: Named  # [n, P] each


class Local:
    """The clients of `shares`, stepping on one device."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        x: Tensor,
        y: Tensor,
        shares: Shares,
        *,
        batch: int,
        seed: int = 0,
        probe: int = 1024,
        loss: bool = True,
        after: bool = False,
        pixels: str = "as-is",
        device: str = "cpu",
        lanes: int = 0,
        threads: int = 0,
    ) -> None:
        self.algorithm, self.problem, self.batch, self.seed = algorithm, problem, batch, seed
        self.probe = probe  # rows for F_i(w_k) and its gradient; 0 = all
        self.loss = loss  # whether F_i(w_k) is wanted of a method that does not need its gradient
        self.after = after  # whether F_i after the client's steps is wanted (A2.9)
        self.device = torch.device(device)
        self.sizes = shares.sizes  # [N] D_i
        x, y = x[shares.rows], y[shares.rows]  # a client's rows lie side by side
        if self.device.type == "cpu":
            x, pixels = prepare(x, pixels), "as-is"  # once: here memory is cheaper than time
        self.x, self.y, self.pixels = x.to(self.device), y.to(self.device), pixels
        self._start, self._sizes = shares.start.to(self.device), self.sizes.to(self.device)
        self.memory: dict[int, Named] = {}  # of the clients that were ever seen
        need = max(4 * batch * self.x[0].numel(), 4 * problem.size)
        self.lanes = lanes or (max(1, CHUNK_BYTES // need) if problem.mapped else 1)
        self.team = Team(threads or (0 if device == "cpu" else 1))
        self.block = 8192 if problem.mapped or device != "cpu" else 250  # rows of one probe pass

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who answered and what; a client whose numbers are not finite does not. tau = 0 only evaluates."""
        by_tau = torch.argsort(tau, descending=True, stable=True)
        chunks = by_tau.tensor_split(self._cuts(len(ids)))
        parts = self.team.map(lambda c: self._chunk(k, order, ids[c], tau[c]), chunks)
        gathered = _gather(self._kept(part, ids[c]) for part, c in zip(parts, chunks, strict=True))
        each = {name: v.double().cpu()[torch.argsort(by_tau)] for name, v in gathered.each.items()}
        well = each.pop("well") > 0
        each = {name: v[well] for name, v in each.items()} | {"tau": tau[well].double()}
        mass = float(self.sizes[ids[well]].sum())
        mean = {name: v / mass for name, v in gathered.total.items()} if mass else {}
        return ids[well], Report(mean, each, mass / float(self.sizes.sum()))

    def _cuts(self, n: int) -> list[int]:
        """Where chunks end: small enough for memory, and one a worker where the work is worth a thread."""
        lanes = self.lanes
        if n * self.batch * self.x[0].numel() > THREAD_FLOATS:
            lanes = min(lanes, -(-n // self.team.size))
        return list(range(lanes, n, lanes))

    def _kept(self, part: Part, ids: Tensor) -> Part:
        """Stores the memory of the clients that are well."""
        if part.memory:
            for j, (i, well) in enumerate(zip(ids.tolist(), part.each["well"].tolist(), strict=True)):
                if well:
                    self.memory[i] = {name: v[j] for name, v in part.memory.items()}
        return part

    def _chunk(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> Part:
        """start, step x tau, finish, for clients in falling order of tau."""
        here, steps = ids.to(self.device), tau.tolist()
        w = order.w.expand(len(ids), -1)  # [n, P]
        loss, g0 = self._probe(w, here, self.loss, self.algorithm.needs_gradient and steps[0] > 0)
        if steps[0] == 0:
            return Part({}, {"loss": loss, "well": torch.isfinite(loss)}, {})
        s = self.algorithm.start(order, self._recall(ids, order.w), g0)
        batches = draw_rows(self.seed, k, here, self._sizes[here], steps[0], self.batch)
        batches += self._start[here][:, None, None]  # [n, tau, B]
        done = []
        for t in range(steps[0] + 1):
            going = sum(tau_i > t for tau_i in steps)
            if going < len(w):
                rest = slice(going, len(w))
                done.append(self._finish(order, s, w, here, tau, loss, rest))
                w, s = tree_map(lambda v, going=going: v[:going], (w, s))
            if going:
                x, y = self._rows(batches[:going, t])
                w, s = self.algorithm.step(order, s, w, self.problem.gradients(w, x, y)[1])
        return _gather(reversed(done))

    def _finish(
        self, order: Order, s: Any, w: Tensor, here: Tensor, tau: Tensor, loss: Tensor, rest: slice
    ) -> Part:
        """The clients of `rest` have taken their tau steps."""
        w, s = tree_map(lambda v: v[rest], (w, s))
        here, taken = here[rest], tau[rest, None].to(w)  # [n, 1]
        vectors, each, memory = self.algorithm.finish(order, s, w, taken)
        each = {name: v[:, 0] for name, v in each.items()} | ({"loss": loss[rest]} if self.loss or self.algorithm.needs_gradient else {})
        if self.after:
            each = each | {"after": self._probe(w, here, True, False)[0]}
        well = torch.isfinite(w.norm(dim=-1))
        for number in each.values():
            well &= torch.isfinite(number)
        for vector in (*vectors.values(), *memory.values()):
            well &= torch.isfinite(vector.norm(dim=-1))
        weight = (self._sizes[here] * well).to(w)
        total = {name: weight @ torch.where(well[:, None], v, 0.0) for name, v in vectors.items()}
        return Part(total, each | {"well": well}, memory)

    def _rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [n, B] ready for the model."""
        x = self.x.index_select(0, index.flatten())
        y = self.y.index_select(0, index.flatten())
        return prepare(x, self.pixels).view(*index.shape, *x.shape[1:]), y.view(index.shape)

    def _recall(self, ids: Tensor, w: Tensor) -> Named:
        """[n, P] each: what the clients remember."""
        new = self.algorithm.memory(w)
        each = [self.memory.get(i, new) for i in ids.tolist()] if new else []
        return {name: torch.stack([m[name] for m in each]) for name in new}

    def _probe(self, w: Tensor, here: Tensor, loss: bool, gradient: bool) -> tuple[Tensor, Tensor]:
        """F_i [n] and grad F_i [n, P] at w [n, P] on `probe` rows of each client, evenly spaced; NaN if not asked.

        The same rows every round, so that losses and gradients of different rounds compare.
        """
        unknown = torch.full_like(w[:, :1], torch.nan)
        if not (loss or gradient):
            return unknown[:, 0], unknown.expand_as(w)
        sizes = self._sizes[here].tolist()
        counts = [min(self.probe, size) if self.probe else size for size in sizes]
        if len(here) > 1 and max(counts) <= SMALL:
            F, g = self._probe_together(w, here, counts)
        else:
            alone = [
                self._probe_alone(w[j], int(self._start[i]), sizes[j], counts[j], gradient)
                for j, i in enumerate(here.tolist())
            ]
            F, g = torch.stack([a[0] for a in alone]), torch.stack([a[1] for a in alone])
        return F, g if gradient else unknown.expand_as(w)

    def _probe_together(self, w: Tensor, here: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Many small clients in one batch, padded with rows of weight 0."""
        count = torch.tensor(counts, device=self.device)[:, None]
        j = torch.arange(max(counts), device=self.device)
        index = (j * self._sizes[here][:, None]).div(count, rounding_mode="floor")
        weight = (j < count).float() / count
        x, y = self._rows(self._start[here][:, None] + torch.where(j < count, index, 0))
        return self.problem.gradients(w, x, y, weight)

    def _probe_alone(self, w: Tensor, start: int, size: int, count: int, gradient: bool) -> tuple[Tensor, Tensor]:
        """One client, block by block; all its rows are read where they lie."""
        F, g = torch.zeros_like(w[0]), torch.zeros_like(w) if gradient else w
        for at in range(0, count, self.block):
            stop = min(at + self.block, count)
            if count == size:
                x, y = prepare(self.x[start + at : start + stop], self.pixels), self.y[start + at : start + stop]
            else:
                x, y = self._rows(start + torch.arange(at, stop, device=self.device) * size // count)
            share = (stop - at) / count
            if gradient:
                F_block, g_block = self.problem.gradients(w[None], x[None], y[None])
                F, g = F + share * F_block[0], g + share * g_block[0]
            else:
                F = F + share * self.problem.losses(w, x, y)[0]
        return F, g


def _gather(parts: Iterable[Part]) -> Part:
    """Sums the totals in a fixed order and sets the numbers and memories end to end."""
    total: Named = {}
    rest = []
    for part in parts:
        for name, v in part.total.items():
            total[name] = total[name] + v if name in total else v
        rest.append(part)
    each = {name: torch.cat([part.each[name] for part in rest]) for name in rest[0].each}
    memory = {name: torch.cat([part.memory[name] for part in rest]) for name in rest[0].memory}
    return Part(total, each, memory)
