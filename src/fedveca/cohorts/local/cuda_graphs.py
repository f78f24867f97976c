"""On a CUDA device the launching of kernels bounds a client's step: here the step is captured once, as a graph.

A lane is one stream with its own graph. Clients are distributed over the lanes and run side by side, each step one
launch; the host never waits inside a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from fedveca.algorithms.contract import Algorithm, Order
from fedveca.tasks.problem import Problem

PickRows = Callable[[Tensor], tuple[Tensor, Tensor]]  # indices [n, B] -> rows


class Lanes:
    """Streams over which clients are distributed."""

    def __init__(self, size: int, algorithm: Algorithm, problem: Problem, pick: PickRows) -> None:
        self.size, self.algorithm, self.problem, self.pick = size, algorithm, problem, pick
        self._lanes: list[Lane] = []

    def take_local_steps(
        self,
        order: Order,
        s: object,
        index: Tensor,
        tau: list[int],
        running: Tensor | None,
        seeds: list[int] | None,
    ) -> tuple[Tensor, object, Tensor | None]:
        """w [n, P], s and the statistics [n, S] after each client's tau steps from order.w.

        The rows are index [n, tau, B]; `seeds` are the clients', where the model draws.
        """
        while len(self._lanes) < min(self.size, len(tau)):
            self._lanes.append(Lane(self.algorithm, self.problem.fork(), self.pick))
        main = torch.cuda.current_stream()
        for lane in self._lanes:
            lane.stream.wait_stream(main)
        out = []
        for i, steps in enumerate(tau):
            lane = self._lanes[i % len(self._lanes)]
            mine, now = tree_map(lambda v, i=i: v[i : i + 1], (s, running))
            with torch.cuda.stream(lane.stream):
                out.append(lane.take_local_steps(order, mine, index[i, :steps], now, seeds[i] if seeds else None))
        for lane in self._lanes:
            main.wait_stream(lane.stream)
        all_of_them: tuple[Tensor, object, Tensor | None] = tree_map(lambda *parts: torch.cat(parts), *out)
        return all_of_them


class Lane:
    """One client's local steps, replayed on a stream of their own."""

    def __init__(self, algorithm: Algorithm, problem: Problem, pick: PickRows) -> None:
        self.algorithm, self.problem, self.pick = algorithm, problem, pick
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.generators = [torch.Generator("cuda")] if problem.random else None  # of this lane alone

    def take_local_steps(
        self, order: Order, s: object, index: Tensor, running: Tensor | None, seed: int | None
    ) -> tuple[Tensor, object, Tensor | None]:
        """w [1, P], s and the statistics [1, S] after len(index) steps from order.w, on the rows index [tau, B].

        Each replay draws from where the last one ended, so every step of a client draws anew from its seed.
        """
        if self.graph is None or len(index) > len(self.index):
            self._capture(order, s, index, running)
        assert self.graph is not None
        if self.generators and seed is not None:
            self.generators[0].manual_seed(seed)
        _copy((self.order, self.s, self.running), (order, s, running))
        self.w.copy_(order.w)
        self.at.zero_()
        self.index[: len(index)].copy_(index)
        for _ in range(len(index)):
            self.graph.replay()
        done: tuple[Tensor, object, Tensor | None] = tree_map(torch.clone, (self.w, self.s, self.running))
        return done

    def _capture(self, order: Order, s: object, index: Tensor, running: Tensor | None) -> None:
        self.order, self.s, self.running = tree_map(torch.clone, (order, s, running))
        self.w = order.w.clone()[None]
        self.at = torch.zeros(1, dtype=torch.int64, device=index.device)
        room = -(-(len(index) + 3) // 64) * 64  # steps that fit before the graph is captured again
        self.index = index[:1].repeat(room, 1)
        for _ in range(3):  # libraries choose their kernels before the capture
            self._step()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators or ():
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self.stream):
            self._step()
        self.graph = graph

    def _step(self) -> None:
        x, y = self.pick(self.index.index_select(0, self.at))
        g = self.problem.slope(self.w, x, y, statistics=self.running, generators=self.generators)
        w, s = self.algorithm.step(self.order, self.s, self.w, g)
        self.w.copy_(w)
        _copy(self.s, s)
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
