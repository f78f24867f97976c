"""Where runs that go on side by side in one process meet: what several of them need is done once for all.

A run asks for F_i(w_k) on its clients' rows, which have to be read and prepared for the model. Runs of one seed have
the same clients: where they ask in the same round, each block of rows is prepared once, and every run's model passes
over it while it is in the cache. A model's numbers are computed by the same operations on the same rows as alone, so
they are the same bytes. The local steps of small layers are taken together (`fedveca.cohorts.local.joint`), unless they
are computed in C, where one run's are as quick alone.

On a CUDA device nothing is joined: there the runs take turns at giving the device work, so that it computes for the
others while one of them reads its results. On any device the others continue while one waits for the disk.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedveca.cohorts.local.joint import PassWalk, take_alone, take_together
from fedveca.cohorts.local.probe import ProbedModel, ProbePasses
from fedveca.cohorts.local.rows import ClientRows, LazyClientRows, make_client_rows
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.safe_files import leave_turn
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.problem import Problem

_LARGE = 2**20  # numbers of a probe's rows from which it is worth a thread, and a meeting
Probed = list[tuple[Tensor, Tensor]]  # F [] and grad F [P] of each client
_T = TypeVar("_T")


class ProbeRequest(NamedTuple):
    """The probe of one run: every client with a model of its own, alone on its rows."""

    passes: ProbePasses
    w: Tensor  # [n, P]
    running: Tensor | None  # [n, S]
    rows: list[tuple[int, int, int]]  # [n]: first row, rows, and how many of them are probed
    want_gradient: bool

    @property
    def is_large(self) -> bool:
        """Whether reading and preparing the rows is worth sharing."""
        return sum(count for *_, count in self.rows) * self.passes.rows.numel >= _LARGE

    def fits(self, other: ProbeRequest) -> bool:
        """Whether both are answered by one pass over the same rows."""
        mine, theirs = self.passes, other.passes
        same = mine.rows is theirs.rows and mine.block == theirs.block and type(mine.problem) is type(theirs.problem)
        return same and self.rows == other.rows and self.want_gradient == other.want_gradient

    def find_model(self, i: int) -> ProbedModel:
        """What client i evaluates."""
        return ProbedModel(self.passes.problem, self.w[i], None if self.running is None else self.running[i])


def answer_probes(requests: Sequence[ProbeRequest], pool: ThreadPool) -> list[Probed]:
    """The numbers of each request; clients are shared out over the threads where their rows are many."""
    found: list[Probed] = [[] for _ in requests]
    left = list(range(len(requests)))
    while left:
        first = requests[left[0]]
        group = [i for i in left if first.fits(requests[i])]
        left = [i for i in left if i not in group]

        def visit(client: int, first: ProbeRequest = first, group: list[int] = group) -> Probed:
            models = [requests[i].find_model(client) for i in group]
            return first.passes.alone(models, *first.rows[client], first.want_gradient)

        clients = range(len(first.rows))
        for values in pool.map(visit, clients) if first.is_large else map(visit, clients):
            for i, value in zip(group, values, strict=True):
                found[i].append(value)
    return found


class Pause(NamedTuple):
    """A run is about to wait for a device or a disk; nothing is asked but that the others have their turns before."""


MeetingRequest = ProbeRequest | PassWalk[object] | Pause


def answer_requests(requests: Sequence[MeetingRequest], pool: ThreadPool) -> list[object]:
    """What each request has found, in their order; None of a pause."""
    probes = [request for request in requests if isinstance(request, ProbeRequest)]
    walks = [request for request in requests if not isinstance(request, ProbeRequest | Pause)]
    found, walked = iter(answer_probes(probes, pool)), iter(take_together(walks) if walks else [])
    return [
        None if isinstance(request, Pause) else next(found if isinstance(request, ProbeRequest) else walked)
        for request in requests
    ]


class Meeting:
    """What a run of a population asks, in place of computing it alone.

    Args:
        ask: Waits until the other runs have asked too, and returns the answer.
        members: How many runs there are.
        joins: Whether probes and passes of several runs are computed together; else the runs only take turns.
        disk: Threads that write files and wait for the disk, so that the others can continue.
    """

    def __init__(
        self,
        ask: Callable[[MeetingRequest], object],
        members: int = 1,
        joins: bool = True,
        disk: ThreadPoolExecutor | None = None,
    ) -> None:
        self.ask, self.members, self.joins, self.disk = ask, members, joins, disk

    def enter(self) -> None:
        """From now on, the run of this thread is part of it."""
        _meeting.set(self)
        leave_turn.set(self.work_aside)

    def work_aside(self, work: Callable[[], object]) -> object:
        """What `work` returns, which has a thread to itself, while the others continue."""
        if self.disk is None:
            return work()
        done = self.disk.submit(work)
        try:
            self.ask(Pause())
        finally:
            wait([done])  # also where the run is over
        return done.result()


_meeting: ContextVar[Meeting | None] = ContextVar("meeting", default=None)
_known: list[tuple[Tensor | LazyRows, Tensor, Tensor, str, weakref.ref[ClientRows | LazyClientRows]]] = []


def probe(request: ProbeRequest, pool: ThreadPool) -> Probed:
    """The numbers of one run, together with those of the runs that it meets, if there are any."""
    meeting = _meeting.get()
    if meeting is None or not meeting.joins or not request.is_large:
        return answer_probes([request], pool)[0]
    return cast(Probed, meeting.ask(request))


def take_passes(walk: PassWalk[_T], problem: Problem) -> _T:
    """Goes through a walk of one run, together with those of the runs that it meets, if their passes may be one."""
    meeting = _meeting.get()
    if meeting is None or not meeting.joins or not isinstance(problem, ModuleProblem) or not problem.joins_passes:
        return take_alone(walk)
    return cast(_T, meeting.ask(walk))


def wait_for_device() -> None:
    """To be called before results are read from a CUDA device: the other runs of the population have their turns."""
    meeting = _meeting.get()
    if meeting and not meeting.joins:
        meeting.ask(Pause())


def count_members() -> int:
    """How many runs share the memory of the device with this one, itself included."""
    meeting = _meeting.get()
    return meeting.members if meeting else 1


def share_client_rows(
    x: Tensor | LazyRows, y: Tensor, order: Tensor, pixels: str, device: torch.device
) -> ClientRows | LazyClientRows:
    """The rows `order` of x and y; runs of a population that have the same ones hold them once."""
    if _meeting.get() is None:
        return make_client_rows(x, y, order, pixels, device)
    _known[:] = [entry for entry in _known if entry[-1]() is not None]
    for x_known, y_known, order_known, pixels_known, found in _known:
        rows = found()
        same = x_known is x and pixels_known == pixels and torch.equal(order_known, order) and _equal(y_known, y)
        if rows is not None and same and rows.device == device:
            return rows
    rows = make_client_rows(x, y, order, pixels, device)
    if device.type == "cuda":  # the others read them on streams of their own
        torch.cuda.current_stream(device).synchronize()
    _known.append((x, y, order, pixels, weakref.ref(rows)))
    return rows


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
