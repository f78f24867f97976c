"""Adversity by design: clients that stay away, and clients that send what they should not.

What happens to whom is a pure function of (seed, round, client), so a run with faults resumes and repeats.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named, Order, Report
from fedveca.cohorts import random as draws
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.errors import UserError, suggest

AWAY = ("crash", "drop", "late")  # by chance, round by round
BAD = ("nan", "scale", "flip", "lie")  # a share of the clients, the same ones in every round
FORMS = {
    "drop": "drop:P",
    "crash": "crash:P:ROUNDS",
    "late": "late:P",
    "nan": "nan:SHARE",
    "scale": "scale:SHARE:FACTOR",
    "flip": "flip:SHARE",
    "lie": "lie:SHARE",
}
PURPOSE = {kind: 1 + n for n, kind in enumerate(AWAY)}
WHO_IS_BAD = 8
LARGEST = 1e38  # of a factor: what float32 can hold


class Fault(NamedTuple):
    kind: str
    rate: float  # chance of a client in a round, or share of the clients
    more: float  # rounds of a crash, factor of a scaling


def parse_faults(text: str) -> dict[str, Fault]:
    """`drop:0.2,scale:0.1:10` by kind; ValueError with one sentence."""
    found: dict[str, Fault] = {}
    for word in text.split(",") if text else ():
        kind, *values = word.strip().split(":")
        if kind not in FORMS:
            hint = suggest(kind, FORMS)
            raise UserError(f"faults={text}: {kind!r} is not known{hint}; allowed: {' | '.join(FORMS.values())}")
        if kind in found:
            raise UserError(f"faults={text}: {kind} stands there twice")
        numbers = [_number(value) for value in values]
        if len(values) != FORMS[kind].count(":") or not 0 <= numbers[0] <= 1:
            raise UserError(f"faults={text}: {word.strip()!r} is not {FORMS[kind]} with a share in [0, 1]")
        more = numbers[1] if len(numbers) > 1 else 1.0
        if kind == "crash" and not (1 <= more <= 10**6 and more == int(more)):
            raise UserError(f"faults={text}: a crash lasts a whole number of rounds, 1 or more, not {values[1]}")
        if not math.isfinite(more):
            raise UserError(f"faults={text}: a factor is a finite number, not {values[1]}")
        if abs(more) > LARGEST:
            raise UserError(f"faults={text}: a factor is a number in [{-LARGEST}, {LARGEST}], not {values[1]}")
        found[kind] = Fault(kind, numbers[0], more)
    share = sum(fault.rate for fault in found.values() if fault.kind in BAD)
    if share > 1 + 1e-9:
        raise UserError(f"faults={text}: the shares of {', '.join(BAD)} add up to {share:g}; at most 1")
    return found


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


class Faults:
    """The faults of one run: who is away when, and who is bad."""

    def __init__(self, text: str, clients: int, seed: int) -> None:
        self.found, self.seed = parse_faults(text), seed
        order, at = draws.shuffled(WHO_IS_BAD, seed, clients), 0
        self.bad: dict[int, str] = {}  # client -> what it does
        self.factor, self.liar = torch.ones(clients), torch.zeros(clients, dtype=torch.bool)
        for fault in (self.found[kind] for kind in BAD if kind in self.found):
            count = draws.clients_per_round(clients, fault.rate) if fault.rate else 0
            mine = order[at : at + count]
            if len(mine) < count:
                raise UserError(f"faults={text}: {clients} clients are too few for so many kinds of bad ones")
            self.bad |= dict.fromkeys(mine.tolist(), fault.kind)
            self.factor[mine] = {"nan": math.nan, "scale": fault.more, "flip": -1.0, "lie": 1.0}[fault.kind]
            self.liar[mine] = fault.kind == "lie"
            at += count

    def away(self, k: int, ids: Tensor) -> dict[int, str]:
        """The clients among `ids` that do not answer in round k, and why."""
        out: dict[int, str] = {}
        for fault in (self.found[kind] for kind in AWAY if kind in self.found):
            since = max(0, k + 1 - int(fault.more))  # a crash that began then lasts until now
            for j in range(since, k + 1):
                hit = draws.uniform(PURPOSE[fault.kind], self.seed, j, ids) < fault.rate
                out = dict.fromkeys(ids[hit].tolist(), fault.kind) | out
        return out

    def send(self, k: int, ids: Tensor, vectors: Named, each: Named) -> tuple[Named, Named]:
        """What the clients send in place of their vectors [n, P] and numbers [n]."""
        vectors = {name: v * self.factor[ids, None].to(v) for name, v in vectors.items()}
        each = {name: torch.where(self.liar[ids].to(v.device), 0.0, v) for name, v in each.items()}
        return vectors, each


class Inner(Protocol):
    """A cohort whose clients remember."""

    sizes: Tensor

    @property
    def memory(self) -> PersistentMemory: ...

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]: ...


class FaultyCohort:
    """A cohort in which the faults happen; the report says which did."""

    def __init__(self, cohort: Inner, faults: Faults) -> None:
        self.cohort, self.faults, self.sizes = cohort, faults, cohort.sizes

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        away = self.faults.away(k, ids)
        what: list[dict[str, Any]] = []
        for i in ids.tolist():
            kind = away.get(i) or self.faults.bad.get(i)
            what += [{"client": i, "what": kind}] if kind else []
        here = torch.tensor([i not in away for i in ids.tolist()], dtype=torch.bool)
        if not here.any():
            return ids[here], Report({}, {}, 0.0, faults=tuple(what))
        who, report = self.cohort(k, order, ids[here], tau[here])
        return who, report._replace(faults=(*what, *report.faults))
