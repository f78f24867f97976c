"""Buffered asynchronous rounds (FedBuff, Nguyen et al. 2022): clients at work on models of different ages.

So many clients are always at work. As soon as `size` of them have answered, the server makes the next model of their
answers, and each client that starts afterwards starts from that one. An answer that began s models ago counts
(1 + s)^-a times as much.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedveca.algorithms.contract import Order, Report, Timing
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.clock.answer_buffer import AnswerBuffer, Flight
from fedveca.cohorts.clock.cohort import WorkRule
from fedveca.cohorts.clock.fleet import Fleet
from fedveca.cohorts.contract import ClientScores, Cohort, HeldPart


class BufferedCohort(AnswerBuffer):
    """A cohort on simulated devices in which a round takes the answers that come first, whenever they started."""

    def __init__(
        self, cohort: Cohort, fleet: Fleet, rule: WorkRule, *, size: int, at_once: int, staleness: float
    ) -> None:
        """Puts clients on devices.

        Args:
            cohort: The clients.
            fleet: Their devices.
            rule: What they compute and send.
            size: Answers of a round.
            at_once: Clients that are at work at the same time.
            staleness: The exponent a with which old answers lose weight; 0 for none.
        """
        super().__init__(cohort.sizes, cohort.weights, size=size, at_once=at_once, staleness=staleness, seed=fleet.seed)
        self.cohort, self.fleet, self.rule = cohort, fleet, rule

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def find_arrivals(self, k: int, order: Order, tau: Tensor) -> Tensor:
        """The clients that answer first, as `AnswerBuffer` has it."""
        everyone = torch.arange(len(self.sizes))
        able = self.fleet.find_available(k, everyone)
        waiting = [i for i in self.list_starters(k) if able[i]]
        seconds = self.fleet.find_seconds(k, everyone, self.rule.count_work(order, everyone, tau)).tolist()
        steps, self.began, self.arrived = tau.tolist(), self.now, {}
        self.orders[k] = order
        while len(self.arrived) < self.size:
            for i in waiting:
                if self.can_start(i):
                    self.flights[i] = Flight(i, k, steps[i], seconds[i], self.now + seconds[i])
            if not self.flights:
                break
            first = min(self.flights.values(), key=lambda flight: (flight.finish, flight.client))
            self.now = max(self.now, first.finish)
            self.arrived[first.client] = self.flights.pop(first.client)
        return torch.tensor(sorted(self.arrived), dtype=torch.int64)

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """The answers of `find_arrivals`, each computed from the order with which its client started."""
        if not bool((tau > 0).any()) and len(ids):
            return self.cohort(k, order, ids, tau)
        groups: dict[int, list[Flight]] = {}
        for i in ids.tolist():
            groups.setdefault(self.arrived[i].start, []).append(self.arrived[i])
        answers = {}
        for start, flights in groups.items():
            who = torch.tensor([flight.client for flight in flights])
            answers[start] = self.cohort(start, self.orders[start], who, torch.tensor([f.tau for f in flights]))
        who, report = self.combine(k, answers)
        joules = self._sum_joules(groups) if self.fleet.has_energy else None
        flown = [self.arrived[i] for i in who.tolist()]
        age = torch.tensor([k - flight.start for flight in flown], dtype=torch.int64)
        seconds = torch.tensor([flight.seconds for flight in flown], dtype=torch.float64)
        steps = torch.tensor([self._find_step_seconds(flight) for flight in flown], dtype=torch.float64)
        self.drop_orders()
        return who, report._replace(timing=Timing(self.now - self.began, seconds, joules, age, steps=steps))

    def _find_step_seconds(self, flight: Flight) -> float:
        ids, rows = torch.tensor([flight.client]), torch.tensor([flight.tau * self.rule.batch])
        return float(self.fleet.find_step_seconds(flight.start, ids, rows))

    def _sum_joules(self, groups: Mapping[int, list[Flight]]) -> float:
        total = 0.0
        for start, flights in groups.items():
            ids = torch.tensor([flight.client for flight in flights])
            work = self.rule.count_work(self.orders[start], ids, torch.tensor([flight.tau for flight in flights]))
            total += float(self.fleet.find_joules(ids, work).sum())
        return total

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """Of every client that answers: what is evaluated for the record takes no simulated time."""
        return self.cohort.evaluate(k, order, part, finetune)
