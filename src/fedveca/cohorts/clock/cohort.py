"""A cohort on simulated devices: clients that are absent or late do not count, and every round takes its time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Fault, Order, Report, Timing
from fedveca.cohorts.answer_form import find_answer
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.clock.fleet import Fleet, Work
from fedveca.cohorts.clock.profiles import LATE_ANSWER, LatePolicy
from fedveca.cohorts.clock.schedule import close_round
from fedveca.cohorts.contract import ClientScores, Cohort, HeldPart
from fedveca.cohorts.transfer import PLAIN, VectorTransfer

UNAVAILABLE = "unavailable"  # what the record says of a client that is not there
FindAbsent = Callable[[int, Tensor], dict[int, str]]  # (round, ids [n]) -> those of them that never answer, and why


class WorkRule(NamedTuple):
    """What a client of a method computes and sends in a round."""

    algorithm: Algorithm
    sizes: Tensor  # [N] rows of each client
    batch: int
    probe: int  # rows on which a client computes F_i(w_k); 0 is all
    want_loss: bool  # whether the run needs F_i(w_k)
    want_loss_after: bool  # and F_i of the local model
    transfer: VectorTransfer = PLAIN
    word_bytes: int = 0  # of a number of a masked vector; 0 where vectors are not masked

    def count_work(self, order: Order, ids: Tensor, tau: Tensor) -> Work:
        """The work of tau [n] local steps; where all are 0, clients only compute their loss."""
        down = self.transfer.width * sum(v.numel() for v in (order.w, *order.aux.values())) + 8
        rows, loss_rows = self.count_rows(ids, tau)
        if not bool((tau > 0).any()):
            return Work(rows, loss_rows, down, 8 * len(("loss", "tau")))
        return Work(rows, loss_rows, down, self._count_answer(order))

    def count_rows(self, ids: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """[n] each: the rows whose gradient is computed, and those whose loss alone is."""
        method, sizes = self.algorithm, self.sizes[ids]
        probed = sizes.clamp(max=self.probe) if self.probe else sizes
        if not bool((tau > 0).any()):
            return torch.zeros_like(tau), probed
        before, after = method.needs_gradient, method.needs_gradient_after
        losses = (self.want_loss or method.needs_loss) and not before, self.want_loss_after and not after
        rows = tau * self.batch + probed * (before + after)
        return rows, probed * sum(losses)

    def _count_answer(self, order: Order) -> int:
        """Bytes of an answer: the vectors and numbers of `finish`, the steps taken, and losses."""
        method, (lengths, numbers) = self.algorithm, find_answer(self.algorithm, order)
        lengths |= {STATISTICS: order.aux[STATISTICS].numel()} if STATISTICS in order.aux else {}
        names = {*numbers, "tau"}
        names |= {"loss"} if self.want_loss or method.needs_loss or method.needs_gradient else set()
        names |= {"after"} if self.want_loss_after else set()
        vectors = self.word_bytes * sum(lengths.values()) if self.word_bytes else self.transfer.count_bytes(lengths)
        return vectors + 8 * len(names)


class TimedCohort:
    """A cohort whose clients have devices; its report says how long they took."""

    def __init__(
        self,
        cohort: Cohort,
        fleet: Fleet,
        rule: WorkRule,
        *,
        deadline: float = math.inf,
        late: LatePolicy = "drop",
        enough: int | None = None,
        find_absent: FindAbsent | None = None,
    ) -> None:
        """Puts clients on devices.

        Args:
            cohort: The clients.
            fleet: Their devices.
            rule: What they compute and send.
            deadline: Seconds after which a round ends; inf to wait for everyone.
            late: Whether late clients are left out, or take only the local steps for which there is time.
            enough: Answers after which a round ends; None for all.
            find_absent: Which clients will not answer at all: the server waits for them until the deadline.
        """
        self.cohort, self.fleet, self.rule = cohort, fleet, rule
        self.sizes, self.weights = cohort.sizes, cohort.weights
        self.deadline, self.late, self.enough, self.find_absent = deadline, late, enough, find_absent

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        here = self.fleet.find_available(k, ids)
        faults = [Fault(client=i, what=UNAVAILABLE) for i in ids[~here].tolist()]
        ids, tau, steps = ids[here], tau[here], bool((tau > 0).any())
        deadline, enough = (self.deadline, self.enough) if steps else (math.inf, None)
        work = self.rule.count_work(order, ids, tau)
        if steps and self.late == "cut" and math.isfinite(deadline):
            fitting = self.fleet.fit_steps(k, ids, work, tau, self.rule.batch, deadline)
            tau = torch.where(fitting > 0, fitting, tau)
            work = self.rule.count_work(order, ids, tau)
        seconds = self.fleet.find_seconds(k, ids, work)
        gone = self.find_absent(k, ids) if self.find_absent else {}
        absent = torch.tensor([i in gone for i in ids.tolist()], dtype=torch.bool)
        counts, lasts = close_round(torch.where(absent, math.inf, seconds), deadline, enough)
        faults += [Fault(client=i, what=LATE_ANSWER) for i in ids[~counts & ~absent].tolist()]
        joules = self._sum_joules(ids, work, counts, ~absent) if self.fleet.has_energy else None
        asked = counts | absent  # the cohort itself records who is absent
        report, who = Report({}, {}, 0.0), ids[:0]
        if bool(asked.any()):
            who, report = self.cohort(k, order, ids[asked], tau[asked])
        answered = torch.isin(ids, who)
        stepping = self.fleet.find_step_seconds(k, who, tau[answered] * self.rule.batch)
        timing = Timing(lasts, seconds[answered], joules, steps=stepping)
        return who, report._replace(faults=(*faults, *report.faults), timing=timing)

    def _sum_joules(self, ids: Tensor, work: Work, counts: Tensor, works: Tensor) -> float:
        """Of all that compute; an answer that does not count is not sent."""
        sent = self.fleet.find_joules(ids, work)
        unsent = self.fleet.find_joules(ids, work._replace(up=0))
        return float(torch.where(counts, sent, unsent)[works].sum())

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """Of every client that answers: what is evaluated for the record takes no simulated time."""
        return self.cohort.evaluate(k, order, part, finetune)
