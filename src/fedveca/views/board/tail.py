"""One run's rounds as columns that grow: rounds.jsonl is read once, each time from where the last look ended."""

from __future__ import annotations

import itertools
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedveca.views.board import downsample as thin
from fedveca.views.board import files
from fedveca.views.board.index import number

CELLS = 2**23  # of one heat map in memory; more clients than fit are averaged in blocks as they come
MOST = 16 * CELLS  # numbers of one run in memory
SENT, CHUNK = 2**20, 2**18  # cells of a heat map in an answer, and those that are averaged at a time
NAMES, LETTERS = 64, 100  # recorded names, and letters of one
LONGEST = 2**26  # bytes of a line
LARGE = 2**20  # bytes of a line that is parsed alone: what JSON makes of it takes many times as much
AXES = ("round", "steps", "bytes", "seconds")
AT_START = ("train_loss",)  # recorded of the model before the round, all else of the one after it
_births = itertools.count()
_parsing = threading.Lock()


class Column:
    """One recorded name: the lines that have it, and their numbers one after the other."""

    def __init__(self, kind: Literal["d", "f"]) -> None:
        self.rows, self.values = array("i"), array(kind)


class RunTail:
    """Columns of numbers, grids of one number a client, faults; whole lines only.

    Only what stands in a line takes memory: what the settings say of clients and rounds decides no size.
    """

    def __init__(self, path: Path, clients: int, rounds: int) -> None:
        self.path = path
        self.clients, rounds = (max(1, min(n, files.LARGEST_COUNT)) for n in (clients, rounds))
        self.block = max(1, -(-self.clients * rounds // CELLS))
        self.lock = threading.Lock()
        self._clear(0)

    def _clear(self, inode: int) -> None:
        self.inode, self.birth = inode, next(_births)
        self.offset, self.size, self.damaged, self.fault_count, self.kept = 0, 0, 0, 0, 0
        self.within = False  # a line that is too long
        self.stamp: tuple[int, ...] | None = None  # of the file that was read to its end
        self.starts = array("q")
        self.columns: dict[str, Column] = {}
        self.grids: dict[str, Column] = {}
        self.places = array("i")  # which client, or block of clients, each number of a grid belongs to, line by line
        self.ends = array("q")  # of each line in `places`
        self.faults: deque[dict[str, Any]] = deque(maxlen=1000)

    @property
    def version(self) -> str:
        return f"{self.inode}-{self.birth}-{len(self.starts)}-{self.offset}"

    @property
    def share(self) -> float:
        """How much of the file has been read."""
        return self.offset / self.size if self.size else 1.0

    def read(self, seconds: float = 0.5) -> None:
        """Goes on reading for about so long; a file that was replaced or cut is begun again."""
        until = time.monotonic() + seconds
        try:
            with files.opened(self.path) as file:
                seen = os.fstat(file.fileno())
                stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
                if stamp == self.stamp:
                    return
                if seen.st_ino != self.inode or seen.st_size < self.offset:
                    self._clear(seen.st_ino)
                self.size, self.stamp = seen.st_size, None
                file.seek(self.offset)
                while content := file.readline(LONGEST):
                    if not content.endswith(b"\n") and len(content) < LONGEST:
                        break  # it is still being written
                    self._take(content)
                    if time.monotonic() > until:
                        return
                self.size, self.stamp = self.offset, stamp
        except OSError:
            if self.offset:
                self._clear(0)

    def _take(self, content: bytes) -> None:
        """One line, or a piece of one that is too long."""
        start, self.offset = self.offset, self.offset + len(content)
        ended, within = content.endswith(b"\n"), self.within
        self.within = not ended
        if within:
            return
        with _parsing if len(content) > LARGE else nullcontext():
            good = ended and self.kept < MOST and self._line(content, start)
        self.damaged += not good

    def _line(self, content: bytes, start: int) -> bool:
        """Whether it is a line of a run; then its numbers are kept."""
        line, former = files.line(content), self.columns.get("round")
        if line is None or (former and line["round"] < former.values[-1]):
            return False
        row = len(self.starts)
        self.starts.append(start)
        ids = line["ids"] if isinstance(line.get("ids"), list) else []
        at = self._places(ids)
        values = {name: v for name, v in line.items() if number(v) is not None}
        if at is not None:
            blocks, within = np.unique(at, return_inverse=True) if self.block > 1 else (at, None)
            self.places.frombytes(blocks.astype(np.int32).tobytes())
            for name, v in line.items():
                each = _each(v, len(ids)) if name not in ("ids", "left_out", "faults") else None
                if each is not None:
                    self._cells(name, row, each if within is None else _means(each, within.ravel(), len(blocks)))
                    if name == "tau":
                        values[" steps"] = float(np.nansum(each))
        self.kept += len(self.places) - (self.ends[-1] if self.ends else 0)
        self.ends.append(len(self.places))
        if {"bytes_up", "bytes_down"} & line.keys():
            values[" bytes"] = sum(number(line.get(name)) or 0 for name in ("bytes_up", "bytes_down"))
        for name, v in values.items():
            if number(v) is not None and (_named(name) or name in (" steps", " bytes")):
                self._number(name, row, float(v))
        self._fault(line)
        return True

    def _number(self, name: str, row: int, value: float) -> None:
        if name not in self.columns and len(self.columns) >= NAMES:
            return
        column = self.columns.setdefault(name, Column("d"))
        column.rows.append(row)
        column.values.append(value)
        self.kept += 1

    def _places(self, ids: list[Any]) -> Any:
        """Which client, and above CELLS which block of clients, stands where in a line's lists."""
        if not ids or not all(type(i) is int and 0 <= i < self.clients for i in ids):
            return None
        return np.array(ids, dtype=np.int64) // self.block

    def _cells(self, name: str, row: int, values: Any) -> None:
        if not _named(name) or (name not in self.grids and len(self.grids) >= NAMES // 4):
            return
        grid = self.grids.setdefault(name, Column("f"))
        grid.rows.append(row)
        with np.errstate(over="ignore"):
            grid.values.frombytes(values.astype(np.float32).tobytes())
        self.kept += len(values)

    def _fault(self, line: dict[str, Any]) -> None:
        left, said = (v if isinstance(v := line.get(name), list) else [] for name in ("left_out", "faults"))
        found = [(_text(f.get("client"), 80), f.get("what")) for f in said if isinstance(f, dict)]
        named = {client for client, _ in found}
        left = [name for i in left if (name := _text(i, 80)) not in named]
        found += [(name, "left out: it gave a number that is not finite") for name in left]
        self.fault_count += len(found)
        for client, what in found[-1000:]:
            self.faults.append({"round": line["round"] + 1, "client": client, "what": _text(what, 500)})

    def names(self) -> tuple[list[str], list[str]]:
        """Recorded names with one number a round, and those with one a client."""
        return [n for n in self.columns if n != "round" and _named(n)], list(self.grids)

    def curve(self, name: str, axis: str, low: float, high: float, width: int) -> tuple[list[Any], list[Any]]:
        """A recorded name over an axis, thinned to the screen's width."""
        if name not in self.columns or name[:1] == " ":
            return [], []
        column, x = self.columns[name], self._axis(axis)
        x = (np.concatenate([[0.0], x]) if name in AT_START else x)[np.array(column.rows)]
        part = thin.window(x, low, high)
        y = np.array(column.values)[part]
        return tuple(_short(v) for v in thin.curve(x[part], y, width))  # type: ignore[return-value]

    def _axis(self, axis: str) -> Any:
        """[K] the axis' value after each round, rising."""
        column = self.columns.get(axis if axis in ("round", "seconds") else f" {axis}", Column("d"))
        each = np.zeros(len(self.starts))
        each[np.array(column.rows)] = np.array(column.values)
        return each + 1 if axis == "round" else np.cumsum(each)

    def heat(self, name: str, low: float, high: float, rows: int, columns: int) -> dict[str, Any]:
        """One number a client and round, thinned to the screen: cells, where they stand, what a cell averages."""
        grid, rounds = self.grids.get(name), self._axis("round")
        if grid is None:
            return {"x": [], "y": [], "z": [], "rounds": 1, "clients": 1}
        first, last = int(np.searchsorted(rounds, low, "left")), int(np.searchsorted(rounds, high, "right"))
        shape = (-(-self.clients // self.block), max(0, last - first))
        rows = min(rows, max(1, SENT // max(1, min(shape[1], columns))))
        z, tall, wide = thin.blocks(self._pieces(grid, first, last), shape, rows, columns)
        side = self.block * tall
        x = (rounds[first:last:wide] + (wide - 1) / 2).tolist()  # even steps: browsers draw such maps far faster
        y = [i * side + (side - 1) / 2 for i in range(len(z))]
        return {"x": x, "y": y, "z": [_short(row) for row in z], "rounds": wide, "clients": side}

    def _pieces(self, grid: Column, first: int, last: int) -> Iterator[tuple[Any, Any, Any]]:
        """Where the numbers of some lines belong, down and across, and the numbers; not too many at a time."""
        rows, ends = np.array(grid.rows), np.array(self.ends)
        begins = np.concatenate([[0], ends[:-1]])[rows]
        ends = ends[rows]
        sizes = ends - begins
        values = np.concatenate([[0], np.cumsum(sizes)])  # where those of a line begin
        at, stop = (int(i) for i in np.searchsorted(rows, [first, last]))
        while at < stop:
            to = min(stop, max(at + 1, int(np.searchsorted(ends, begins[at] + CHUNK, "right"))))
            places = np.array(self.places[int(begins[at]) : int(ends[to - 1])])
            into = np.repeat(begins[at:to] - begins[at] - values[at:to] + values[at], sizes[at:to])
            down = places[into + np.arange(len(into))]
            across = np.repeat(rows[at:to] - first, sizes[at:to])
            yield down, across, np.array(grid.values[int(values[at]) : int(values[to])])
            at = to

    def log(self, before: int, count: int) -> tuple[int, list[Any]]:
        """The lines that end at the `before`-th, and the number of the first of them."""
        last = max(0, min(before, len(self.starts)))
        first, size = last, 0
        lines: list[Any] = []
        if not last:
            return 0, lines
        with files.opened(self.path) as file:
            while first > max(0, last - count):
                file.seek(self.starts[first - 1])
                content = file.readline(LONGEST)
                size += len(content)
                if lines and size > files.MOST:
                    break
                first -= 1
                lines.append(files.plain(files.line(content) or {"round": first}))
        return first, lines[::-1]


def _each(value: Any, length: int) -> Any:
    """A list of so many numbers, null among them; None for anything else."""
    if not isinstance(value, list) or len(value) != length or not set(map(type, value)) <= {int, float, type(None)}:
        return None
    try:
        return np.array(value, dtype=float)
    except OverflowError:
        return None


def _means(values: Any, within: Any, blocks: int) -> Any:
    """[blocks] the mean of each block's numbers, NaN where it has none."""
    there = np.isfinite(values)
    sums, counts = (np.bincount(within[there], w, blocks) for w in (values[there], None))
    return np.divide(sums, counts, out=np.full(blocks, np.nan), where=counts > 0)


def _named(name: str) -> bool:
    """Whether a recorded name is one to show; a space begins those of this file."""
    return 0 < len(name) <= LETTERS and name[0] != " "


def _text(value: Any, most: int) -> str:
    return str(value)[:most] if value is None or isinstance(value, str | int | float) else "invalid"


def _short(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows; what is absent is null."""
    values = np.asarray(values, dtype=float)
    there = np.isfinite(values)
    size = np.abs(np.where(there & (values != 0), values, 1.0))
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(size)), -300, 300)
    digits = (np.round(np.where(there, values, 0.0) * scale) / scale).tolist()
    return digits if there.all() else [v if known else None for v, known in zip(digits, there.tolist(), strict=True)]
