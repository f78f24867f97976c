"""TensorBoard, MLflow and Weights & Biases as further places for what a run records.

They get each round's record after the run folder has it, and the closing summary. One that fails is reported once and
left out: no tracker stops a run. `trackers.json` in the run folder says how far each got, so that a resumed run
continues in the same place without a gap.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from fedveca.errors import printable
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object, write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import guard_writing
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, describe_quantity, is_number
from fedveca.trackers.backends import BACKENDS, Tracker, Values

CLIENTS = 20  # up to so many, each client's numbers have a name of their own
SECONDS_BETWEEN = 1.0  # rounds of this time are sent together
NOTES = "trackers.json"
KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a run, as trackers name it


class TrackerFailed(UserWarning):
    """A tracker that was asked for gets no more of the run."""


class Note(TypedDict):
    """How far a tracker got, in trackers.json."""

    key: str
    sent: int


def make_trackers(track: str) -> list[Observer]:
    """The observers that the setting `track` asks for."""
    return [TrackingObserver(list_names(track))] if track else []


class TrackingObserver(Observer):
    """The trackers of one run; those that fail are reported once and left out."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.trackers = names, dict[str, Tracker]()
        self.folder: Path | None = None
        self.clients = 0
        self.waiting: list[Values] = []
        self.sent, self.flushed = dict[str, int](), time.monotonic()

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """Opens the trackers, and sends what they lack of the rounds that are already in the folder."""
        self.folder, self.clients = folder, experiment.clients
        if folder is None or (folder / NOTES).is_dir():
            need = "a run folder" if folder is None else f"a file {NOTES}, which is a folder here"
            text = f"track={experiment.track} needs {need}; the run continues without it"
            warnings.warn(TrackerFailed(text), stacklevel=4)
            return
        notes = _read_notes(folder)
        past = [to_values(record, self.clients) for record in Run.open(folder).rounds]
        for name in self.names:
            self._try(name, lambda name=name: self._open(name, experiment, folder, notes.get(name), past))  # type: ignore[misc]
        self._write_notes()

    def _open(self, name: str, e: Experiment, folder: Path, note: Note | None, past: list[Values]) -> None:
        tracker = BACKENDS[name](e, folder, note["key"] if note else "")
        self.trackers[name] = tracker
        self.sent[name] = note["sent"] if note else 0
        tracker.send(past[self.sent[name] :])
        self.sent[name] = max(self.sent[name], len(past))

    def round(self, record: Round) -> None:
        """Sends the rounds of about a second together."""
        if self.folder:
            self.waiting.append(to_values(record, self.clients))
            if time.monotonic() - self.flushed > SECONDS_BETWEEN:
                self.flush()

    def flush(self) -> None:
        """Sends the rounds that wait."""
        rounds, self.waiting, self.flushed = self.waiting, [], time.monotonic()
        for name, tracker in list(self.trackers.items()):
            new = [v for v in rounds if v.step > self.sent[name]]  # a round done again after a resume is the same
            if new and self._try(name, lambda t=tracker, new=new: t.send(new)):  # type: ignore[misc]
                self.sent[name] = new[-1].step
        self._write_notes()

    def end(self, run: Run) -> None:
        """Sends the summary of a run that has one, and closes the trackers."""
        self.flush()
        numbers = {f"summary/{k}": float(v) for k, v in run.summary.items() if is_number(v)}
        for which in ("kept", "last"):
            values = run.summary.get(which, {})
            numbers |= {f"{which}/{k}": float(v) for k, v in values.items() if is_number(v)}  # type: ignore[attr-defined]
        for name, tracker in list(self.trackers.items()):
            if run.summary:
                self._try(name, lambda t=tracker: t.end(run, numbers))  # type: ignore[misc]
        for name, tracker in list(self.trackers.items()):
            self._try(name, lambda t=tracker: t.close(bool(run.summary)))  # type: ignore[misc]

    def _try(self, name: str, action: Callable[[], None]) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the trackers' own libraries
                action()
            return True
        except ModuleNotFoundError as error:
            text = f"track={name} needs the extra fedveca[track]: pip install 'fedveca[track]' ({error})"
        except Exception as error:  # whatever a tracker does, the run matters more
            text = f"track={name} failed: {printable(' '.join(str(error).split()), 300) or type(error).__name__}"
        tracker = self.trackers.pop(name, None)
        if tracker:
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                tracker.close(False)
        warnings.warn(TrackerFailed(f"{text}; the run continues without it"), stacklevel=6)
        return False

    def _write_notes(self) -> None:
        if self.folder and self.trackers:
            notes: dict[str, Note] = _read_notes(self.folder)
            notes |= {name: {"key": t.key, "sent": self.sent[name]} for name, t in self.trackers.items()}
            with guard_writing(self.folder):
                write_atomic(self.folder / NOTES, json.dumps(notes, indent=2).encode())


def list_names(track: str) -> list[str]:
    """The trackers that a setting names, each once."""
    return list(dict.fromkeys(word.strip() for word in track.split(",") if word.strip()))


def to_values(record: Round, clients: int) -> Values:
    """A record as numbers: `tau_k`, `tau/client_3`; of many clients the smallest, the mean and the largest.

    Values of the clients that tested the model are left to their aggregates, such as `clients_accuracy_worst`.
    """
    numbers: dict[str, float] = {}
    many: dict[str, list[float]] = {}
    ids = record.get("ids", [])
    for name, value in record.items():
        kind = describe_quantity(name).kind
        if name in ("round", "ids", "tested") or kind in ("per tested client", "per candidate", "table"):
            continue
        if kind in ("clients", "faults") and isinstance(value, list | dict):
            numbers[name] = len(value)
        elif isinstance(value, bool) or is_number(value):
            numbers[name] = float(value)
        elif isinstance(value, list) and len(value) == len(ids):
            known = {i: float(v) for i, v in zip(ids, value, strict=True) if is_number(v)}
            if clients <= CLIENTS:
                numbers |= {f"{name}/client_{i}": v for i, v in known.items()}
            elif known:
                each = many[name] = list(known.values())
                numbers |= {f"{name}/min": min(each), f"{name}/mean": sum(each) / len(each), f"{name}/max": max(each)}
    return Values(record["round"] + 1, numbers, many)


def _read_notes(folder: Path) -> dict[str, Note]:
    """What is noted of earlier trackers; nothing where the file cannot be what a run wrote."""
    try:
        found = read_object(folder, NOTES)
    except (OSError, ValueError):
        return {}
    notes: dict[str, Note] = {}
    for name, note in found.items():
        if name in BACKENDS and isinstance(note, dict) and note.keys() == {"key", "sent"}:
            key, sent = note["key"], note["sent"]
            if isinstance(key, str) and KEY.fullmatch(key) and type(sent) is int and sent >= 0:
                notes[name] = {"key": key, "sent": sent}
    return notes
