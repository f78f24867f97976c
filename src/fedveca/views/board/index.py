"""The runs below a folder: found again at every look, read again only where they changed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedveca.errors import UserError
from fedveca.runs.files import read_directions, read_object
from fedveca.runs.interrupt import how_to_resume
from fedveca.runs.lock import LOCK_FILE
from fedveca.runs.schema import (
    SCHEMA,
    Direction,
    describe_quantity,
    find_metric,
    finite_number,
    get_number,
    short_label,
)
from fedveca.views.board.files import Stamp, get_count, is_locked, read_last_lines, read_settings, stamp_file

QUIET_SECONDS = 300.0  # without a new round, after which a run without a lock file no longer counts as running
_DEPTH = 12
_FILES = ("experiment.toml", "summary.json", "rounds.jsonl", LOCK_FILE)
_LETTERS = 200  # of a setting or a metric's name in the list
_ENDED = "its process ended before the last round; to resume: "

ShownSetting = str | float | None


@dataclass
class Row:
    """What the list shows of a run."""

    id: str
    began: float
    changed: float
    method: ShownSetting = None
    data: ShownSetting = None
    model: ShownSetting = None
    partition: ShownSetting = None
    clients: ShownSetting = None
    seed: ShownSetting = None
    rounds: int = 0
    of: int | None = None
    metric: str = ""  # the recorded name of `score`; empty until it is known
    label: str = ""
    better: Direction | None = None
    score: float | None = None
    loss: float | None = None
    state: Literal["running", "finished", "stopped", "diverged", "quiet", "invalid"] = "running"
    why: str = ""
    left: float | None = None  # seconds


@dataclass
class Facts:
    """What a run's files say, and the stamps they had."""

    stamps: tuple[Stamp | None, ...]
    row: Row
    locked: bool | None = None
    pace: tuple[int, float] = (0, 0.0)  # rounds and time when it was first seen


class RunIndex:
    """All runs below `root`; a run is known by its path from there."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._facts: dict[str, Facts] = {}
        self._lock = threading.Lock()

    def list_runs(self) -> list[Row]:
        """One row per run, the newest first."""
        with self._lock:
            self._facts = {name: self._look(name) for name in list(self._walk("", 0))}
            now = time.time()
            rows = [_make_row(facts, now, self.root / name) for name, facts in self._facts.items()]
        return sorted(rows, key=lambda row: (-row.began, row.id))

    def find_folder(self, name: str) -> Path:
        """A run's folder; LookupError for anything that a walk from the root does not find."""
        with self._lock:
            known = name in self._facts or name in self._walk("", 0)
        folder = self.root / name
        if not known or folder.resolve() != folder or stamp_file(folder / "experiment.toml") is None:
            raise LookupError(f"{name!r} is not a run of this board")
        return folder

    def _walk(self, name: str, depth: int) -> Iterator[str]:
        path = f"{self.root}/{name}"
        if stamp_file(f"{path}/experiment.toml"):
            yield name or "."
        elif depth < _DEPTH:
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                folders = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
                for below in sorted(n for n in folders if not n.startswith(".") and _is_text(n)):
                    yield from self._walk(f"{name}/{below}" if name else below, depth + 1)

    def _look(self, name: str) -> Facts:
        """The lock is asked where it was held or its file changed: asking takes a free lock for an instant."""
        folder, before = self.root / name, self._facts.get(name)
        stamps = tuple(stamp_file(f"{folder}/{file}") for file in _FILES)
        same = before if before and before.stamps == stamps else None
        if same and not same.locked:
            return same
        facts = same or Facts(stamps, _read_row(name, folder, stamps))
        facts.locked = is_locked(folder / LOCK_FILE) if stamps[3] else None
        rounds = facts.row.rounds
        facts.pace = before.pace if before and before.pace[0] <= rounds else (rounds, time.time())
        return facts


def _read_row(name: str, folder: Path, stamps: tuple[Stamp | None, ...]) -> Row:
    """The row as the files have it; its state is "running" where they do not say more."""
    times = [stamp.changed / 1e9 for stamp in stamps if stamp]
    began = next((stamp.changed / 1e9 for stamp in (stamps[0], stamps[2]) if stamp), 0.0)
    row = Row(name, began, max(times, default=0.0))
    wrong = []
    for there, read in ((stamps[0], _add_settings), (stamps[2], _add_rounds), (stamps[1], _add_summary)):
        try:
            if there:
                read(row, folder)
        except Exception as error:  # whatever one folder holds, the rows of the others stay
            wrong.append(f"{error!s:.500}" or type(error).__name__)
    if wrong:
        row.state, row.why = "invalid", "; ".join(wrong)
    directions = {} if row.metric in SCHEMA or not row.metric else read_directions(folder)
    row.label, row.better = short_label(row.metric), describe_quantity(row.metric, directions).better
    return row


def _add_settings(row: Row, folder: Path) -> None:
    settings = read_settings(folder)
    get_count(settings, "clients")
    row.of = get_count(settings, "rounds")
    for key in ("method", "data", "model", "partition", "clients", "seed"):
        value = settings.get(key)
        setattr(row, key, value[:_LETTERS] if isinstance(value, str) else finite_number(value))


def _add_rounds(row: Row, folder: Path) -> None:
    """From the last lines: how many rounds are done, and the score where it was last recorded."""
    lines = 0
    for line in read_last_lines(folder / "rounds.jsonl"):
        lines += 1
        if line:
            row.rounds = max(row.rounds, line.round + 1)
            _add_score(row, line.values)
            if row.score is not None:
                break
    if lines and not row.rounds:
        raise UserError("rounds.jsonl cannot be read: none of its last lines is one of a run")


def _add_summary(row: Row, folder: Path) -> None:
    summary = read_object(folder, "summary.json")
    kept, stopped = summary.get("kept"), summary.get("stopped")
    _add_score(row, kept if isinstance(kept, dict) else {})
    row.state, row.why = ("diverged", str(stopped)[:500]) if stopped else ("finished", "")


def _add_score(row: Row, record: Mapping[str, object]) -> None:
    metric = find_metric([record])
    row.score, row.loss = get_number(record, metric), get_number(record, "test_loss")
    row.metric = metric if metric in record and len(metric) <= _LETTERS else row.metric


def _make_row(facts: Facts, now: float, folder: Path) -> Row:
    """The row with its state now: of a run without a summary the lock decides, else the clock."""
    row = replace(facts.row)
    if row.state != "running":
        return row
    if facts.locked is False:
        row.state, row.why = "stopped", _ENDED + how_to_resume(folder)
    elif facts.locked is None and now - row.changed > QUIET_SECONDS:
        minutes = f"{QUIET_SECONDS / 60:.0f} min"
        row.state, row.why = "quiet", f"no summary, and no new round for more than {minutes}: stopped or slow"
    else:
        rounds, since = facts.pace
        done, passed = row.rounds - rounds, row.changed - since
        if row.of and done > 0 and passed > 1:
            row.left = round(passed / done * max(0, row.of - row.rounds), 1)
    return row


def _is_text(name: str) -> bool:
    """Names that no page can carry (lone surrogates from odd bytes) are left out."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
