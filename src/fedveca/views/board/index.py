"""The runs below a folder: found again at every look, read again only where they changed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedveca.errors import UserError
from fedveca.runs.experiment import restore_experiment
from fedveca.runs.files import read_directions, read_object
from fedveca.runs.interrupt import how_to_resume
from fedveca.runs.lock import LOCK_FILE
from fedveca.runs.schema import SCHEMA, Direction, describe_quantity, find_metric, finite_number, get_number
from fedveca.runs.value_text import short_label
from fedveca.views.board.files import (
    Stamp,
    get_count,
    is_locked,
    is_shown_name,
    read_last_lines,
    read_settings,
    round_number,
    stamp_file,
)

QUIET_SECONDS = 300.0  # without a new round, after which a run without a lock file no longer counts as running
_DEPTH = 12
_STOP_MARK = "stopped.json"  # as in fedveca.runs.folder, which would load PyTorch
_FILES = ("experiment.toml", "summary.json", "rounds.jsonl", LOCK_FILE, _STOP_MARK)
_LETTERS = 200  # of a setting of MAIN or a metric's name in the list
_OTHER_LETTERS, _SETTINGS, _VALUES = 80, 64, 32  # of any other setting; settings and recorded numbers of one run
_CLIENTS, _DETAILS = (
    ("clients_", "tuned_"),
    ("_rows", "_sd", "_best"),
)  # aggregates over clients that the list leaves out
MAIN = ("method", "data", "model", "partition", "clients", "seed")

ShownSetting = str | float | None
RunState = Literal["running", "paused", "finished", "diverged", "damaged", "inactive"]


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
    state: RunState = "running"
    why: str = ""
    resume: str = ""  # the command, where the run can be resumed
    left: float | None = None  # seconds
    settings: dict[str, ShownSetting] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # recorded numbers, the latest; of the kept model at the end


@dataclass
class Facts:
    """What a run's files say, and the stamps they had."""

    stamps: tuple[Stamp | None, ...]
    row: Row
    locked: bool | None = None
    pace: tuple[int, float] = (0, 0.0)  # rounds and time when it was first seen
    resume: str = ""  # the command, once it was asked for


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
    wrong = [] if stamps[2] else ["rounds.jsonl is missing"]
    for there, read in ((stamps[0], _add_settings), (stamps[2], _add_rounds), (stamps[1], _add_summary)):
        try:
            if there:
                read(row, folder)
        except Exception as error:  # whatever one folder holds, the rows of the others stay
            wrong.append(f"{error!s:.500}" or type(error).__name__)
    if wrong:
        row.state, row.why = "damaged", "; ".join(wrong)
    directions = {} if row.metric in SCHEMA or not row.metric else read_directions(folder)
    row.label, row.better = short_label(row.metric), describe_quantity(row.metric, directions).better
    return row


def _add_settings(row: Row, folder: Path) -> None:
    settings = read_settings(folder)
    get_count(settings, "clients")
    row.of = get_count(settings, "rounds")
    for key in MAIN:
        setattr(row, key, _show_setting(settings.get(key), _LETTERS))
    for key, value in settings.items():
        if len(row.settings) < _SETTINGS and is_shown_name(key) and not isinstance(value, list | dict):
            row.settings[key] = _show_setting(value, _OTHER_LETTERS)
    restore_experiment(settings)  # what no run can be opened with is damaged


def _show_setting(value: object, letters: int) -> ShownSetting:
    return value[:letters] if isinstance(value, str) else str(value) if value is True else finite_number(value)


def _add_rounds(row: Row, folder: Path) -> None:
    """From the last lines: how many rounds are done, and the score where it was last recorded."""
    lines = 0
    for line in read_last_lines(folder / "rounds.jsonl"):
        lines += 1
        if line:
            row.rounds = max(row.rounds, line.round + 1)
            _add_values(row, {k: v for k, v in line.values.items() if k != "round" and k not in row.values})
            _add_score(row, line.values)
            if row.score is not None:
                break
    if lines and not row.rounds:
        raise UserError("rounds.jsonl cannot be read: none of its last lines is one of a run")


def _add_summary(row: Row, folder: Path) -> None:
    summary = read_object(folder, "summary.json")
    kept, stopped = summary.get("kept"), summary.get("stopped")
    kept = kept if isinstance(kept, dict) else {}
    _add_score(row, kept)
    ends = {
        "kept_round": kept.get("round"),
        "total_steps": summary.get("tau_all"),
        "total_seconds": summary.get("seconds"),
    }
    _add_values(row, {k: v for k, v in kept.items() if k != "round"} | ends)
    row.state, row.why = ("diverged", str(stopped)[:500]) if stopped else ("finished", "")
    rounds = get_number(summary, "rounds")
    if rounds is not None and row.rounds < rounds:
        raise UserError(f"rounds.jsonl ends at round {row.rounds}, but summary.json records {rounds:g} rounds")


def _add_values(row: Row, record: Mapping[str, object]) -> None:
    for name, value in record.items():
        number = None if name.startswith(_CLIENTS) and name.endswith(_DETAILS) else finite_number(value)
        if number is not None and is_shown_name(name) and (name in row.values or len(row.values) < _VALUES):
            row.values[name] = round_number(number)


def _add_score(row: Row, record: Mapping[str, object]) -> None:
    metric = find_metric([record])
    row.score, row.loss = get_number(record, metric), get_number(record, "test_loss")
    row.metric = metric if metric in record and len(metric) <= _LETTERS else row.metric


def _make_row(facts: Facts, now: float, folder: Path) -> Row:
    """The row with its state now: without a summary the lock decides, then the mark of a stop, then the clock."""
    row = replace(facts.row)
    if row.state != "running":
        return row
    if not facts.locked and facts.stamps[-1]:
        row.state, row.why = "paused", "it was stopped between two rounds, and everything is saved"
    elif facts.locked is False:
        row.state, row.why = "inactive", "its process ended before the last round"
    elif facts.locked is None and now - row.changed > QUIET_SECONDS:
        minutes = f"{QUIET_SECONDS / 60:.0f} min"
        row.state, row.why = (
            "inactive",
            f"no summary, and no new round for more than {minutes}: it ended early, or is slow",
        )
    else:
        rounds, since = facts.pace
        done, passed = row.rounds - rounds, row.changed - since
        if row.of and done > 0 and passed > 1:
            row.left = round(passed / done * max(0, row.of - row.rounds), 1)
        return row
    facts.resume = facts.resume or how_to_resume(folder)
    row.resume = facts.resume
    return row


def share_settings(rows: Sequence[Row]) -> dict[str, ShownSetting]:
    """The most common value of each setting; rows keep only what differs from it, None where they lack it."""
    counts: dict[str, Counter[ShownSetting]] = {}
    for row in rows:
        for key, value in row.settings.items():
            counts.setdefault(key, Counter())[value] += 1
    common = {key: count.most_common(1)[0][0] for key, count in counts.items() if sum(count.values()) * 2 > len(rows)}
    for row in rows:
        mine = {key: value for key, value in row.settings.items() if key not in common or value != common[key]}
        row.settings = mine | {key: None for key in common if key not in row.settings}
    return common


def _is_text(name: str) -> bool:
    """Names that no page can carry (lone surrogates from odd bytes) are left out."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
