"""Faults by design: clients that stay away, and clients that send what they should not.

What happens to whom is a pure function of (seed, round, client), so a run with faults resumes and repeats.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedveca.algorithms.contract import Fault, Named, Order, Report
from fedveca.cohorts import random as draws
from fedveca.cohorts.client_memory import PersistentMemory
from fedveca.cohorts.contract import ClientScores, Cohort, HeldPart
from fedveca.cohorts.fault_settings import ABSENCES, ATTACKS, FLIP, LIE, NAN, SCALE, parse_faults
from fedveca.errors import UserError

_ABSENCE_PURPOSE = {kind: 1 + n for n, kind in enumerate(ABSENCES)}
_ATTACKER_PURPOSE = 8


class Faults:
    """The faults of one run: who is away when, and who attacks."""

    def __init__(self, text: str, clients: int, seed: int) -> None:
        self.settings, self.seed = parse_faults(text), seed
        order, at = draws.shuffle_clients(_ATTACKER_PURPOSE, seed, clients), 0
        self.attackers: dict[int, str] = {}  # client -> its attack
        self.factor, self.liar = torch.ones(clients), torch.zeros(clients, dtype=torch.bool)
        for fault in (self.settings[kind] for kind in ATTACKS if kind in self.settings):
            count = draws.clients_per_round(clients, fault.rate) if fault.rate else 0
            mine = order[at : at + count]
            if len(mine) < count:
                raise UserError(f"faults={text}: {clients} clients are too few for so many kinds of bad ones")
            self.attackers |= dict.fromkeys(mine.tolist(), fault.kind)
            self.factor[mine] = {NAN: math.nan, SCALE: fault.extent, FLIP: -1.0, LIE: 1.0}[fault.kind]
            self.liar[mine] = fault.kind == LIE
            at += count

    def find_absent(self, k: int, ids: Tensor) -> dict[int, str]:
        """The clients among `ids` that do not answer in round k, and why."""
        out: dict[int, str] = {}
        for fault in (self.settings[kind] for kind in ABSENCES if kind in self.settings):
            since = max(0, k + 1 - int(fault.extent))  # a crash that began then lasts until now
            for j in range(since, k + 1):
                hit = draws.draw_uniform(_ABSENCE_PURPOSE[fault.kind], self.seed, j, ids) < fault.rate
                out = dict.fromkeys(ids[hit].tolist(), fault.kind) | out
        return out

    def send(self, k: int, ids: Tensor, vectors: Named, each: Named) -> tuple[Named, Named]:
        """What the clients send in place of their vectors [n, P] and numbers [n]."""
        vectors = {name: v * self.factor[ids, None].to(v) for name, v in vectors.items()}
        each = {name: torch.where(self.liar[ids].to(v.device), 0.0, v) for name, v in each.items()}
        return vectors, each


class FaultyCohort:
    """A cohort in which the faults happen; its report names those that did."""

    def __init__(self, cohort: Cohort, faults: Faults) -> None:
        self.cohort, self.faults, self.sizes, self.weights = cohort, faults, cohort.sizes, cohort.weights

    @property
    def memory(self) -> PersistentMemory:
        return self.cohort.memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        absent = self.faults.find_absent(k, ids)
        kinds = self.faults.attackers | absent  # who is away cannot attack
        happened = tuple(Fault(client=i, what=kinds[i]) for i in ids.tolist() if i in kinds)
        here = torch.tensor([i not in absent for i in ids.tolist()], dtype=torch.bool)
        if not here.any():
            return ids[here], Report({}, {}, 0.0, faults=happened)
        who, report = self.cohort(k, order, ids[here], tau[here])
        return who, report._replace(faults=(*happened, *report.faults))

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """Of the clients that are not away in round k; a liar reports zeros here too."""
        ids, rows, values, *_ = self.cohort.evaluate(k, order, part, finetune)
        absent = self.faults.find_absent(k, ids)
        here = torch.tensor([i not in absent for i in ids.tolist()], dtype=torch.bool)
        _, values = self.faults.send(k, ids, {}, values)
        return ClientScores(ids[here], rows[here], {name: v[here] for name, v in values.items()})
