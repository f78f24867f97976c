"""The round generator: who iterates it evaluates, records, draws and stops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Norms, Order, Report
from fedveca.cohorts.contract import Cohort
from fedveca.cohorts.random import clients_per_round, sample_clients

RECENT = 5  # rounds in which the cause is sought when a run diverges
MARGIN = 10.0  # times the others' median: an update so long is named then


class Diverged(RuntimeError):
    """No client of a round gave finite numbers."""


def federate(
    algorithm: Algorithm,
    cohort: Cohort,
    state: Any,
    rounds: int,
    *,
    first: int = 0,
    participation: float = 1.0,
    seed: int = 0,
    rollback: bool = False,
    least: float = math.inf,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The state after each round and what was seen in it: numbers [], or [n] over `ids`, and the round's faults.

    A round in which faults kept everyone away changes nothing.

    `rollback` undoes a round whose estimated loss is above the least one before (A1.8-12); `first` and
    `least` let a stopped federation go on.
    """
    recent: deque[tuple[int, Norms]] = deque(maxlen=RECENT)
    for k in range(first, rounds):
        ids = choose_clients(cohort, k, participation, seed)
        order = algorithm.order(state)
        who, report = cohort(k, order, ids, state.tau[ids])
        trace: dict[str, Any] = {"round": torch.tensor(k), "ids": who, "left_out": ids[~torch.isin(ids, who)]}
        trace |= {"faults": list(report.faults)} if report.faults else {}
        if len(who) == 0 and {fault["client"] for fault in report.faults} == set(ids.tolist()):
            trace |= {"tau": state.tau[who], "tau_k": torch.tensor(0.0), "accepted": torch.tensor(False)}
            trace |= {"least": torch.tensor(least, dtype=torch.float64)}
            yield state, trace | _traffic(order, report, len(ids), 0)
            continue
        if len(who) == 0:
            raise Diverged(f"round {k + 1}: no client gave a finite loss and gradient; {_advice(recent)}")
        recent.extend([(k, report.norms)] if report.norms else [])
        size = cohort.sizes[who].double()
        p = size / size.sum()
        after, seen = algorithm.update(state, who, p, report)
        if not bool(torch.isfinite(after.w).all()):
            raise Diverged(f"round {k + 1}: the averaged model is not finite; {_advice(recent)}")
        trace |= {"tau": state.tau[who], "tau_k": p @ state.tau[who].double()} | seen
        trace |= {"train_loss": p @ report.each["loss"]} if "loss" in report.each else {}
        if rollback:
            F = float(p @ report.each["after"])  # (4), from the local models: A1.5
            accepted = least >= F
            least = min(F, least)
            after = after if accepted else after._replace(w=state.w)
            trace |= {"accepted": torch.tensor(accepted), "least": torch.tensor(least, dtype=torch.float64)}
        trace |= _traffic(order, report, len(ids), len(who))
        state = after
        yield state, trace


def evaluate_loss(algorithm: Algorithm, cohort: Cohort, state: Any, k: int, participation: float, seed: int) -> float:
    """F(w_k) = sum p_i F_i(w_k), by a round of no steps."""
    ids = choose_clients(cohort, k, participation, seed)
    who, report = cohort(k, algorithm.order(state), ids, torch.zeros_like(ids))
    if len(who) == 0:
        return math.inf
    size = cohort.sizes[who].double()
    return float((size / size.sum()) @ report.each["loss"])


def choose_clients(cohort: Cohort, k: int, participation: float, seed: int) -> Tensor:
    """The clients of round k: a share of all, at least one, a pure function of (seed, k)."""
    clients = len(cohort.sizes)
    return sample_clients(seed, k, clients, clients_per_round(clients, participation))


def _advice(recent: Iterable[tuple[int, Norms]]) -> str:
    """What to do about a run that diverged: who sent by far the longest update of the last rounds, if anyone did."""
    most, said = MARGIN, "a smaller lr usually helps"
    for k, (ids, norms) in recent:
        for row in norms.double().cpu():
            clients, row = ids[torch.isfinite(row)], row[torch.isfinite(row)]
            if len(row) < 2:
                continue
            at = int(row.argmax())
            others = float(torch.cat([row[:at], row[at + 1 :]]).median())
            if others > 0 and float(row[at]) / others > most:
                most = float(row[at]) / others
                said = f"the update of client {int(clients[at])} in round {k + 1} was {most:.3g} times as long as the "
                said += "others' median: check that client; aggregate=clip or a smaller lr may help"
    return said


def _traffic(order: Order, report: Report, asked: int, answered: int) -> Named:
    """What crosses a network, in bytes: vectors, and 8-byte numbers."""
    vector = report.width * order.w.numel()
    down = asked * (vector * (1 + len(order.aux)) + 8)
    up = answered * (vector * len(report.mean) + 8 * len(report.each))
    return {"bytes_down": torch.tensor(down), "bytes_up": torch.tensor(up)}
