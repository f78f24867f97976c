"""A deployment's run once more, in this process: the same clients answer in the same rounds, at the recorded times.

A node is the simulator's local cohort with one client in it, and so is a client here. Who answered, who was late, and
how long everyone took, the run has recorded; all else is computed again, and has to give the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Fault, Named, Order, Report, Timing
from fedveca.cohorts.client_memory import ClientMemory, NodeLedger
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.cohorts.contract import ClientScores, HeldPart
from fedveca.cohorts.flower.tally import AnswerTally
from fedveca.deploy.client_cohort import ClientCohort
from fedveca.deploy.node_process import NODE_DATA, make_node_cohort
from fedveca.deploy.server import load_test_data
from fedveca.errors import UserError, printable
from fedveca.runs.build import cohort_options
from fedveca.runs.device_fit import (
    RoundTime,
    TimePredictor,
    find_limit,
    make_rule,
    measure_rounds,
    predict_own_rounds,
    read_sizes,
)
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import FLOWER, LOCAL, REPLAY, find_starter
from fedveca.runs.observers import Observer
from fedveca.runs.rebuild import find_form
from fedveca.runs.run import run as run_experiment
from fedveca.runs.schema import Round
from fedveca.tasks.datasets.dataset import Dataset

SAME_WEIGHTS = 1e-6  # by which a replayed model may differ from the run's
_PARTS = ("wait_seconds", "work_seconds", "probe_seconds", "step_seconds", "order_bytes", "answer_bytes")


class Replayed(NamedTuple):
    """A replay, and how it compares with its run."""

    run: Run  # the replay itself
    times: list[RoundTime]  # of each round: measured, and predicted from other rounds or by the devices that were named
    difference: float  # the largest of any weight of the kept model
    changed_rounds: list[int]  # in which clients took other local steps than they did: none, if all is the same

    @property
    def is_same(self) -> bool:
        """Whether the run came out again."""
        return not self.changed_rounds and self.difference <= SAME_WEIGHTS


class ReplayCohort:
    """The clients of a deployment in this process; who answers in a round, and when, is what its run recorded."""

    def __init__(
        self, e: Experiment, clients: Sequence[ClientCohort], records: Sequence[Round], predicted: Sequence[float]
    ) -> None:
        options = cohort_options(e)
        self.clients, self.records, self.predicted = clients, records, predicted
        self.transfer, self.aggregate = options["transfer"], options["aggregate"]
        self.sizes = torch.tensor([int(client.sizes[i]) for i, client in enumerate(clients)])
        self.weights = torch.ones_like(self.sizes) if options["equal_weights"] else self.sizes
        self.memory = NodeLedger(len(clients))

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        """The answers of those that answered then; a round without local steps is answered by everyone."""
        record, steps = self.records[min(k, len(self.records) - 1)], bool((tau > 0).any())
        there = set(record["ids"]) if steps else set(record.get("candidates", ids.tolist()))
        tally = AnswerTally(self.aggregate(), self.weights)
        for i, steps_i in zip(ids.tolist(), tau.tolist(), strict=True):
            if i not in there:
                continue
            answered, report = self._prepare(i)(k, order, torch.tensor([i]), torch.tensor([steps_i]))
            if len(answered):
                numbers = {name: float(value[0]) for name, value in report.each.items() if name != "tau"}
                tally.add(i, steps_i, numbers, report.mean)
        who, report = tally.close(order.w)
        if steps:
            self.memory.rounds[who] = k
            timing = self._read_timing(k, record, who.tolist())
            report = report._replace(faults=self._list_faults(record), timing=timing)
        return who, self.transfer.label(report)

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """Of every client with such rows that answered then."""
        what = "validation: " if part == "val" else "test: "
        faults = [f for f in self.records[k].get("faults", []) if f["what"].startswith(what)]
        missing = {fault["client"] for fault in faults}
        found = [
            self._prepare(i).evaluate(k, order, part, finetune)
            for i, client in enumerate(self.clients)
            if i not in missing and part in client.held and len(client.held[part].ids)
        ]
        if not found:
            return ClientScores(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), {}, tuple(faults))
        values = {name: torch.cat([scores.values[name] for scores in found]) for name in found[0].values}
        ids, rows = (torch.cat([getattr(scores, name) for scores in found]) for name in ("ids", "rows"))
        return ClientScores(ids, rows, values, tuple(faults))

    def _prepare(self, i: int) -> ClientCohort:
        """The client, which remembers nothing where its memory does not count."""
        if int(self.memory.rounds[i]) < 0:
            self.clients[i].memory = ClientMemory(i + 1)
        return self.clients[i]

    def _list_faults(self, record: Round) -> tuple[Fault, ...]:
        later = ("test: ", "validation: ")
        return tuple(fault for fault in record.get("faults", []) if not fault["what"].startswith(later))

    def _read_timing(self, k: int, record: Round, who: Sequence[int]) -> Timing:
        """What was measured of the clients that answered again, and what was predicted."""
        before = self.records[k - 1]["clock"] if k else 0.0
        at = [record["ids"].index(i) for i in who]
        parts: Named = {"predicted_seconds": torch.tensor(self.predicted[k], dtype=torch.float64)}
        for name in _PARTS:
            values = record.get(name)
            if isinstance(values, list) and len(values) == len(record["ids"]):
                parts[name] = _select(values, at)
        seconds = _select(record["client_seconds"], at)
        known = parts.get("step_seconds", seconds)
        steps = torch.where(known.isnan(), seconds, known)  # as the server had them
        return Timing(record["clock"] - before, seconds, None, parts=parts, steps=steps)


def _select(values: Sequence[float | None], at: Sequence[int]) -> Tensor:
    whole = all(type(v) is int for v in values)
    chosen = [float("nan") if values[n] is None else values[n] for n in at]
    return torch.tensor(chosen, dtype=torch.int64 if whole and chosen else torch.float64)


def replay(
    former: Run,
    out: Path | str | None = None,
    *,
    devices: Sequence[DeviceProfile] | None = None,
    observers: Iterable[Observer] = (),
) -> Replayed:
    """Runs a deployment's finished run again in this process.

    The rows are those of the nodes: the experiment's data set by its partition, or what the environment variable
    FEDVECA_NODE_DATA names, as on the nodes.

    Args:
        former: The run, of a folder that a deployment wrote.
        out: The run folder to write; None keeps the replay in memory.
        devices: Profiles by which the time of each round is predicted; without them, devices that are fitted to the
            rounds of other parity.
        observers: Objects that see each round as it ends.

    Returns:
        The replay, its rounds' times, and whether the model is the same.

    Raises:
        UserError: With one sentence, where the run was not deployed, recorded no times, or its rows are not here.
    """
    e, where = former.experiment, printable(str(former.folder), 400)
    if former.folder is None or find_starter(former.folder) not in (LOCAL, FLOWER):
        raise UserError(f"{where} is not the run of a deployment; `fedveca run` repeats a simulation")
    if not former.summary or not former.rounds:
        raise UserError(f"{where} has not ended; resume it first")
    if e.schedule == "buffered":
        raise UserError(f"{where} has schedule=buffered, in which the order of answers decides; it cannot be replayed")
    if e.secure == "on":
        raise UserError(f"{where} has secure=on, whose sums are rounded under masks; it cannot be replayed")
    measured, sizes = measure_rounds(former), read_sizes(former)
    if devices is None:
        times = predict_own_rounds(former)
    else:
        predictor, rule = TimePredictor(devices, e.clients), make_rule(former)
        times = [
            RoundTime(k, measured[k], predictor.predict_record(record, rule, find_limit(e)))
            for k, record in enumerate(former.rounds)
        ]
    data, clients = _load_clients(former, where)
    for i, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        if int(client.sizes[i]) != size:
            raise UserError(
                f"client {i} has {int(client.sizes[i])} rows here and had {size} at its node; {NODE_DATA} names the "
                "rows that the nodes had"
            )
    if former.ended == "budget":
        e = replace(e, budget="", rounds=len(former.rounds))
    cohort = ReplayCohort(e, clients, former.rounds, [time.predicted for time in times])
    done = run_experiment(
        replace(e, track=""), out, observers=observers, data=data, cohort=cohort, started_by=REPLAY, device="cpu"
    )
    changed = [k for k, (a, b) in enumerate(zip(done.rounds, former.rounds, strict=False)) if a["tau"] != b["tau"]]
    changed += range(min(len(done.rounds), len(former.rounds)), max(len(done.rounds), len(former.rounds)))
    return Replayed(done, times, _compare_models(done, former), changed)


def _load_clients(former: Run, where: str) -> tuple[Dataset, list[ClientCohort]]:
    """What the server tested on, and the clients with their rows."""
    e = former.experiment
    try:
        data = _make_empty_rows(former) if e.test_by == "client" else load_test_data(e)
        tokens = data.x_test.dtype == torch.int64
        make = make_node_cohort.__wrapped__  # not those that are kept: the rows may have been others
        return data, [make(e, i, data.classes, data.pixels, tokens) for i in range(e.clients)]
    except (UserError, OSError) as error:
        raise UserError(
            f"{where} is replayed with the rows that its nodes had: the experiment's data set, or what {NODE_DATA} "
            f"names ({error})"
        ) from error


def _make_empty_rows(former: Run) -> Dataset:
    """What stands for a data set where only the nodes had one: two rows of zeros, of the form that the run recorded."""
    form = find_form(former, "a replay")
    x = torch.zeros(2, *form["shape"], dtype=torch.int64 if form["tokens"] else torch.float32)
    y = torch.zeros(2, *form["targets"], dtype=torch.int64 if form["classes"] else torch.float32)
    return Dataset(former.experiment.data, x[:0], y[:0], x, y, form["classes"], form["pixels"], None)


def _compare_models(ours: Run, theirs: Run) -> float:
    if ours.model.keys() != theirs.model.keys():
        return float("inf")
    return max((float((v - theirs.model[name].to(v)).abs().max()) for name, v in ours.model.items()), default=0.0)
