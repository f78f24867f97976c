"""TensorBoard, MLflow and Weights & Biases as further places for what a run records.

They see each round's line after the run folder has it, and the closing summary. One that fails is told of once
and let go: no tracker stops a run. `trackers.json` in the run folder says how far each got, so that a resumed run
goes on in the same place without a gap.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedveca.errors import printable
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run, guard_writing, write_atomic
from fedveca.runs.reading import read_table
from fedveca.runs.schema import LARGEST
from fedveca.trackers.backends import MAKERS, Tracker, Values

CLIENTS = 20  # up to so many, each client's numbers have a name of their own
EVERY = 1.0  # seconds of rounds that are sent together
NOTES = "trackers.json"
KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a run, as trackers name it


class TrackerFailed(UserWarning):
    """A tracker that was asked for sees no more of the run."""


def tracked(go: Callable[..., Run]) -> Callable[..., Run]:
    """The rounds of a run, seen by the trackers that its `track` names."""

    @functools.wraps(go)
    def watched(e: Experiment, built: Any, device: str, course: Any, lines: Any, folder: Any, *more: Any) -> Run:
        if not e.track:
            return go(e, built, device, course, lines, folder, *more)
        watch, *rest = more
        with Tracking(e, folder.path if folder else None, lines) as tracking:

            def both(line: dict[str, Any]) -> None:
                tracking.see(line)
                if watch:
                    watch(line)

            return tracking.end(go(e, built, device, course, lines, folder, both, *rest))

    return watched


class Tracking:
    """The trackers of one run; those that fail are told of once and leave."""

    def __init__(self, e: Experiment, folder: Path | None, former: list[dict[str, Any]]) -> None:
        self.e, self.folder, self.trackers = e, folder, dict[str, Tracker]()
        self.waiting: list[Values] = []
        self.sent, self.flushed, self.ended = dict[str, int](), time.monotonic(), False
        if folder is None or (folder / NOTES).is_dir():
            need = "a run folder" if folder is None else f"a file {NOTES}, which is a folder here"
            warnings.warn(TrackerFailed(f"track={e.track} needs {need}; the run goes on without it"), stacklevel=4)
            return
        notes = _notes(folder)
        past = [values(line, e.clients) for line in former]
        for name in names(e.track):
            note = notes.get(name, {})
            self._try(name, lambda name=name, note=note: self._open(name, note, past))  # type: ignore[misc]
        self._note()

    def _open(self, name: str, note: dict[str, Any], past: list[Values]) -> None:
        assert self.folder
        tracker = MAKERS[name](self.e, self.folder, note.get("key", ""))
        self.trackers[name] = tracker
        self.sent[name] = note.get("sent", 0)
        tracker.send(past[self.sent[name] :])
        self.sent[name] = max(self.sent[name], len(past))

    def see(self, line: dict[str, Any]) -> None:
        self.waiting.append(values(line, self.e.clients))
        if time.monotonic() - self.flushed > EVERY:
            self.flush()

    def flush(self) -> None:
        rounds, self.waiting, self.flushed = self.waiting, [], time.monotonic()
        for name, tracker in list(self.trackers.items()):
            new = [v for v in rounds if v.step > self.sent[name]]  # a round done again after a resume is the same
            if new and self._try(name, lambda t=tracker, new=new: t.send(new)):  # type: ignore[misc]
                self.sent[name] = new[-1].step
        self._note()

    def end(self, run: Run) -> Run:
        self.flush()
        numbers = {f"summary/{k}": v for k, v in run.summary.items() if _number(v)}
        for which in ("kept", "last"):
            numbers |= {f"{which}/{k}": v for k, v in run.summary.get(which, {}).items() if _number(v)}
        for name, tracker in list(self.trackers.items()):
            self._try(name, lambda t=tracker: t.end(run, numbers))  # type: ignore[misc]
        self.ended = True
        return run

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()
        for name, tracker in list(self.trackers.items()):
            self._try(name, lambda t=tracker: t.close(self.ended))  # type: ignore[misc]

    def _try(self, name: str, what: Callable[[], None]) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the trackers' own libraries
                what()
            return True
        except ModuleNotFoundError as error:
            said = f"track={name} needs the extra fedveca[track]: pip install 'fedveca[track]' ({error})"
        except Exception as error:  # whatever a tracker does, the run matters more
            said = f"track={name} failed: {printable(' '.join(str(error).split()), 300) or type(error).__name__}"
        tracker = self.trackers.pop(name, None)
        if tracker:
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                tracker.close(False)
        warnings.warn(TrackerFailed(f"{said}; the run goes on without it"), stacklevel=6)
        return False

    def _note(self) -> None:
        if self.folder and self.trackers:
            notes = {name: {"key": t.key, "sent": self.sent[name]} for name, t in self.trackers.items()}
            with guard_writing(self.folder):
                write_atomic(self.folder / NOTES, json.dumps(_notes(self.folder) | notes, indent=2).encode())


def names(track: str) -> list[str]:
    """The trackers that a setting names, each once."""
    return list(dict.fromkeys(word.strip() for word in track.split(",") if word.strip()))


def values(line: dict[str, Any], clients: int) -> Values:
    """Every recorded name as numbers: `tau_k`, `tau/client_3`; of many clients the least, the mean and the greatest."""
    numbers: dict[str, float] = {}
    many: dict[str, list[float]] = {}
    ids = line.get("ids", [])
    for name, value in line.items():
        if name in ("left_out", "faults") and isinstance(value, list | dict):
            numbers[name] = len(value)
        elif name not in ("round", "ids") and _number(value):
            numbers[name] = float(value)
        elif name != "ids" and isinstance(value, list) and len(value) == len(ids):
            known = {i: float(v) for i, v in zip(ids, value, strict=True) if _number(v)}
            if clients <= CLIENTS:
                numbers |= {f"{name}/client_{i}": v for i, v in known.items()}
            elif known:
                each = many[name] = list(known.values())
                numbers |= {f"{name}/min": min(each), f"{name}/mean": sum(each) / len(each), f"{name}/max": max(each)}
    return Values(line["round"] + 1, numbers, many)


def _notes(folder: Path) -> dict[str, Any]:
    """What is noted of former trackers; nothing where the file cannot be what a run wrote."""
    try:
        told = read_table(folder, NOTES)
    except (OSError, ValueError):
        return {}
    return {name: note for name, note in told.items() if name in MAKERS and _noted(note)}


def _noted(note: Any) -> bool:
    if not isinstance(note, dict) or note.keys() != {"key", "sent"}:
        return False
    key, sent = note["key"], note["sent"]
    return isinstance(key, str) and bool(KEY.fullmatch(key)) and type(sent) is int and sent >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST
