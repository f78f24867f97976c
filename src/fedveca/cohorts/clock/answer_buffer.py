"""Who is at work since which model, whose answers make a round, and how answers of different ages become one.

The part of buffered rounds (FedBuff, Nguyen et al. 2022) that does not depend on where clients run: in the simulator
`BufferedCohort` says when each of them answers, on Flower's nodes they do so themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Norms, Order, Report
from fedveca.cohorts.random import draw_uniform

_START_PURPOSE = 74  # of the draws of who starts next
_ORDER = "order."  # how the names of stored vectors begin: order.ROUND.NAME


class Flight(NamedTuple):
    """A client at work."""

    client: int
    start: int  # the round in which it started: its model is w of that round
    tau: int
    seconds: float  # that it takes
    finish: float  # simulated seconds since the start of the run


class AnswerBuffer(ABC):
    """Clients at work on models of different ages."""

    def __init__(self, sizes: Tensor, weights: Tensor, *, size: int, at_once: int, staleness: float, seed: int) -> None:
        """Starts with nobody at work.

        Args:
            sizes: [N] rows of each client.
            weights: [N] to which each client's p_i is in proportion.
            size: Answers of a round.
            at_once: Clients that are at work at the same time.
            staleness: The exponent a with which old answers lose weight; 0 for none.
            seed: Of the draws of who starts next.
        """
        self.sizes, self.weights, self.seed = sizes, weights, seed
        self.size, self.at_once, self.staleness = size, at_once, staleness
        self.now, self.flights = 0.0, dict[int, Flight]()  # by client
        self.orders: dict[int, Order] = {}  # of the rounds in which those clients started
        self.arrived: dict[int, Flight] = {}  # the answers of the round that is being made
        self.began = 0.0  # when that round began

    @abstractmethod
    def find_arrivals(self, k: int, order: Order, tau: Tensor) -> Tensor:
        """[n]: the clients whose answers make round k, rising; those that start work until then start from `order`.

        Args:
            k: The round.
            order: Of this round.
            tau: [N] the local steps of a client that starts now.
        """

    def list_starters(self, k: int) -> list[int]:
        """All clients, in the order in which they start work in round k where they are idle."""
        everyone = torch.arange(len(self.sizes))
        found: list[int] = draw_uniform(_START_PURPOSE, self.seed, k, everyone).argsort().tolist()
        return found

    def can_start(self, i: int) -> bool:
        """Whether a client may start now: it is idle, its answer is not part of this round, and there is room."""
        return len(self.flights) < self.at_once and i not in self.flights and i not in self.arrived

    def drop_orders(self) -> None:
        """Forgets the orders with which nobody is at work any more."""
        self.orders = {start: self.orders[start] for start in sorted({f.start for f in self.flights.values()})}

    def combine(self, k: int, answers: Mapping[int, tuple[Tensor, Report]]) -> tuple[Tensor, Report]:
        """One report of all: means weighted by rows and age, and by what factor their age shortens the server's step.

        For FedAvg this is w_(k+1) = w_k + sum_i p_i (1 + s_i)^-a (w_i - w_(k - s_i)): FedBuff with a mean by rows.
        """
        faults = tuple(fault for _, report in answers.values() for fault in report.faults)
        counted = {start: (who, report) for start, (who, report) in answers.items() if len(who)}
        if not counted:
            return torch.empty(0, dtype=torch.int64), Report({}, {}, 0.0, faults=faults)
        rows = {start: float(self.weights[who].sum()) for start, (who, _) in counted.items()}
        weight = {start: rows[start] * (1 + k - start) ** -self.staleness for start in counted}
        total = math.fsum(weight.values())
        reports = [report for _, report in counted.values()]
        shares = [weight[start] / total for start in counted]
        who = torch.cat([who for who, _ in counted.values()])
        place = who.argsort()
        mean = {name: shares[0] * v for name, v in reports[0].mean.items()}
        for share, report in zip(shares[1:], reports[1:], strict=True):
            mean = {name: v + share * report.mean[name] for name, v in mean.items()}
        each = {name: torch.cat([report.each[name] for report in reports])[place] for name in reports[0].each}
        norms = [report.norms for report in reports if report.norms]
        joined = Norms(torch.cat([n.ids for n in norms]), torch.cat([n.norms for n in norms], 1)) if norms else None
        report = Report(mean, each, math.fsum(r.mass for r in reports), reports[0].width, faults, joined)
        scale = total / math.fsum(rows.values())
        return who[place], report._replace(scale=scale, payload=reports[0].payload)

    def save(self) -> Named:
        """For a checkpoint between two rounds: who is at work since when, and the models from which they started."""
        flights = torch.tensor([list(flight) for flight in self.flights.values()], dtype=torch.float64).reshape(-1, 5)
        stored = {"flights": flights, "now": torch.tensor([self.now], dtype=torch.float64)}
        for start, order in self.orders.items():
            stored |= {f"{_ORDER}{start}.{name}": v for name, v in {"w": order.w, **_name_aux(order)}.items()}
        return stored

    def load(self, stored: Named, k: int, order: Order) -> bool:
        """Continues after k rounds; False where no run like this one, with orders like `order`, can have stored it."""
        flights, now = stored.get("flights"), stored.get("now")
        if flights is None or now is None or now.shape != (1,) or flights.dim() != 2 or flights.shape[1] != 5:
            return False
        if not bool(torch.isfinite(flights).all()):
            return False
        found = {int(row[0]): Flight(int(row[0]), int(row[1]), int(row[2]), row[3], row[4]) for row in flights.tolist()}
        good = len(found) == len(flights) <= self.at_once and math.isfinite(float(now)) and float(now) >= 0
        for flight in found.values():
            good &= 0 <= flight.client < len(self.sizes) and 0 <= flight.start < k and flight.tau >= 1
            good &= 0 <= flight.seconds < math.inf and float(now) <= flight.finish < math.inf
        wanted = {"w": order.w, **_name_aux(order)}
        starts = sorted({flight.start for flight in found.values()})
        names = {f"{_ORDER}{start}.{name}" for start in starts for name in wanted} | {"flights", "now"}
        if not good or names != stored.keys():
            return False
        orders = {}
        for start in starts:
            parts = {name: stored[f"{_ORDER}{start}.{name}"] for name in wanted}
            if any((v.shape, v.dtype) != (wanted[name].shape, wanted[name].dtype) for name, v in parts.items()):
                return False
            if not all(bool(torch.isfinite(v).all()) for v in parts.values()):
                return False
            w = parts.pop("w").to(order.w.device)
            aux = {name.removeprefix("aux."): v.to(order.w.device) for name, v in parts.items()}
            orders[start] = Order(w, aux)
        self.now, self.flights, self.orders, self.arrived = float(now), found, orders, {}
        return True


def _name_aux(order: Order) -> Named:
    return {f"aux.{name}": v for name, v in order.aux.items()}
