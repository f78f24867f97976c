"""A run's figures for Prometheus: an observer that counts what each round's record says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fedveca.errors import printable
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.schema import SCHEMA, Round, get_number, list_test_values

ROUND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
ROUND_PARTS = ("send", "answers", "server")
FAULT_REASONS = {  # a reason and how a fault of it begins, in our own words; what a node sent comes after them
    "timeout": r"timed out after",
    "late": r"answered round \d+ too late|late$",
    "disconnected": r"is not connected|could not be asked|unavailable$|drop$|crash$",
    "diverged": r"has numbers that are not finite|nan$",
    "failed": r"failed:",
    "rejected": r"node \d+ |has lost its key",
    "version": r"runs fedveca |does not say which fedveca |says it runs fedveca ",
    "invalid": r"",  # everything else: an answer that is not what was asked for
}
_BEFORE = re.compile(r"(test|validation): ")
_REASONS = {reason: re.compile(pattern) for reason, pattern in FAULT_REASONS.items()}


def classify_fault(what: str) -> str:
    """The reason of a fault: one of FAULT_REASONS, whatever the text says."""
    text = _BEFORE.sub("", what.partition(" (attempt ")[0], count=1)
    return next(reason for reason, pattern in _REASONS.items() if pattern.match(text))


class RunMetrics(Observer):
    """The figures of one run, in a registry of its own.

    Args:
        file: where they are written after each round, for whoever serves them; nowhere if None.
        parts: the seconds of the last round by part, where somebody measures them.
        connected: how many clients are connected, where somebody knows.
    """

    def __init__(
        self,
        file: Path | None = None,
        parts: Callable[[], Mapping[str, float]] | None = None,
        connected: Callable[[], int] | None = None,
    ) -> None:
        self.registry, self.file = CollectorRegistry(), file
        self._read_parts, self._read_connected = parts, connected
        to = self.registry
        self.info = Gauge("fedveca_run_info", "What is run.", ["method", "data", "model"], registry=to)
        self.active = Gauge("fedveca_run_active", "1 while rounds are run, 0 afterwards.", registry=to)
        self.planned = Gauge("fedveca_rounds_planned", "Rounds that the run is to have.", registry=to)
        self.rounds = Gauge("fedveca_round", "Rounds that are done.", registry=to)
        self.at = Gauge("fedveca_round_timestamp_seconds", "When the last round ended, in Unix time.", registry=to)
        self.train_loss = Gauge("fedveca_train_loss", "F(w_k), at the start of the round.", registry=to)
        self.test = Gauge("fedveca_test_value", "The last model on the test rows, by metric.", ["metric"], registry=to)
        self.clients = Gauge("fedveca_clients", "Clients of the last round, by state.", ["state"], registry=to)
        self.faults = Counter("fedveca_faults", "Faults of clients, by reason.", ["reason"], registry=to)
        self.bytes = Counter("fedveca_bytes", "Bytes of vectors, by direction.", ["direction"], registry=to)
        self.seconds = Histogram("fedveca_round_seconds", "Seconds of a round.", buckets=ROUND_BUCKETS, registry=to)
        self.parts = Counter("fedveca_round_part_seconds", "Seconds of rounds, by part.", ["part"], registry=to)
        for reason in FAULT_REASONS:
            self.faults.labels(reason)
        for direction in ("down", "up"):
            self.bytes.labels(direction)

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """The run begins, or is resumed."""
        names = (experiment.method, experiment.data, experiment.model)
        self.info.clear()
        self.info.labels(*(printable(name, 64) for name in names)).set(1)
        self.planned.set(experiment.rounds)
        self.active.set(1)
        if self._read_parts:
            self._read_parts()  # what was measured until now is not a round's
        self._write()

    def round(self, record: Round) -> None:
        """One round more."""
        self.rounds.set(record["round"] + 1)
        self.at.set(time.time())
        self.seconds.observe(get_number(record, "seconds") or 0.0)
        if (loss := get_number(record, "train_loss")) is not None:
            self.train_loss.set(loss)
        for name in list_test_values(record):
            value = get_number(record, name)
            if name in SCHEMA and value is not None:
                self.test.labels(name.removeprefix("test_")).set(value)
        answered, left_out = len(record["ids"]), len(record["left_out"])
        states = {"asked": answered + left_out, "answered": answered, "left_out": left_out}
        if self._read_connected:
            states["connected"] = self._read_connected()
        for state, count in states.items():
            self.clients.labels(state).set(count)
        for fault in record.get("faults", []):
            self.faults.labels(classify_fault(fault["what"])).inc()
        for direction in ("down", "up"):
            self.bytes.labels(direction).inc(get_number(record, f"bytes_{direction}") or 0)
        for part, seconds in (self._read_parts() if self._read_parts else {}).items():
            self.parts.labels(part).inc(max(0.0, seconds))
        self._write()

    def end(self, run: Run) -> None:
        """The run is over, or was interrupted."""
        self.active.set(0)
        self._write()

    def _write(self) -> None:
        if self.file:
            write_atomic(self.file, generate_latest(self.registry))
