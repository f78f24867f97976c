"""Buffered rounds (FedBuff) over Flower nodes: a round takes the answers that come first, whenever they started.

An order stays with its node until it is answered, or `timeout` seconds have passed. Which clients are at work, since
which round and with which model, is part of a checkpoint: a server that is resumed sends those orders again, and the
nodes compute the same answers again, since all draws are a pure function of (seed, round, client).
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Order, Report, Timing
from fedveca.cohorts.clock.answer_buffer import AnswerBuffer, Flight
from fedveca.cohorts.flower import cohort, roster
from fedveca.cohorts.flower.answers import PendingOrder
from fedveca.cohorts.flower.cohort import ClientDiverged, FlowerCohort
from fedveca.cohorts.flower.messages import InvalidAnswer
from fedveca.cohorts.flower.roster import TooFewClients
from fedveca.cohorts.flower.tally import AnswerTally

Answer = tuple[dict[str, float], Named]  # numbers and vectors, checked


class BufferedFlowerCohort(FlowerCohort, AnswerBuffer):
    """The clients of a Flower federation, at work on models of different ages; `set_buffer` comes first."""

    def set_buffer(self, *, size: int, at_once: int, staleness: float, seed: int) -> None:
        """Starts with nobody at work; the arguments are those of `AnswerBuffer`."""
        AnswerBuffer.__init__(
            self, self.sizes, self.weights, size=size, at_once=at_once, staleness=staleness, seed=seed
        )
        self._sent: dict[int, PendingOrder] = {}  # of the clients at work; not of those whose order is to be sent again
        self._answers: dict[int, Answer] = {}  # of the round that is being made
        self._zero: float | None = None  # when `now` was 0

    def find_arrivals(self, k: int, order: Order, tau: Tensor) -> Tensor:
        """Waits for as many answers as a round takes; after `timeout` seconds `min_clients` are enough.

        A wait without so many is void, and begins anew; an answer that has arrived stays.
        """
        self.faults, self._early = self._early, []
        self.orders[k], self.began, self.arrived, self._answers = order, self._read_clock(), {}, {}
        failed, self._diverged, attempt = set[int](), set[int](), 1
        until = time.monotonic() + self.timeout
        while len(self.arrived) < self.size:
            self._check_arrivals()
            self._start_idle(k, tau, failed)
            self._take_answers(failed)
            everyone_failed = not self.flights and len(failed | self.arrived.keys()) == len(self.sizes)
            if len(self.arrived) < self.size and (everyone_failed or time.monotonic() > until):
                if len(self.arrived) >= self.min_clients or len(self._diverged) == len(self.sizes):
                    break
                if attempt == cohort._ATTEMPTS:
                    raise TooFewClients(
                        f"round {k + 1}: fewer than {self.min_clients} of {len(self.sizes)} clients answered, "
                        f"{attempt} times in a row"
                    )
                self.say(f"round {k + 1} has {len(self.arrived)} of {self.size} answers; the server continues to wait")
                failed, attempt, until = set(), attempt + 1, time.monotonic() + self.timeout
            elif len(self.arrived) < self.size:
                time.sleep(roster.POLL_SECONDS)
        self.now = self._read_clock()
        return torch.tensor(sorted(self.arrived), dtype=torch.int64)

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """The answers of `find_arrivals`; where no steps are asked for, a round of all `ids`."""
        if not bool((tau > 0).any()) and len(ids):
            return super().__call__(k, order, ids, tau)
        groups: dict[int, AnswerTally] = {}
        for i in ids.tolist():
            flight = self.arrived[i]
            tally = groups.setdefault(flight.start, AnswerTally(self.aggregate(), self.weights))
            tally.add(i, flight.tau, *self._answers.pop(i))
            self.memory.rounds[i] = flight.start  # under which its node has stored what it remembers
        who, report = self.combine(k, {start: tally.close(order.w) for start, tally in groups.items()})
        flown = [self.arrived[i] for i in who.tolist()]
        age = torch.tensor([k - flight.start for flight in flown], dtype=torch.int64)
        seconds = torch.tensor([flight.seconds for flight in flown], dtype=torch.float64)
        self.drop_orders()
        timing = Timing(self.now - self.began, seconds, None, age)
        return who, self.transfer.label(report._replace(faults=tuple(self.faults), timing=timing))

    def save(self) -> Named:
        """For a checkpoint; nobody knows when clients at work will answer."""
        flights = self.flights
        self.flights = {i: flight._replace(seconds=0.0, finish=self.now) for i, flight in flights.items()}
        stored = super().save()
        self.flights = flights
        return stored

    def load(self, stored: Named, k: int, order: Order) -> bool:
        """As `AnswerBuffer` has it; the orders of clients at work are sent again with the next round."""
        self._sent, self._zero = {}, None
        return super().load(stored, k, order)

    def _read_clock(self) -> float:
        """Seconds since the start of the run, without those in which no server ran."""
        if self._zero is None:
            self._zero = time.monotonic() - self.now
        return time.monotonic() - self._zero

    def _start_idle(self, k: int, tau: Tensor, failed: set[int]) -> None:
        """Sends orders to idle clients that are connected, and again those that were lost with a former server."""
        here = set(self.roster.list_connected(range(len(self.sizes))))
        groups: dict[int, dict[int, int]] = {}  # round -> client -> local steps
        for i, flight in self.flights.items():
            if i not in self._sent and i in here:
                groups.setdefault(flight.start, {})[i] = flight.tau
        for i in self.list_starters(k):
            if self.can_start(i) and i not in failed and i in here:
                groups.setdefault(k, {})[i] = int(tau[i])
                self.flights[i] = Flight(i, k, int(tau[i]), 0.0, 0.0)
        for start, steps in groups.items():
            began = self._read_clock()
            sent = self._send(start, self.orders[start], list(steps), {i: {"tau": n} for i, n in steps.items()})
            for i in steps:
                if i in sent:
                    self._sent[i] = sent[i]
                    self.flights[i] = self.flights[i]._replace(finish=began)  # until it has answered
                else:
                    failed.add(i)
                    del self.flights[i]

    def _take_answers(self, failed: set[int]) -> None:
        """Takes answers that are there, those with the oldest models first, until there are as many as wanted."""
        for flight in sorted(self.flights.values(), key=lambda flight: (flight.start, flight.client)):
            i = flight.client
            if i not in self._sent or len(self.arrived) == self.size:
                continue
            began = flight.finish
            try:
                message = self._find_reply(self._sent[i])
                if message is None and self._read_clock() - began <= self.timeout:
                    continue
                if message is None:
                    self._late.setdefault(i, []).append(self._sent[i])
                    raise InvalidAnswer(f"timed out after {self.timeout:g} s")
                order = self.orders[flight.start]
                answer = self._read_reply(i, message, self._sent[i], flight.tau, self._find_form(order))
                self._check_variances(order, answer[1])
            except InvalidAnswer as error:
                self._diverged |= {i} if isinstance(error, ClientDiverged) else set()
                self._fault(i, str(error))
                failed.add(i)
            else:
                now = self._read_clock()
                self._answers[i], self.arrived[i] = answer, flight._replace(seconds=now - began, finish=now)
            del self.flights[i], self._sent[i]
