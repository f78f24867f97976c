"""Clients in this process: all local steps of a round, many clients at once. README.md has a drawing.

Clients are sorted by tau and split into chunks. Those of a chunk step together as one batch and leave it when their
steps are done, so that a round costs the steps taken and memory is bounded by a chunk. A problem of small layers or in
closed form fills a chunk with many clients; a convolutional one has one client per chunk and one thread per core.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedveca.algorithms.contract import STATISTICS, Algorithm, Named, Norms, Order, Report, start_client
from fedveca.cohorts.aggregate import AggregationRule, Aggregator, Mean
from fedveca.cohorts.client_memory import (
    MEMORY_BYTES,
    ClientMemory,
    make_new_memory,
    reject_statistics,
    split_statistics,
    start_statistics,
)
from fedveca.cohorts.contract import ClientScores, HeldPart, Send
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.local.chunks import Chunk, ChunkResult, RowDraws, find_finite, find_norms
from fedveca.cohorts.local.closed_form import take_closed_steps
from fedveca.cohorts.local.cuda_graphs import Lanes, count_streams, find_free_memory, use_tensor_cores
from fedveca.cohorts.local.joint import Pass, PassWalk
from fedveca.cohorts.local.meeting import (
    ProbeRequest,
    count_members,
    probe,
    share_client_rows,
    take_passes,
    wait_for_device,
)
from fedveca.cohorts.local.probe import ProbePasses
from fedveca.cohorts.local.stored_svm import find_stored_svm
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.cohorts.local_loss import LabelCounts, check_loss, make_local_loss
from fedveca.cohorts.random import SAMPLINGS, draw_seed
from fedveca.cohorts.scores import hold_rows
from fedveca.cohorts.transfer import PLAIN, VectorTransfer
from fedveca.errors import UserError
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 * 2**20  # of batch rows or of parameters in one chunk: what a core's cache holds
_CUDA_CHUNK_BYTES = 512 * 2**20
_THREAD_FLOATS = 2**20  # inputs of one step of all clients that make a second thread worthwhile
_SMALL_PROBE = 256  # clients with at most so many probe rows are probed side by side
_PROBE_BYTES = 128 * 2**20  # of what a model holds for the gradients of one probe pass, per thread
_MAPPED_BYTES = 64 * 2**20  # the same where clients step as one batch, and of one step of a chunk
_BLOCK = {"cpu": 4096, "cuda": 8192}  # rows of one probe pass: on the CPU, what its caches hold for two products
_CUDA_PROBE_SHARE = 0.2  # of the free memory of a CUDA device that a probe's passes may take
_LANE_BYTES = 64 * 2**20  # of what models hold for the probe of a chunk: beyond it clients are probed on CUDA lanes


class LocalCohort:
    """The clients of `shares`, stepping on one device."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        x: Tensor | LazyRows,
        y: Tensor,
        shares: Shares,
        *,
        batch: int,
        seed: int = 0,
        probe: int = 1024,
        sampling: str = "random",
        want_loss: bool = True,
        want_loss_after: bool = False,
        pixels: str = "as-is",
        device: str = "cpu",
        lanes: int = 0,
        threads: int = 0,
        aggregate: AggregationRule = Mean,
        send: Send | None = None,
        equal_weights: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        local_statistics: bool = False,
        held: Holdout | None = None,
        transfer: VectorTransfer = PLAIN,
    ) -> None:
        """Copies the clients' rows to the device, each client's side by side.

        Args:
            algorithm: The method, of which the clients' half is used here.
            problem: The model and the loss that the clients minimise.
            x: The training rows, [D, ...]: float32, bytes of pixels, or int64 tokens; lazily read ones stay where
                they are.
            y: Their labels or targets, [D, ...].
            shares: Which client owns which rows.
            batch: Rows of a mini-batch.
            seed: Of all draws; they are a pure function of (seed, round, client).
            probe: Rows on which F_i(w_k) and its gradient are computed, evenly spaced; 0 takes all.
            sampling: How a mini-batch is drawn: "random", with replacement, or "shuffle", without, epoch by epoch.
            want_loss: Whether F_i(w_k) is reported by a method that does not need its gradient.
            want_loss_after: Whether F_i after the client's steps is reported as well (A2.9).
            pixels: How rows are prepared for the model: see `fedveca.tasks.datasets.dataset.prepare`.
            device: Where the clients compute: "cpu" or "cuda".
            lanes: Clients per chunk; 0 chooses by the size of a batch and of the model.
            threads: Threads on the CPU, or streams on a CUDA device; 0 takes PyTorch's number, or 16.
            aggregate: Makes each round's aggregator of the clients' vectors.
            send: Changes what clients send (privacy, faults); None leaves it as it is.
            equal_weights: Whether every client counts the same, instead of by its number of rows.
            memory_bytes: What clients remember stays in RAM up to so many bytes; the rest goes to a file.
            local_statistics: Whether a client trains with running statistics of its own, which it remembers; else it
                starts each round from the server's.
            held: The rows that clients hold back and evaluate; None where they hold none.
            transfer: The form in which vectors reach the clients and the server.
        """
        self.algorithm, self.problem, self.batch, self.seed = algorithm, problem, batch, seed
        self.probe, self.want_loss, self.want_loss_after = probe, want_loss, want_loss_after
        self.sample, self.device = SAMPLINGS[sampling], torch.device(device)
        self.sizes, self.start = shares.sizes, shares.start  # [N] D_i, and [N + 1] first row of each client
        self.aggregate, self.send, self.equal_weights = aggregate, send, equal_weights
        self.local_statistics, self.transfer = local_statistics, transfer
        self.weights = torch.ones_like(self.sizes) if equal_weights else self.sizes  # [N]
        self.total_weight = float(self.weights.sum())
        self.rows = share_client_rows(x, problem.targets(y), shares.rows, pixels, self.device)
        check_loss(algorithm, problem, y)
        self.label_counts = LabelCounts(algorithm, self.rows.y, self.start)
        self.memory = ClientMemory(len(self.sizes), memory_bytes)
        stored = find_stored_svm(problem, self.rows)
        floats = batch * self.rows.numel // (8 if stored else 1)  # in C a batch is at most read from a file, as bytes
        need = 4 * max(floats, problem.size * (8 if stored else 1))  # models, gradients, and what a method carries
        fitting = min(_CHUNK_BYTES // need, _MAPPED_BYTES // max(1, batch * problem.row_bytes))
        self.lanes = lanes or (max(1, fitting) if problem.mapped else 1)
        self.pool, self._lanes = ThreadPool(threads), None
        if self.device.type == "cuda":
            self.lanes, self.pool = lanes or max(1, _CUDA_CHUNK_BYTES // need), ThreadPool(1)
            streams = count_streams(self.device, batch * problem.row_bytes, problem.size, count_members())
            self._lanes = Lanes(threads or streams, algorithm, problem, self.rows.pick, self.rows.feed)
        self.block = 250 if not problem.mapped and device == "cpu" else _BLOCK[self.device.type]  # rows of a probe pass
        limit = _MAPPED_BYTES if problem.mapped else _PROBE_BYTES
        if self.device.type == "cuda":
            limit = int(_CUDA_PROBE_SHARE * find_free_memory(self.device, count_members()))
        self.most_rows = max(1, limit // max(1, problem.row_bytes))  # of one probe pass, by memory
        self.block = min(self.block, self.most_rows)
        self.passes = ProbePasses(problem, self.rows, self.device, self.block, self.most_rows, stored)
        self.held = hold_rows(x, y, held, pixels, self.device, self.block)

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who answered, and the report, as `Cohort` has it."""
        order = self.transfer.receive(order)
        by_tau = torch.argsort(tau, descending=True, stable=True)
        everyone = Chunk.make(ids[by_tau], tau[by_tau], self.start, self.device)
        aggregator = self.aggregate()
        results = []
        with use_tensor_cores(self.device):
            work, chunks = partial(self._run_fitting, k, order, aggregator), everyone.split(self._width(len(ids)))
            for chunk, result in chain.from_iterable(self.pool.map(work, chunks)):
                if result.piece:
                    aggregator.add(result.piece)  # in a fixed order
                wait_for_device()
                self._remember(chunk.ids, result)
                results.append(result._replace(piece=None, memory={}))  # vectors go as soon as they are summed
        each = {name: torch.cat([part.each[name] for part in results]).double().cpu() for name in results[0].each}
        back = torch.argsort(by_tau)
        finite = torch.cat([part.finite for part in results]).cpu()[back]
        counts: Tensor | slice = slice(None) if bool(finite.all()) else finite
        who, each = ids[counts], aggregator.limit_numbers({name: v[back][counts] for name, v in each.items()})
        mass = float(self.weights[who].sum())
        norms = Norms(everyone.ids, torch.cat([part.norms for part in results], 1))
        each |= {"tau": tau[counts].double()}
        report = Report(aggregator.close(mass), each, mass / self.total_weight, norms=norms)
        return who, self.transfer.label(report)

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """What each client finds on the rows that it holds back, as `Cohort` has it."""
        order = self.transfer.receive(order)
        held, steps = self.held[part], torch.full_like(self.held[part].ids, finetune)
        if not len(held.ids):
            return held.collect(self.problem, ())
        everyone = Chunk.make(held.trained_by(len(self.sizes)), steps, self.start, self.device)
        width = min(self.lanes, -(-len(held.ids) // self.pool.size))

        def work(job: tuple[Tensor, Chunk]) -> list[Tensor]:
            ids, chunk = job
            w, running = self._find_models(k, order, chunk)
            each = [None] * len(w) if running is None else list(running)
            models = zip(ids.tolist(), w, each, strict=True)
            return [held.evaluate(self.problem, i, w_i, running_i) for i, w_i, running_i in models]

        jobs = list(zip(torch.split(held.ids, width), everyone.split(width), strict=True))
        with use_tensor_cores(self.device):
            return held.collect(self.problem, chain.from_iterable(self.pool.map(work, jobs)))

    def _make_memory(self, algorithm: Algorithm, order: Order) -> Named:
        return make_new_memory(algorithm, order, self.local_statistics, self.transfer)

    def _find_models(self, k: int, order: Order, chunk: Chunk) -> tuple[Tensor, Tensor | None]:
        """[n, P] and [n, S]: the models that clients evaluate, after the chunk's steps where it has any."""
        algorithm = self.algorithm.at(k)
        recalled = self.memory.recall(chunk.ids, self._make_memory(algorithm, order))
        (aux, shared), (former, mine) = split_statistics(order.aux), split_statistics(recalled)
        order = order._replace(aux=aux)
        w = algorithm.begin(order, former).expand(len(chunk.ids), -1)
        running = start_statistics(self.problem.statistics, shared, mine, len(w))
        if int(chunk.tau[0]) == 0:
            return w, running
        loss, g0 = self._probe(w, running, chunk, algorithm.needs_loss, algorithm.needs_gradient)
        w, _, running = self._step_together(k, algorithm, order, former, loss, g0, w, running, chunk)
        return w, running

    def _width(self, n: int) -> int:
        """Clients per chunk: few enough for memory, and a chunk for each thread where the work is worth it."""
        worth = n * self.batch * self.rows.numel > _THREAD_FLOATS
        return min(self.lanes, -(-n // self.pool.size)) if worth else self.lanes

    def _run_fitting(
        self, k: int, order: Order, aggregator: Aggregator, chunk: Chunk
    ) -> list[tuple[Chunk, ChunkResult]]:
        """The chunk; where a CUDA device has too little memory for it, with half as many clients side by side."""
        try:
            return [(chunk, self._run_chunk(k, order, aggregator, chunk))]
        except torch.cuda.OutOfMemoryError as error:
            streams = min(self._lanes.size, len(chunk.ids)) if self._lanes else 1
            if streams == 1 and len(chunk.ids) == 1:
                raise UserError(
                    f"client {int(chunk.ids[0])} does not fit in the memory of the CUDA device: "
                    "take a smaller batch, a smaller probe, or precision=bfloat16"
                ) from error
        if self._lanes:
            self._lanes = Lanes(max(1, streams // 2), self.algorithm, self.problem, self.rows.pick, self.rows.feed)
        torch.cuda.empty_cache()
        _log.warning("round %d: out of CUDA memory; continuing with %d clients side by side", k + 1, streams // 2 or 1)
        halves = chunk.split(-(-len(chunk.ids) // 2)) if streams == 1 else [chunk]
        return list(chain.from_iterable(self._run_fitting(k, order, aggregator, half) for half in halves))

    def _run_chunk(self, k: int, order: Order, aggregator: Aggregator, chunk: Chunk) -> ChunkResult:
        """start, step x tau, finish, for clients in falling order of tau."""
        algorithm = self.algorithm.at(k)
        most = int(chunk.tau[0])
        recalled = self.memory.recall(chunk.ids, self._make_memory(algorithm, order))
        (aux, shared), (former, mine) = split_statistics(order.aux), split_statistics(recalled)
        order = order._replace(aux=aux)  # a method sees what is its own
        w = algorithm.begin(order, former).expand(len(chunk.ids), -1)  # [n, P]
        running = start_statistics(self.problem.statistics, shared, mine, len(w))
        want_loss = self.want_loss or algorithm.needs_loss or most == 0
        loss, g0 = self._probe(w, running, chunk, want_loss, algorithm.needs_gradient and most > 0)
        if most == 0:
            return self._make_result(k, aggregator, chunk, [], {}, {"loss": loss}, {}, {})
        w, s, running = self._step_together(k, algorithm, order, former, loss, g0, w, running, chunk)
        wanted = self.want_loss_after, algorithm.needs_gradient_after
        after, g = self._probe(w, running, chunk, *wanted) if any(wanted) else (loss, g0)
        if algorithm.needs_gradient_after:
            s = algorithm.arrive(order, s, w, after[:, None], g)
        vectors, each, memory = algorithm.finish(order, s, w, chunk.table[3][:, None].to(w.dtype))
        reject_statistics({**vectors, **memory}, "finish")
        if running is not None and shared is not None:
            vectors = vectors | {STATISTICS: running - shared}
            memory = memory | ({STATISTICS: running} if self.local_statistics else {})
        each = {name: v[:, 0] for name, v in each.items()}
        if want_loss or algorithm.needs_gradient:
            each["loss"] = loss
        if self.want_loss_after:
            each["after"] = after
        local_norms = [find_norms(v) for v in (w, *memory.values())]
        if self.send:
            finite = torch.isfinite(torch.stack(local_norms)).all(0)[:, None]
            memory, local_norms = {name: torch.where(finite, v, recalled[name]) for name, v in memory.items()}, []
        return self._make_result(k, aggregator, chunk, local_norms, vectors, each, memory, recalled)

    def _step_together(
        self,
        k: int,
        algorithm: Algorithm,
        order: Order,
        former: Named,
        loss: Tensor,
        g0: Tensor,
        w: Tensor,
        running: Tensor | None,
        chunk: Chunk,
    ) -> tuple[Tensor, object, Tensor | None]:
        """w [n, P], the carry and the statistics [n, S] after the steps of a chunk, each client's with its memory."""
        ids, start, size, _ = chunk.table
        s, counts = start_client(algorithm, order, former, g0, loss[:, None]), self.label_counts(chunk.ids)
        if self._lanes:
            most = int(chunk.tau[0])
            index = self.sample(self.seed, k, ids, size, most, self.batch) + start[:, None, None]  # [n, tau, B]
            seeds = [draw_seed(self.seed, k, i, 0) for i in chunk.ids.tolist()] if self.problem.random else None
            before = () if running is None else (running,)
            steps = chunk.tau.tolist()
            w, s, after = self._lanes.take_local_steps(algorithm.lr, order, s, w, index, steps, before, counts, seeds)
            return w, s, after[0] if after else None
        with torch.inference_mode(not self.problem.autograd):  # each operation is cheaper there
            if isinstance(self.problem, SquaredSvm):
                draws = RowDraws(self.sample, self.seed, k, chunk, self.batch)
                parts = self.problem, self.rows, self.passes.stored
                w, s = take_closed_steps(*parts, algorithm, order, s, w, chunk, draws)
            else:
                walk = self._take_local_steps(k, algorithm, order, s, w, running, counts, chunk)
                w, s = take_passes(walk, self.problem)
        return w, s, running

    def _make_result(
        self,
        k: int,
        aggregator: Aggregator,
        chunk: Chunk,
        local_norms: list[Tensor],  # [n] each: of what stays with the clients
        vectors: Named,
        each: Named,
        memory: Named,
        recalled: Named,
    ) -> ChunkResult:
        """What reaches the server: a client counts if all that it sent, and its `local_norms`, are finite."""
        if self.send:
            vectors, each = self.send(k, chunk.ids, vectors, each)
        vectors, residuals = self.transfer.send(k, chunk.table[0], vectors, recalled)
        numbers = torch.stack([*local_norms, *(find_norms(v) for v in vectors.values()), *each.values()])
        norms = numbers[len(local_norms) : len(local_norms) + len(vectors)]
        finite, all_count = find_finite(numbers, norms, aggregator.largest)
        weight = finite if self.equal_weights else chunk.table[2] * finite
        if not all_count:
            vectors = {name: torch.where(finite[:, None], v, 0.0) for name, v in vectors.items()}
        dtype = next((v.dtype for v in vectors.values()), torch.float32)
        return ChunkResult(aggregator.reduce(weight.to(dtype), vectors), each, finite, norms, memory | residuals)

    def _take_local_steps(
        self,
        k: int,
        algorithm: Algorithm,
        order: Order,
        s: object,
        w: Tensor,
        running: Tensor | None,
        counts: Tensor,
        chunk: Chunk,
    ) -> PassWalk[tuple[Tensor, object]]:
        """All clients of a chunk step together; those that have taken their tau steps leave.

        The statistics `running` [n, S] change in place. The labels are counted in `counts` [n, C].
        """
        done, at, tau = [], 0, chunk.tau.tolist()
        draws = RowDraws(self.sample, self.seed, k, chunk, self.batch)
        for until in sorted(set(tau)):
            n = sum(tau_i >= until for tau_i in tau)
            if n < len(w):
                done.append(tree_map(lambda v, n=n: v[n:], (w, s)))
                w, s = tree_map(lambda v, n=n: v[:n], (w, s))
            for index in draws(n, at, until):
                for x, y in self.rows.batches(index.transpose(0, 1)):
                    now = None if running is None else running[:n]
                    draws_of = self._seed_generators(k, chunk.ids[:n], at) if self.problem.random else None
                    loss = make_local_loss(algorithm, order, s, counts[:n])
                    _, g = yield Pass(self.problem, w, x, y, self.rows.unit, None, now, draws_of, loss)
                    w, s = algorithm.step(order, s, w, g)
                    at += 1
        if not done:
            return w, s
        out: tuple[Tensor, object] = tree_map(lambda *parts: torch.cat(parts), (w, s), *reversed(done))
        return out

    def _seed_generators(self, k: int, ids: Tensor, step: int) -> list[torch.Generator]:
        """One generator per client, for what the model draws in this step."""
        return [torch.Generator().manual_seed(draw_seed(self.seed, k, i, step)) for i in ids.tolist()]

    def _remember(self, ids: Tensor, result: ChunkResult) -> None:
        """Stores the memory of the clients that count."""
        if result.memory:
            self.memory.remember(ids[result.finite.cpu()], {n: v[result.finite] for n, v in result.memory.items()})

    def _probe(
        self, w: Tensor, running: Tensor | None, chunk: Chunk, want_loss: bool, want_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """F_i [n] and grad F_i [n, P] at w [n, P] on `probe` rows of each client, evenly spaced; NaN where not wanted.

        The same rows every round, so that losses and gradients of different rounds compare.
        """
        unknown = torch.full_like(w[:, :1], torch.nan)
        if not (want_loss or want_gradient):
            return unknown[:, 0], unknown.expand_as(w)
        sizes, starts = self.sizes[chunk.ids].tolist(), self.start[chunk.ids].tolist()
        counts = [min(self.probe, size) if self.probe else size for size in sizes]
        captured = self._lanes if self.rows.feed is None else None  # a captured probe picks its rows itself
        if captured and want_gradient and sum(counts) * self.problem.row_bytes > _LANE_BYTES:
            F, g = self.passes.on_lanes(captured, w, running, chunk, counts)
        elif len(counts) > 1 and max(counts) <= _SMALL_PROBE and len(counts) * max(counts) <= self.most_rows:
            F, g = take_passes(self.passes.together(w, running, chunk, counts, want_gradient), self.problem)
        else:
            rows = list(zip(starts, sizes, counts, strict=True))
            alone = probe(ProbeRequest(self.passes, w, running, rows, want_gradient), self.pool)
            F, g = torch.stack([a[0] for a in alone]), torch.stack([a[1] for a in alone])
        return F, g if want_gradient else unknown.expand_as(w)
