"""The runs below a folder: found again at every look, read again only where they changed."""

from __future__ import annotations

import math
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from fedveca.errors import UserError
from fedveca.runs.interrupt import FLOWER, find_starter
from fedveca.views.board import files

QUIET = 300.0  # seconds without a new round after which a run is no longer said to run
SILENT = 10.0  # seconds without a new round after which its lock is asked
SETTLED = 2.0  # seconds after which a folder's date can be trusted to tell of the next change
DEPTH = 12
SETTINGS = ("method", "data", "model", "partition", "clients", "seed")
FILES = ("experiment.toml", "summary.json", "rounds.jsonl", ".lock")
LETTERS = 200  # of a setting in the list


class Place(NamedTuple):
    """One folder as it was last seen."""

    changed: int
    looked: float
    holds_run: bool
    below: tuple[str, ...]


class Facts(NamedTuple):
    """What a run's files say, and the stamps they had."""

    stamps: tuple[Any, ...]
    row: dict[str, Any]
    ended: bool
    first: tuple[int, float]  # rounds and time when it was first seen: its pace
    locked: bool  # its lock file was seen


class RunIndex:
    """All runs below `root`; a run is known by its path from there."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._places: dict[str, Place] = {}
        self._facts: dict[str, Facts] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """One row a run, the newest first."""
        with self._lock:
            names = list(self._walk("", 0))
            self._facts = {name: self._look(name) for name in names}
            now = time.time()
            rows = [_now(facts, now, f"{self.root}/{name}") | {"id": name} for name, facts in self._facts.items()]
        return sorted(rows, key=lambda row: (-row["began"], row["id"]))

    def folder(self, name: str) -> Path:
        """A run's folder; LookupError for anything that a walk from the root does not find."""
        with self._lock:
            known = name in self._facts or name in self._walk("", 0)
        folder = self.root / name
        if not known or folder.resolve() != folder or files.stamp(folder / "experiment.toml") is None:
            raise LookupError(f"{name!r} is not a run of this board")
        return folder

    def _walk(self, name: str, depth: int) -> Any:
        place = self._place(name)
        if place.holds_run:
            yield name or "."
        elif depth < DEPTH:
            for below in place.below:
                yield from self._walk(f"{name}/{below}" if name else below, depth + 1)

    def _place(self, name: str) -> Place:
        path, looked = f"{self.root}/{name}", time.time()
        try:
            seen = os.lstat(path)
            before = self._places.get(name)
            settled = before and before.changed == seen.st_mtime_ns and before.looked - seen.st_mtime > SETTLED
            if before and settled:
                return before
            if not stat.S_ISDIR(seen.st_mode):
                return Place(0, looked, False, ())
            with os.scandir(path) as entries:
                kinds = {e.name: e.is_dir(follow_symlinks=False) for e in entries}
        except OSError:
            return Place(0, looked, False, ())
        below = sorted(n for n, folder in kinds.items() if folder and not n.startswith(".") and _printable(n))
        holds = files.stamp(f"{path}/experiment.toml") is not None
        self._places[name] = Place(seen.st_mtime_ns, looked, holds, tuple(below))
        return self._places[name]

    def _look(self, name: str) -> Facts:
        folder, before = f"{self.root}/{name}", self._facts.get(name)
        stamps = tuple(files.stamp(f"{folder}/{f}") for f in FILES)
        if before and before.stamps == stamps:
            return before
        row, ended = _read(Path(folder), stamps)
        first = before.first if before and before.first[0] <= row["rounds"] else (row["rounds"], time.time())
        return Facts(stamps, row, ended, first, bool(stamps[3]) or (before is not None and before.locked))


def _read(folder: Path, stamps: tuple[Any, ...]) -> tuple[dict[str, Any], bool]:
    """What the list shows of a run, and whether it has ended; what cannot be read is said in `invalid`."""
    row: dict[str, Any] = dict.fromkeys(SETTINGS) | {"rounds": 0, "of": None, "accuracy": None, "loss": None}
    row |= {"why": "", "stopped": False, "ended": False}
    wrong = []
    for there, part in ((stamps[0], _settings), (stamps[2], _rounds), (stamps[1], _summary)):
        try:
            row |= part(folder) if there else {}
        except Exception as error:  # whatever one folder holds, the rows of the others stay
            wrong.append(f"{error!s:.500}" or type(error).__name__)
    row["invalid"] = "; ".join(wrong)
    row["began"] = (stamps[0] or stamps[2] or (0, 0, 0))[2] / 1e9
    row["changed"] = max(s[2] for s in (*stamps, (0, 0, 0)) if s) / 1e9
    return row, row.pop("ended")


def _settings(folder: Path) -> dict[str, Any]:
    settings = files.settings(folder / "experiment.toml")
    known = {key: v for key in SETTINGS if isinstance(v := settings.get(key), str | int | float)}
    return {key: v[:LETTERS] if isinstance(v, str) else v for key, v in known.items()} | {"of": settings.get("rounds")}


def _rounds(folder: Path) -> dict[str, Any]:
    """From the last lines: how many rounds are done, and the scores where they were last recorded."""
    row, lines = {"rounds": 0}, 0
    for line in files.ends(folder / "rounds.jsonl"):
        lines += 1
        if line:
            row = {"rounds": max(row["rounds"], line["round"] + 1)} | _scores(line)
            if row["accuracy"] is not None:
                break
    if lines and not row["rounds"]:
        raise UserError("rounds.jsonl cannot be read: none of its last lines is one of a run")
    return row


def _summary(folder: Path) -> dict[str, Any]:
    summary = files.table(folder / "summary.json")
    stopped = summary.get("stopped")
    why = {"stopped": True, "why": str(stopped)[:500]} if stopped else {}
    return _scores(summary.get("kept")) | {"ended": True} | why


def _now(facts: Facts, now: float, folder: str) -> dict[str, Any]:
    """The row with its state, and why where it neither runs nor is finished."""
    row = dict(facts.row)
    stopped, invalid = row.pop("stopped"), row.pop("invalid")
    row["state"], why = ("stopped" if stopped else "finished", "") if facts.ended else _pulse(facts, now, folder)
    row |= {"state": "invalid", "why": invalid} if invalid else {"why": row["why"] or why}
    rounds, since = facts.first
    done, passed = row["rounds"] - rounds, row["changed"] - since
    if row["state"] == "running" and row["of"] and done > 0 and passed > 1:
        row["left"] = round(passed / done * max(0, row["of"] - row["rounds"]), 1)
    return row


def _resume(folder: str) -> str:
    """The command for it, without the folder, which may be long."""
    by = find_starter(Path(folder))
    return "flwr run with resume=..." if by == FLOWER else f"{by} --resume"


def _pulse(facts: Facts, now: float, folder: str) -> tuple[str, str]:
    """The state of a run without a summary: its lock decides, else the clock."""
    silent, lock = now - facts.row["changed"], facts.stamps[3]
    if lock and silent > SILENT:
        alive = files.held(Path(folder, ".lock"))
        if alive is not None:
            return ("running", "") if alive else ("killed", f"its process is gone; to resume: {_resume(folder)}")
    elif not lock and facts.locked:
        return "stopped", f"its process ended before the last round; to resume: {_resume(folder)}"
    if silent > QUIET:
        return "quiet", f"no summary, and no new round for more than {QUIET / 60:.0f} min: stopped, killed, or slow"
    return "running", ""


def _scores(line: Any) -> dict[str, Any]:
    known = line if isinstance(line, dict) else {}
    return {"accuracy": number(known.get("test_accuracy")), "loss": number(known.get("test_loss"))}


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return value if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value) else None


def _printable(name: str) -> bool:
    """Names that no page can carry (lone surrogates from odd bytes) are left out."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
