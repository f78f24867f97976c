"""The round generator: whoever iterates over it evaluates, records, draws and stops."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Fault, HasModel, Norms, Order, Report, Timing
from fedveca.cohorts.client_memory import reject_statistics, split_statistics
from fedveca.cohorts.contract import Cohort
from fedveca.cohorts.random import clients_per_round, draw_choice, sample_clients
from fedveca.errors import UserError, show_value
from fedveca.runs.folder import to_json
from fedveca.runs.guard import TrainingGuard
from fedveca.runs.schema import Round
from fedveca.runs.work import RowCount, find_computing

RECENT = 5  # rounds in which the cause is sought when a run diverges
RecentNorms = deque[tuple[int, Norms]]  # of the last rounds, each with its number
StepRule = Callable[[int, Tensor], Tensor]  # (round, ids [n]) -> the local steps of these clients, [n] int64
ArrivalRule = Callable[[int, Order, Tensor], Tensor]  # (round, order, tau [N]) -> the clients that answer, [n] rising
MARGIN = 10.0  # times the others' median: an update so long is named then


class Diverged(RuntimeError):
    """No client of a round gave finite numbers."""


class Rollback:
    """Undoes a round whose estimated loss is above the lowest one before (A1.8-12)."""

    def __init__(self, lowest: float = math.inf) -> None:
        self.lowest = lowest

    def accept(self, loss: float) -> bool:
        accepted = self.lowest >= loss
        self.lowest = min(loss, self.lowest)
        return accepted


class RunningStatistics:
    """The server's running statistics of a model [S]: each round adds the clients' mean change."""

    def __init__(self, now: Tensor) -> None:
        self.now = now

    def add(self, change: Tensor) -> None:
        self.now = self.now + change.to(self.now)


def federate(
    algorithm: Algorithm,
    cohort: Cohort,
    state: Any,
    rounds: int,
    *,
    first: int = 0,
    participation: float = 1.0,
    seed: int = 0,
    rollback: Rollback | None = None,
    guard: TrainingGuard | None = None,
    statistics: RunningStatistics | None = None,
    recent: RecentNorms | None = None,
    steps: StepRule | None = None,
    count_rows: RowCount | None = None,
    clock: float = 0.0,
    arrivals: ArrivalRule | None = None,
) -> Iterator[tuple[Any, Round]]:
    """Runs the rounds of a federation, one per iteration.

    A round in which faults kept every client away changes nothing.

    Args:
        algorithm: The method.
        cohort: The clients, wherever they are.
        state: The server's state, as `algorithm.init` or an earlier round gave it.
        rounds: The number of the last round.
        first: Rounds that are done already, where a federation is resumed.
        participation: The share of the clients that take part in each round.
        seed: The seed that draws them.
        rollback: Where given, a round that raises the estimated loss is undone.
        guard: Where given, it takes a run in trouble back to its best model.
        statistics: The model's running statistics, where it has any; they change from round to round.
        recent: Where given, it is filled with the lengths of the clients' updates, for `advise`.
        steps: Where given, it decides the local steps of a round in place of the state's tau; a pure function.
        count_rows: Where given, each record has the gradient rows that the round's clients computed.
        clock: Seconds of the rounds that are done already, where they are simulated or a deployment measures them.
        arrivals: Where given, it decides who answers in a round in place of the draw (`schedule=buffered`).

    Yields:
        The state after each round, and the round's record.

    Raises:
        Diverged: Where no client of a round gave finite numbers, or the averaged model is not finite; with a guard,
            where this has happened too often.
    """
    recent = deque(maxlen=RECENT) if recent is None else recent
    for k in range(first, rounds):
        start, method = time.perf_counter(), algorithm.at(k)
        order = compose_order(method, state, statistics)
        if arrivals:
            choice = Choice(arrivals(k, order, steps(k, torch.arange(len(state.tau))) if steps else state.tau))
        else:
            choice = select_clients(method, cohort, state, order, k, participation, seed)
        ids = choice.ids
        tau = state.tau if steps is None else state.tau.index_copy(0, ids, steps(k, ids))  # [N]
        answered, report = cohort(k, order, ids, tau[ids])
        left_out = ids[:0] if torch.equal(ids, answered) else ids[~torch.isin(ids, answered)]
        seen: dict[str, object] = {"round": k, "ids": answered, "left_out": left_out}
        seen |= {"lr": method.lr} if method.is_scheduled else {}
        seen |= choice.record
        faults = list({(fault["client"], fault["what"]): fault for fault in (*choice.faults, *report.faults)}.values())
        seen |= {"faults": faults} if faults else {}
        failed = trouble = ""
        if len(answered) == 0 and {fault["client"] for fault in report.faults} == set(ids.tolist()):
            seen |= {"tau": tau[answered], "tau_k": 0.0, "accepted": False}
        elif len(answered) == 0:
            seen |= {"tau": tau[answered], "tau_k": 0.0}
            failed = "no client gave a finite loss and gradient"
        else:
            recent.extend([(k, report.norms)] if report.norms else [])
            p = _weigh(cohort, answered)
            mean, change = split_statistics(report.mean)
            after, recorded = method.update(state, answered, p, report._replace(mean=mean))
            failed = "" if _is_finite(after.w) else "the averaged model is not finite"
            taken = report.each.get("tau", tau[answered]).double()  # by a cohort that cuts a client short, fewer
            seen |= {"tau": taken.long(), "tau_k": p @ taken} | recorded
            seen |= {"train_loss": p @ report.each["loss"]} if "loss" in report.each else {}
            if report.scale < 1 and not failed:
                after = method.shorten(state, after, report.scale)
            if guard:
                model = join_model(state, statistics)
                loss = guard.find_loss(k, state, model) if guard.find_loss else float(p @ report.each["loss"])
                trouble = guard.judge(k, model, loss)
                if guard.scale < 1 and not failed and not trouble:
                    after = method.shorten(state, after, guard.scale)
                    seen |= {"step_scale": guard.scale}
            if rollback:
                accepted = rollback.accept(float(p @ report.each["after"]))  # (4), from the local models: A1.5
                after = after if accepted else method.relocate(state, after, method.locate(state))
                seen |= {"accepted": accepted}
            if not failed and not trouble:
                if statistics and change is not None and seen.get("accepted", True):
                    statistics.add(change)
                state = after
        if failed and (guard is None or guard.give_up()):
            raise Diverged(f"round {k + 1}: {failed}; {advise(recent, guarded=guard is not None)}")
        if guard and (failed or trouble):
            state = _go_back(algorithm, cohort, guard, state, statistics)
            seen |= {"guarded": f"{guard.shorten()}: {failed or trouble}", "accepted": False}
        down, up = _count_bytes(order, report, len(ids), len(answered))
        if count_rows:
            computing = find_computing(ids, answered, faults)
            taken = tau.index_copy(0, answered, torch.tensor(to_json(seen["tau"]), dtype=torch.int64))
            seen |= {"rows": count_rows(cohort.sizes[ids][computing], taken[ids][computing])}
        seen |= {"bytes_down": choice.down + down, "bytes_up": choice.up + up}
        if report.timing:
            clock += choice.seconds + report.timing.seconds
            seen |= {"clock": clock, "client_seconds": report.timing.clients}
            seen |= {} if report.timing.staleness is None else {"staleness": report.timing.staleness}
            seen |= report.timing.parts
            seen |= {} if report.timing.joules is None else {"joules": choice.joules + report.timing.joules}
        seen["seconds"] = round(time.perf_counter() - start, 6)
        yield state, cast(Round, {name: to_json(value) for name, value in seen.items()})


def _go_back(
    algorithm: Algorithm, cohort: Cohort, guard: TrainingGuard, state: HasModel, statistics: RunningStatistics | None
) -> HasModel:
    """The state with which the method starts at the guard's best model; the clients forget what they remember."""
    size = len(state.w)
    if statistics:
        statistics.now = guard.best[size:]
    cohort.memory.forget()
    fresh: HasModel = algorithm.init(guard.best[:size], guard.tau)
    return fresh


def join_model(state: HasModel, statistics: RunningStatistics | None) -> Tensor:
    """[P + S]: w, with the running statistics behind it where the model has any."""
    return torch.cat([state.w, statistics.now]) if statistics else state.w


def compose_order(algorithm: Algorithm, state: Any, statistics: RunningStatistics | None) -> Order:
    """What the method sends to its clients, with the running statistics of the model."""
    order = algorithm.order(state)
    reject_statistics(order.aux, "order")
    return order._replace(aux={**order.aux, STATISTICS: statistics.now}) if statistics else order


def evaluate_loss(cohort: Cohort, order: Order, k: int, ids: Tensor) -> float:
    """F(w) = sum p_i F_i(w) over clients `ids` at the order's model, by a round without steps; inf without answers."""
    answered, report = cohort(k, order, ids, torch.zeros_like(ids))
    return float(_weigh(cohort, answered) @ report.each["loss"]) if len(answered) else math.inf


def choose_clients(cohort: Cohort, k: int, participation: float, seed: int) -> Tensor:
    """The clients of round k: a share of all, at least one, a pure function of (seed, k)."""
    clients = len(cohort.sizes)
    return sample_clients(seed, k, clients, clients_per_round(clients, participation))


class Choice(NamedTuple):
    """The clients of a round, and what it took to choose them."""

    ids: Tensor  # rising
    record: dict[str, object] = {}  # noqa: RUF012
    faults: tuple[Fault, ...] = ()
    down: int = 0  # bytes
    up: int = 0
    seconds: float = 0.0  # simulated
    joules: float = 0.0


def select_clients(
    algorithm: Algorithm, cohort: Cohort, state: HasModel, order: Order, k: int, participation: float, seed: int
) -> Choice:
    """The clients of round k: drawn, or chosen by a method that does so, which may ask some for their losses before."""
    if not algorithm.chooses:
        return Choice(choose_clients(cohort, k, participation, seed))
    clients = torch.arange(len(cohort.sizes))
    found = Choice(clients)

    def ask(ids: Tensor) -> Tensor:
        nonlocal found
        who = _check_ids(ids, len(clients), "asks")
        answered, report = cohort(k, order, who, torch.zeros_like(who))
        losses = torch.full((len(clients),), -math.inf, dtype=torch.float64)
        losses[answered] = report.each.get("loss", torch.empty(0, dtype=torch.float64))
        down, up = _count_bytes(order, report, len(who), len(answered))
        record: dict[str, object] = {"candidates": answered, "candidate_loss": losses[answered]}
        timing = report.timing or Timing(0.0, losses, None)
        found = Choice(
            clients,
            record,
            (*found.faults, *report.faults),
            found.down + down,
            found.up + up,
            found.seconds + timing.seconds,
            found.joules + (timing.joules or 0.0),
        )
        return losses[ids]

    u = draw_choice(seed, k, clients)
    m = clients_per_round(len(clients), participation)
    ids = algorithm.choose(state, _weigh(cohort, clients), u, m, ask)
    return found._replace(ids=_check_ids(ids, len(clients), "chooses"))


def _check_ids(ids: object, clients: int, verb: str) -> Tensor:
    """The clients that a method names, rising; UserError where they are not different clients."""
    if isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.dim() == 1 and len(ids) > 0:
        rising: Tensor = ids.cpu().sort().values
        if int(rising[0]) >= 0 and int(rising[-1]) < clients and bool((rising[1:] > rising[:-1]).all()):
            return rising
    raise UserError(f"the method {verb} {show_value(ids)}; it is a tensor of different clients, 0 to {clients - 1}")


def _is_finite(v: Tensor) -> bool:
    """Whether all numbers are; if their sum is finite they are, which is quicker to ask."""
    return math.isfinite(float(v.sum())) or bool(torch.isfinite(v).all())


def _weigh(cohort: Cohort, ids: Tensor) -> Tensor:
    """p_i = D_i / sum D_j over the clients that answered, or 1 / n with weights=uniform."""
    weight = cohort.weights[ids].double()
    return weight / weight.sum()


def advise(recent: Iterable[tuple[int, Norms]], guarded: bool = False) -> str:
    """What to do about a run that diverged: who sent by far the longest update of the last rounds, if anyone did."""
    most, advice = MARGIN, "a smaller lr usually helps" + ("" if guarded else ", or guard=on")
    for k, (ids, norms) in recent:
        for row in norms.double().cpu():
            clients, row = ids[torch.isfinite(row)], row[torch.isfinite(row)]
            if len(row) < 2:
                continue
            at = int(row.argmax())
            others = float(torch.cat([row[:at], row[at + 1 :]]).median())
            if others > 0 and float(row[at]) / others > most:
                most = float(row[at]) / others
                advice = (
                    f"the update of client {int(clients[at])} in round {k + 1} was {most:.3g} times as long as the "
                )
                advice += "others' median: check that client; aggregate=clip or a smaller lr may help"
    return advice


def _count_bytes(order: Order, report: Report, asked: int, answered: int) -> tuple[int, int]:
    """Bytes that cross a network, down and up: vectors as long as the method sends them, and numbers of 8 bytes."""
    down = asked * (report.width * sum(v.numel() for v in (order.w, *order.aux.values())) + 8)
    payload = report.payload
    if payload is None:
        payload = report.width * sum(v.numel() for v in report.mean.values())
    up = answered * (payload + 8 * len(report.each))
    return down + report.overhead[0], up + report.overhead[1]
