"""On a CUDA device the launching of kernels bounds a client's step: here the step is captured once, as a graph.

A lane is one stream with its own graph. Clients are distributed over the lanes and run side by side, each step one
launch; the host never waits inside a round.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from fedveca.algorithms.contract import Algorithm, Order
from fedveca.cohorts.local.rows import Feed
from fedveca.cohorts.local_loss import make_local_loss
from fedveca.tasks.problem import Problem

Result = TypeVar("Result")
Turns = Generator[None, None, Result]  # work on a lane that pauses, so that the host can serve the others
_TURN = 16  # steps
_STREAMS = 16  # clients side by side
_SHARE = 0.6  # of the free memory that they may take
_STEP_VECTORS = 8  # vectors like w that a lane holds: the model, its gradient, the method's and what lies in between
Running = tuple[Tensor, ...]  # statistics [n, S], or nothing
PickRows = Callable[[Tensor], tuple[Tensor, Tensor]]  # indices [n, B] -> rows


def find_free_memory(device: torch.device, runs: int) -> float:
    """Bytes of a CUDA device that each of several runs may take: its part of what is free."""
    return float(torch.cuda.mem_get_info(device)[0]) / runs


def count_streams(device: torch.device, batch_bytes: int, size: int, runs: int) -> int:
    """Clients side by side on a CUDA device: as many as the memory holds that a run may take, at most 16.

    Args:
        device: The CUDA device.
        batch_bytes: What a model holds for the gradients of one mini-batch.
        size: P, the model's parameters.
        runs: How many runs share the device.
    """
    each = batch_bytes + 4 * _STEP_VECTORS * size
    return max(1, min(_STREAMS, int(_SHARE * find_free_memory(device, runs) / max(1, each))))


class Lanes:
    """Streams over which clients are distributed.

    A captured step picks its rows with `pick`, or, where they are not on the device, finds them where `feed` put them.
    """

    def __init__(
        self, size: int, algorithm: Algorithm, problem: Problem, pick: PickRows, feed: Feed | None = None
    ) -> None:
        self.size, self.algorithm, self.problem, self.pick, self.feed = size, algorithm, problem, pick, feed
        self._lanes: list[Lane] = []

    def take_local_steps(
        self,
        lr: float,
        order: Order,
        s: object,
        w: Tensor,
        index: Tensor,
        tau: list[int],
        running: Running,
        counts: Tensor,
        seeds: list[int] | None,
    ) -> tuple[Tensor, object, Running]:
        """w [n, P], s and the statistics [n, S] after each client's tau steps at rate lr from w [n, P].

        The rows are index [n, tau, B], their labels are counted in counts [n, C]; `seeds` are the
        clients', where the model draws.
        """

        def work(lane: Lane, i: int) -> Turns[tuple[Tensor, object, Running]]:
            mine, first, now, labels = tree_map(lambda v: v[i : i + 1], (s, w, running, counts))
            seed = seeds[i] if seeds else None
            return lane.take_local_steps(lr, order, mine, first, index[i, : tau[i]], now, labels, seed)

        done: tuple[Tensor, object, Running] = self._distribute(len(tau), work)
        return done

    def probe(
        self, w: Tensor, index: Tensor, weight: Tensor, passes: list[int], running: Running
    ) -> tuple[Tensor, Tensor]:
        """F [n] and grad F [n, P] at w [n, P] on the rows index [n, passes, R], which count weight [n, passes, R].

        Of client i the first passes[i] are computed; the others have no row that counts.
        """

        def work(lane: Lane, i: int) -> Turns[tuple[Tensor, Tensor]]:
            now = tree_map(lambda v: v[i : i + 1], running)
            return lane.probe(w[i : i + 1], index[i], weight[i], passes[i], now)

        found: tuple[Tensor, Tensor] = self._distribute(len(w), work)
        return found

    def _distribute(self, clients: int, work: Callable[[Lane, int], Turns[Result]]) -> Any:
        """What each client's work gives, side by side; the lanes take turns."""
        while len(self._lanes) < min(self.size, clients):
            self._lanes.append(Lane(self.algorithm, self.problem.fork(), self.pick, self.feed))
        main = torch.cuda.current_stream()
        for lane in self._lanes:
            lane.stream.wait_stream(main)
        waiting = iter(range(clients))
        active = deque((lane, i, work(lane, i)) for lane, i in zip(self._lanes, waiting, strict=False))
        out: list[Result | None] = [None] * clients
        while active:  # turn by turn: a stream that is full would make the host wait while the others are empty
            lane, i, job = active.popleft()
            with torch.cuda.stream(lane.stream):
                try:
                    next(job)
                except StopIteration as end:
                    out[i] = end.value
                    active.extend((lane, j, work(lane, j)) for j in islice(waiting, 1))
                else:
                    active.append((lane, i, job))
        for lane in self._lanes:
            main.wait_stream(lane.stream)
        for v in tree_flatten(out)[0]:  # there are only so many streams: another run's lane may be this one, and it
            v.record_stream(main)  # must not get this memory before the main stream has read it
        return tree_map(lambda *parts: torch.cat(parts), *out)


class LaneWork(NamedTuple):
    """What the clients of a lane compute, and where."""

    algorithm: Algorithm
    problem: Problem
    pick: PickRows
    feed: Feed | None
    stream: torch.cuda.Stream
    generators: list[torch.Generator]

    def capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        for _ in range(3):  # libraries choose their kernels before the capture
            body()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        collecting = gc.isenabled()
        gc.disable()  # freeing an old graph meanwhile would spoil the capture
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                body()
        finally:
            if collecting:
                gc.enable()
        return graph


class Lane:
    """One client's work, replayed on a stream of its own."""

    def __init__(self, algorithm: Algorithm, problem: Problem, pick: PickRows, feed: Feed | None) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.generators = [torch.Generator("cuda")] if problem.random else []  # of this lane alone
        self.work = LaneWork(algorithm, problem, pick, feed, self.stream, self.generators)
        self.steps: CapturedSteps | None = None
        self.probes: CapturedProbe | None = None

    def take_local_steps(
        self,
        lr: float,
        order: Order,
        s: object,
        w: Tensor,
        index: Tensor,
        running: Running,
        counts: Tensor,
        seed: int | None,
    ) -> Turns[tuple[Tensor, object, Running]]:
        """w [1, P], s and the statistics [1, S] after len(index) steps from w [1, P], on the rows index [tau, B].

        Each replay draws from where the last one ended, so every step of a client draws anew from its seed.
        """
        if self.steps is None or len(index) > self.steps.room:
            self.steps = CapturedSteps(self.work, order, s, w, index, running, counts)
        for generator in self.generators:
            assert seed is not None
            generator.manual_seed(seed)
        return (yield from self.steps.run(lr, order, s, w, index, running, counts))

    def probe(
        self, w: Tensor, index: Tensor, weight: Tensor, passes: int, running: Running
    ) -> Turns[tuple[Tensor, Tensor]]:
        """F [1] and grad F [1, P] at w [1, P]: the sum over the first passes of index [passes, R]."""
        if self.probes is None or index.shape[1] != self.probes.rows or len(index) > self.probes.room:
            self.probes = CapturedProbe(self.work, w, index, weight, running)
        return (yield from self.probes.run(w, index[:passes], weight[:passes], running))


class CapturedSteps:
    """A local step, captured once: row numbers of all steps lie on the device, and a counter says which is next.

    Rows that are fed lie in the same memory at each step: they are copied there on the lane's stream, so after the step
    before has read them.
    """

    def __init__(
        self, work: LaneWork, order: Order, s: object, w: Tensor, index: Tensor, running: Running, counts: Tensor
    ) -> None:
        self.work, self.algorithm = work, work.algorithm
        self.lr = torch.full((), work.algorithm.lr, device=index.device)  # of the round
        if work.algorithm.is_scheduled:
            self.algorithm = work.algorithm.with_rate(self.lr)
        self.advance = self.algorithm.step  # what the method does with a gradient
        if work.problem.compiled:
            self.advance = torch.compile(self.advance, dynamic=False)
        self.order, self.s, self.running, self.counts = tree_map(torch.clone, (order, s, running, counts))
        self.w = w.clone()
        self.at = torch.zeros(1, dtype=torch.int64, device=index.device)
        self.room = -(-(len(index) + 3) // 64) * 64  # steps that fit before it is captured again
        self.index = index[:1].repeat(self.room, 1)
        self.fed = work.pick(index[:1]) if work.feed else None  # x and y of the step
        self.graph = work.capture(self._step)

    def run(
        self, lr: float, order: Order, s: object, w: Tensor, index: Tensor, running: Running, counts: Tensor
    ) -> Turns[tuple[Tensor, object, Running]]:
        self.lr.fill_(lr)
        _copy((self.order, self.s, self.running, self.counts), (order, s, running, counts))
        self.w.copy_(w)
        self.at.zero_()
        self.index[: len(index)].copy_(index)
        for step, rows in enumerate(self.work.feed(index[:, None]) if self.work.feed else [None] * len(index), 1):
            if rows:
                _copy(self.fed, rows)
            self.graph.replay()
            if step % _TURN == 0:
                yield
        done: tuple[Tensor, object, Running] = tree_map(torch.clone, (self.w, self.s, self.running))
        return done

    def _step(self) -> None:
        _, problem, pick, _, _, generators = self.work
        x, y = self.fed or pick(self.index.index_select(0, self.at))
        now = self.running[0] if self.running else None
        loss = make_local_loss(self.algorithm, self.order, self.s, self.counts)
        g = problem.slope(self.w, x, y, statistics=now, generators=generators or None, loss=loss)
        w, s = self.advance(self.order, self.s, self.w, g)
        self.w.copy_(w)
        _copy(self.s, s)
        self.at.add_(1)


class CapturedProbe:
    """A pass of the probe, captured once; rows that pad it count 0."""

    def __init__(self, work: LaneWork, w: Tensor, index: Tensor, weight: Tensor, running: Running) -> None:
        self.work, self.rows, self.room = work, index.shape[1], len(index) + 3
        self.w, self.running = tree_map(torch.clone, (w, running))
        self.F, self.g = torch.zeros_like(w[:, 0]), torch.zeros_like(w)
        self.at = torch.zeros(1, dtype=torch.int64, device=index.device)
        self.index, self.weight = index[:1].repeat(self.room, 1), weight[:1].repeat(self.room, 1)
        self.graph = work.capture(self._add_pass)

    def run(self, w: Tensor, index: Tensor, weight: Tensor, running: Running) -> Turns[tuple[Tensor, Tensor]]:
        _copy((self.w, self.running), (w, running))
        for v in (self.F, self.g, self.at):
            v.zero_()
        self.index[: len(index)].copy_(index)
        self.weight[: len(index)].copy_(weight)
        for _ in range(len(index)):
            self.graph.replay()
            yield
        return self.F.clone(), self.g.clone()

    def _add_pass(self) -> None:
        x, y = self.work.pick(self.index.index_select(0, self.at))
        now = self.running[0] if self.running else None
        F, g = self.work.problem.gradients(self.w, x, y, self.weight.index_select(0, self.at), now)
        self.F.add_(F)
        self.g.add_(g)
        self.at.add_(1)


@contextmanager
def use_tensor_cores(device: torch.device) -> Iterator[None]:
    """On CUDA, products of float32 matrices in TF32 while it lasts, as cuDNN's convolutions are by default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy(into: object, source: object) -> None:
    for a, b in zip(tree_flatten(into)[0], tree_flatten(source)[0], strict=True):
        if a.data_ptr() != b.data_ptr():
            a.copy_(b)
