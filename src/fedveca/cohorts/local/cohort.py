"""Clients in this process: all local steps of a round, many clients at once. The one clever file.

Clients are sorted by tau and dealt into chunks. Those of a chunk step together as one batch and leave it
when their steps are done, so a round costs the steps taken and memory is bounded by a chunk. A problem of
small layers or in closed form fills a chunk with many clients; a convolutional one has one client a chunk
and one thread a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedveca.algorithms.contract import Algorithm, Named, Norms, Order, Report
from fedveca.cohorts.aggregate import AggregationRule, Aggregator, Mean, Piece
from fedveca.cohorts.client_memory import LIMIT, ClientMemory
from fedveca.cohorts.local.cuda_graphs import Lanes, tensor_cores
from fedveca.cohorts.local.rows import Rows
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.cohorts.random import draw_rows
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem

CHUNK_BYTES = 4 * 2**20  # of batch rows or of parameters in one chunk: what a core's cache holds
CUDA_CHUNK_BYTES = 512 * 2**20
THREAD_FLOATS = 2**20  # inputs of one step of all clients that make a second thread worth its while
STREAMS = 16  # clients side by side on a CUDA device
DRAWN = 2**22  # row numbers drawn at a time: a client's steps may be too many to draw at once
SMALL = 256  # clients of at most so many probe rows are probed side by side

# (k, ids [n], vectors [n, P] each, numbers [n] each) -> vectors and numbers as the clients send them
Send = Callable[[int, Tensor, Named, Named], tuple[Named, Named]]


class Crew(NamedTuple):
    """Clients of one chunk."""

    ids: Tensor  # [n] on the host
    tau: Tensor  # [n] on the host
    table: Tensor  # [4, n] on the device: id, first row, rows, tau

    @staticmethod
    def of(ids: Tensor, tau: Tensor, start: Tensor, device: torch.device) -> Crew:
        return Crew(ids, tau, torch.stack([ids, start[ids], start[ids + 1] - start[ids], tau]).to(device))

    def cut(self, width: int) -> list[Crew]:
        """Pieces of at most `width` clients."""
        pieces = (slice(at, at + width) for at in range(0, len(self.ids), width))
        return [Crew(self.ids[piece], self.tau[piece], self.table[:, piece]) for piece in pieces]


class Drawn:
    """The rows that a chunk's clients step on, drawn at once where they are few, else a block of steps at a time."""

    def __init__(self, seed: int, k: int, crew: Crew, batch: int) -> None:
        self.seed, self.k, self.crew, self.batch = seed, k, crew, batch
        self.steps, most = max(1, DRAWN // (len(crew.ids) * batch)), int(crew.tau[0])
        self.all = self._draw(len(crew.ids), 0, most) if most <= self.steps else None

    def __call__(self, n: int, at: int, until: int) -> Iterator[Tensor]:
        """[n, steps, B] of the first n clients, blocks of the steps from `at` to `until`."""
        if self.all is not None:
            yield self.all[:n, at:until]
            return
        for first in range(at, until, self.steps):
            yield self._draw(n, first, min(self.steps, until - first))

    def _draw(self, n: int, first: int, steps: int) -> Tensor:
        here, start, size, _ = self.crew.table[:, :n]
        index = draw_rows(self.seed, self.k, here, size, steps, self.batch, first)
        return index.add_(start[:, None, None])


class Part(NamedTuple):
    """What a chunk adds to the round."""

    piece: Piece | None  # of the clients' vectors
    each: Named  # [n] each, "well" among them
    norms: Tensor  # [vectors, n]
    memory: Named  # [n, P] each


class LocalCohort:
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
        aggregate: AggregationRule = Mean,
        send: Send | None = None,
        even: bool = False,
        memory_bytes: int = LIMIT,
    ) -> None:
        self.algorithm, self.problem, self.batch, self.seed = algorithm, problem, batch, seed
        self.probe = probe  # rows for F_i(w_k) and its gradient; 0 = all
        self.loss = loss  # whether F_i(w_k) is wanted of a method that does not need its gradient
        self.after = after  # whether F_i after the client's steps is wanted (A2.9)
        self.device = torch.device(device)
        self.sizes = shares.sizes  # [N] D_i
        self.aggregate, self.send, self.even = aggregate, send, even  # even: every client counts the same
        self.weights = torch.ones_like(self.sizes) if even else self.sizes  # [N]
        self.whole = float(self.weights.sum())
        self.rows = Rows(x, problem.targets(y), shares.rows, pixels, self.device)  # a client's lie side by side
        self.start = shares.start  # [N + 1] first row of each client
        self.memory = ClientMemory(len(self.sizes), memory_bytes)  # of the clients that were ever seen
        need = max(4 * batch * self.rows.numel, 4 * problem.size)
        self.lanes = lanes or (max(1, CHUNK_BYTES // need) if problem.mapped else 1)
        self.team, self._lanes = ThreadPool(threads), None
        if self.device.type == "cuda":
            self.lanes, self.team = lanes or max(1, CUDA_CHUNK_BYTES // need), ThreadPool(1)
            self._lanes = Lanes(threads or STREAMS, algorithm, problem, self.rows.pick)
        self.block = 8192 if problem.mapped or device != "cpu" else 250  # rows of one probe pass

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who answered and what; a client whose numbers are not finite does not. tau = 0 only evaluates."""
        by_tau = torch.argsort(tau, descending=True, stable=True)
        crew = Crew.of(ids[by_tau], tau[by_tau], self.start, self.device)
        aggregator = self.aggregate()
        parts = []
        with tensor_cores(self.device):
            work, crews = partial(self._chunk, k, order, aggregator), crew.cut(self._width(len(ids)))
            for some, part in zip(crews, self.team.map(work, crews), strict=True):
                if part.piece:
                    aggregator.add(part.piece)  # in a fixed order
                self._remember(some.ids, part)
                parts.append(part._replace(piece=None, memory={}))  # vectors go as soon as they are summed
        each = {name: torch.cat([part.each[name] for part in parts]).double().cpu() for name in parts[0].each}
        back = torch.argsort(by_tau)
        well = each.pop("well")[back] > 0
        who, each = ids[well], aggregator.numbers({name: v[back][well] for name, v in each.items()})
        mass = float(self.weights[who].sum())
        norms = Norms(crew.ids, torch.cat([part.norms for part in parts], 1))
        each |= {"tau": tau[well].double()}
        return who, Report(aggregator.close(mass), each, mass / self.whole, norms=norms)

    def _width(self, n: int) -> int:
        """Clients of a chunk: few enough for memory, and a chunk for each worker where the work is worth it."""
        worth = n * self.batch * self.rows.numel > THREAD_FLOATS
        return min(self.lanes, -(-n // self.team.size)) if worth else self.lanes

    def _chunk(self, k: int, order: Order, aggregator: Aggregator, crew: Crew) -> Part:
        """start, step x tau, finish, for clients in falling order of tau."""
        algorithm = self.algorithm
        w = order.w.expand(len(crew.ids), -1)  # [n, P]
        most = int(crew.tau[0])
        loss, g0 = self._probe(w, crew, self.loss, algorithm.needs_gradient and most > 0)
        if most == 0:
            return self._sent(k, aggregator, crew, [], {}, {"loss": loss}, {})
        here, start, size, taken = crew.table
        former = self.memory.recall(crew.ids, algorithm.memory(order.w))
        s = algorithm.start(order, former, g0)
        if self._lanes:
            index = draw_rows(self.seed, k, here, size, most, self.batch) + start[:, None, None]  # [n, tau, B]
            w, s = self._lanes.walk(order, s, index, crew.tau.tolist())
        else:
            with torch.inference_mode(not self.problem.autograd):  # each operation is cheaper there
                w, s = self._walk(k, order, s, w, crew)
        vectors, each, memory = algorithm.finish(order, s, w, taken[:, None].to(w.dtype))
        each = {name: v[:, 0] for name, v in each.items()}
        if self.loss or algorithm.needs_gradient:
            each["loss"] = loss
        if self.after:
            each["after"] = self._probe(w, crew, True, False)[0]
        own = [v.norm(dim=-1) for v in (w, *memory.values())]
        if self.send:
            sound = torch.isfinite(torch.stack(own)).all(0)[:, None]
            memory, own = {name: torch.where(sound, v, former[name]) for name, v in memory.items()}, []
        return self._sent(k, aggregator, crew, own, vectors, each, memory)

    def _sent(
        self,
        k: int,
        aggregator: Aggregator,
        crew: Crew,
        own: list[Tensor],
        vectors: Named,
        each: Named,
        memory: Named,
    ) -> Part:
        """What reaches the server: a client is well if all it sent, and its `own` numbers [n], are finite."""
        if self.send:
            vectors, each = self.send(k, crew.ids, vectors, each)
        told = torch.stack([*own, *(v.norm(dim=-1) for v in vectors.values()), *each.values()])
        well, norms = torch.isfinite(told).all(0), told[len(own) : len(own) + len(vectors)]
        weight = well if self.even else crew.table[2] * well
        vectors = {name: torch.where(well[:, None], v, 0.0) for name, v in vectors.items()}
        dtype = next((v.dtype for v in vectors.values()), torch.float32)
        return Part(aggregator.part(weight.to(dtype), vectors), each | {"well": well}, norms, memory)

    def _walk(self, k: int, order: Order, s: Any, w: Tensor, crew: Crew) -> tuple[Tensor, Any]:
        """All clients of a chunk step together; those that are done leave."""
        done, at, tau, drawn = [], 0, crew.tau.tolist(), Drawn(self.seed, k, crew, self.batch)
        for until in sorted(set(tau)):
            n = sum(tau_i >= until for tau_i in tau)
            if n < len(w):
                done.append(tree_map(lambda v, n=n: v[n:], (w, s)))
                w, s = tree_map(lambda v, n=n: v[:n], (w, s))
            for index in drawn(n, at, until):
                for x, y in self.rows.batches(index.transpose(0, 1)):
                    w, s = self.algorithm.step(order, s, w, self.problem.slope(w, x, y, self.rows.unit))
            at = until
        if not done:
            return w, s
        out: tuple[Tensor, Any] = tree_map(lambda *parts: torch.cat(parts), (w, s), *reversed(done))
        return out

    def _remember(self, ids: Tensor, part: Part) -> None:
        """Stores the memory of the clients that are well."""
        if part.memory:
            well = part.each["well"]
            self.memory.remember(ids[well.cpu()], {name: v[well] for name, v in part.memory.items()})

    def _probe(self, w: Tensor, crew: Crew, loss: bool, gradient: bool) -> tuple[Tensor, Tensor]:
        """F_i [n] and grad F_i [n, P] at w [n, P] on `probe` rows of each client, evenly spaced; NaN if not asked.

        The same rows every round, so that losses and gradients of different rounds compare.
        """
        unknown = torch.full_like(w[:, :1], torch.nan)
        if not (loss or gradient):
            return unknown[:, 0], unknown.expand_as(w)
        sizes, starts = self.sizes[crew.ids].tolist(), self.start[crew.ids].tolist()
        counts = [min(self.probe, size) if self.probe else size for size in sizes]
        if len(counts) > 1 and max(counts) <= SMALL:
            F, g = self._probe_together(w, crew, counts)
        else:
            alone = [self._probe_alone(*job, gradient) for job in zip(w, starts, sizes, counts, strict=True)]
            F, g = torch.stack([a[0] for a in alone]), torch.stack([a[1] for a in alone])
        return F, g if gradient else unknown.expand_as(w)

    def _probe_together(self, w: Tensor, crew: Crew, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Many small clients in one batch, padded with rows of weight 0."""
        _, start, size, _ = crew.table[:, :, None]
        count = torch.tensor(counts, device=self.device)[:, None]
        j = torch.arange(max(counts), device=self.device)
        x, y = self.rows.pick(start + torch.where(j < count, j * size // count, 0))
        return self.problem.gradients(w, x, y, (j < count).float() / count)

    def _probe_alone(self, w: Tensor, start: int, size: int, count: int, gradient: bool) -> tuple[Tensor, Tensor]:
        """One client, block by block; all its rows are read where they lie."""
        F, g = torch.zeros_like(w[0]), torch.zeros_like(w) if gradient else w
        for at in range(0, count, self.block):
            stop = min(at + self.block, count)
            if count == size:
                x, y = self.rows.read(start + at, start + stop)
            else:
                x, y = self.rows.pick(start + torch.arange(at, stop, device=self.device) * size // count)
            share = (stop - at) / count
            if gradient:
                F_block, g_block = self.problem.gradients(w[None], x[None], y[None])
                F, g = F + share * F_block[0], g + share * g_block[0]
            else:
                F = F + share * self.problem.losses(w, x, y)[0]
        return F, g
