"""Clients one after another, in plain sight: the engine to find an error with, and the oracle of the fast ones.

No threads, no chunks, no batching of clients, no kernels of our own on the CPU: each client takes its steps alone, and
an error says in which round, at which client and at which local step it arose. The draws, the reports and the memory
are those of `LocalCohort`, so the results agree up to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Named, Norms, Order, Report, start_client
from fedveca.cohorts.aggregate import AggregationRule, Aggregator, Mean
from fedveca.cohorts.client_memory import (
    MEMORY_BYTES,
    ClientMemory,
    make_new_memory,
    reject_statistics,
    split_statistics,
)
from fedveca.cohorts.contract import ClientScores, HeldPart, Send
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.local.rows import make_client_rows
from fedveca.cohorts.local.threads import use_one_thread
from fedveca.cohorts.local_loss import LabelCounts, check_loss, make_local_loss
from fedveca.cohorts.random import SAMPLINGS, draw_seed
from fedveca.cohorts.scores import hold_rows
from fedveca.cohorts.transfer import PLAIN, VectorTransfer
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.native.library import use_pytorch
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem

_PROBE_ROWS = 1000  # of one pass: the activations of all of a client's rows may not fit in memory


class ClientError(RuntimeError):
    """An error at a client; its text names the round, the client and the step, and its cause is the error itself."""


class DebugCohort:
    """The clients of `shares`, one after another. The arguments are those of `LocalCohort`."""

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
        aggregate: AggregationRule = Mean,
        send: Send | None = None,
        equal_weights: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        local_statistics: bool = False,
        held: Holdout | None = None,
        transfer: VectorTransfer = PLAIN,
    ) -> None:
        self.algorithm, self.problem, self.batch, self.seed = algorithm, problem, batch, seed
        self.probe, self.want_loss, self.want_loss_after = probe, want_loss, want_loss_after
        self.sample = SAMPLINGS[sampling]
        self.aggregate, self.send, self.local_statistics = aggregate, send, local_statistics
        self.transfer = transfer
        self.sizes, self.start = shares.sizes, shares.start
        self.weights = torch.ones_like(self.sizes) if equal_weights else self.sizes  # [N]
        self.rows = make_client_rows(x, problem.targets(y), shares.rows, pixels, torch.device(device))
        self.memory = ClientMemory(len(self.sizes), memory_bytes)
        check_loss(algorithm, problem, y)
        self.label_counts = LabelCounts(algorithm, self.rows.y, self.start)
        self.held = hold_rows(x, y, held, pixels, torch.device(device), _PROBE_ROWS)

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """Who answered, and the report, as `Cohort` has it."""
        order = self.transfer.receive(order)
        aggregator, finite, each, norms = self.aggregate(), [], [], []
        with use_one_thread(), use_pytorch():
            for client, steps in zip(ids.tolist(), tau.tolist(), strict=True):
                vectors, numbers, counts = self._run_client(k, order, client, steps, aggregator.largest)
                finite.append(counts)
                norms.append(torch.cat([v.norm(dim=-1) for v in vectors.values()]) if vectors else torch.empty(0))
                if counts:
                    each.append(numbers | {"tau": torch.tensor([steps])})
                    self._aggregate(aggregator, client, vectors)
        who = ids[torch.tensor(finite)]
        mass = float(self.weights[who].sum())
        together = {name: torch.cat([one[name].double().cpu() for one in each]) for name in each[0]} if each else {}
        share = mass / float(self.weights.sum())
        lengths = Norms(ids, torch.stack(norms, 1))
        report = Report(aggregator.close(mass), aggregator.limit_numbers(together), share, norms=lengths)
        return who, self.transfer.label(report)

    def _aggregate(self, aggregator: Aggregator, client: int, vectors: Named) -> None:
        dtype = next((v.dtype for v in vectors.values()), torch.float32)
        aggregator.add(aggregator.reduce(self.weights[client : client + 1].to(self.rows.device, dtype), vectors))

    def _run_client(self, k: int, order: Order, client: int, steps: int, largest: float) -> tuple[Named, Named, bool]:
        """What a client sends, [1, P] and [1] each, and whether it counts: all is finite, no norm above `largest`."""
        algorithm, ids = self.algorithm.at(k), torch.tensor([client])
        probes = self.want_loss or algorithm.needs_loss or algorithm.needs_gradient or not steps
        place = f"round {k + 1}, client {client}"
        recalled = self.memory.recall(ids, make_new_memory(algorithm, order, self.local_statistics, self.transfer))
        (aux, shared), (former, mine) = split_statistics(order.aux), split_statistics(recalled)
        order = order._replace(aux=aux)
        with _name_place(f"{place}, begin"):
            w = algorithm.begin(order, former).expand(1, -1)
        loss, g0 = torch.full_like(w[:, 0], torch.nan), torch.full_like(w, torch.nan)
        running = None if shared is None else (shared[None] if mine is None else mine).clone()
        if probes:
            with _name_place(f"{place}, probe"):
                loss, g0 = self._probe(client, w, running)
        vectors: Named = {}
        numbers: Named = {"loss": loss} if probes else {}
        memory = dict[str, Tensor]()
        if steps:
            with _name_place(f"{place}, start"):
                s, labels = start_client(algorithm, order, former, g0, loss[:, None]), self.label_counts(ids)
            w, s = self._take_local_steps(k, algorithm, order, client, steps, w, s, running, labels)
            if self.want_loss_after or algorithm.needs_gradient_after:
                with _name_place(f"{place}, loss after the steps"):
                    after, g = self._probe(client, w, running)
                numbers |= {"after": after} if self.want_loss_after else {}
            if algorithm.needs_gradient_after:
                with _name_place(f"{place}, arrive"):
                    s = algorithm.arrive(order, s, w, after[:, None], g)
            with _name_place(f"{place}, finish"):
                vectors, results, memory = algorithm.finish(order, s, w, torch.full_like(w[:, :1], steps))
                numbers = {name: v[:, 0] for name, v in results.items()} | numbers
            reject_statistics({**vectors, **memory}, "finish")
            if running is not None and shared is not None:
                vectors = vectors | {STATISTICS: running - shared}
                memory = memory | ({STATISTICS: running} if self.local_statistics else {})
        finite = _have_finite_norms(w, *memory.values())
        if self.send:
            memory, finite = memory if finite else recalled, True
            vectors, numbers = self.send(k, ids, vectors, numbers)
        vectors, residuals = self.transfer.send(k, ids.to(w.device), vectors, recalled)
        counts = finite and _have_finite_norms(*vectors.values(), *(v[:, None] for v in numbers.values()))
        counts = counts and all(bool((v.norm(dim=-1) <= largest).all()) for v in vectors.values())
        if counts:
            self.memory.remember(ids, memory | residuals)
        return vectors, numbers, counts

    def _take_local_steps(
        self,
        k: int,
        algorithm: Algorithm,
        order: Order,
        client: int,
        steps: int,
        w: Tensor,
        s: object,
        running: Tensor | None,
        labels: Tensor,
    ) -> tuple[Tensor, object]:
        """w [1, P] and the carry after the client's steps; the statistics `running` [1, S] change in place."""
        for step in range(steps):
            with _name_place(f"round {k + 1}, client {client}, local step {step + 1}"):
                x, y = self.rows.pick(self.start[client] + self._draw(k, torch.tensor([client]), step))
                generators = [torch.Generator(w.device).manual_seed(draw_seed(self.seed, k, client, step))]
                own = make_local_loss(algorithm, order, s, labels)
                g = self.problem.slope(w, x, y, statistics=running, generators=generators, loss=own)
                w, s = algorithm.step(order, s, w, g)
        return w, s

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """What each client finds on the rows that it holds back, as `Cohort` has it."""
        held, found, order = self.held[part], [], self.transfer.receive(order)
        with use_one_thread(), use_pytorch():
            for client, trained in zip(held.ids.tolist(), held.trained_by(len(self.sizes)).tolist(), strict=True):
                w, running = self._find_model(k, order, trained, finetune)
                with _name_place(f"round {k + 1}, client {client}, {part} rows"):
                    found.append(held.evaluate(self.problem, client, w[0], None if running is None else running[0]))
        return held.collect(self.problem, found)

    def _find_model(self, k: int, order: Order, client: int, steps: int) -> tuple[Tensor, Tensor | None]:
        """[1, P] and [1, S]: the model that a client evaluates, after so many local steps."""
        algorithm, ids = self.algorithm.at(k), torch.tensor([client])
        recalled = self.memory.recall(ids, make_new_memory(algorithm, order, self.local_statistics, self.transfer))
        (aux, shared), (former, mine) = split_statistics(order.aux), split_statistics(recalled)
        order = order._replace(aux=aux)
        place = f"round {k + 1}, client {client}"
        with _name_place(f"{place}, begin"):
            w = algorithm.begin(order, former).expand(1, -1)
        running = None if shared is None else (shared[None] if mine is None else mine).clone()
        if steps:
            with _name_place(f"{place}, probe"):
                loss, g0 = torch.full_like(w[:, 0], torch.nan), torch.full_like(w, torch.nan)
                if algorithm.needs_gradient or algorithm.needs_loss:
                    loss, g0 = self._probe(client, w, running)
            with _name_place(f"{place}, start"):
                s, labels = start_client(algorithm, order, former, g0, loss[:, None]), self.label_counts(ids)
            w, _ = self._take_local_steps(k, algorithm, order, client, steps, w, s, running, labels)
        return w, running

    def _draw(self, k: int, ids: Tensor, step: int) -> Tensor:
        """[1, B]: which of the client's rows it takes at this step."""
        return self.sample(self.seed, k, ids, self.sizes[ids], 1, self.batch, step)[:, 0].to(self.rows.device)

    def _probe(self, client: int, w: Tensor, running: Tensor | None) -> tuple[Tensor, Tensor]:
        """F_i [1] and grad F_i [1, P] at w [1, P] on `probe` rows of the client, evenly spaced."""
        size = int(self.sizes[client])
        count = min(self.probe, size) if self.probe else size
        F, g = torch.zeros_like(w[:, 0]), torch.zeros_like(w)
        for j in torch.split(torch.arange(count, device=w.device), _PROBE_ROWS):
            x, y = self.rows.pick((self.start[client] + j * size // count)[None])
            F_part, g_part = self.problem.gradients(w, x, y, statistics=running)
            F, g = F + len(j) / count * F_part, g + len(j) / count * g_part
        return F, g


def _have_finite_norms(*vectors: Tensor) -> bool:
    return all(bool(torch.isfinite(v.norm(dim=-1)).all()) for v in vectors)


@contextmanager
def _name_place(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ClientError(f"{place}: {type(error).__name__}: {error}") from error
