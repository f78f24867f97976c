"""One run's rounds as columns that grow: rounds.jsonl is read once, each time from where the last look ended."""

from __future__ import annotations

import itertools
import os
import threading
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from fedveca.views.board import files, thin
from fedveca.views.board.shelf import number

CELLS = 2**23  # of one heat map in memory; more clients than fit are averaged in blocks as they come
NAMES = 64
PIECE, LONGEST = 2**20, 2**26  # bytes read at a time, and of a line
AXES = ("round", "steps", "bytes", "seconds")
AT_START = ("train_loss",)  # recorded of the model before the round, all else of the one after it
_births = itertools.count()


class Follow:
    """Columns of numbers, grids of one number a client, faults; whole lines only."""

    def __init__(self, path: Path, clients: int, rounds: int) -> None:
        self.path, self.clients = path, max(1, clients)
        self.block = max(1, -(-self.clients * max(1, rounds) // CELLS))
        self.lock = threading.Lock()
        self._clear(0)

    def _clear(self, inode: int) -> None:
        self.inode, self.birth = inode, next(_births)
        self.offset, self.size, self.damaged, self.fault_count = 0, 0, 0, 0
        self.starts = array("q")
        self.columns: dict[str, array[float]] = {}
        self.grids: dict[str, Any] = {}
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
                if seen.st_ino != self.inode or seen.st_size < self.offset:
                    self._clear(seen.st_ino)
                self.size = seen.st_size
                file.seek(self.offset)
                rest = b""
                while piece := file.read(PIECE):
                    *lines, rest = (rest + piece).split(b"\n")
                    for content in lines:
                        self._line(content)
                    if time.monotonic() > until or len(rest) > LONGEST:
                        break
        except OSError:
            if self.offset:
                self._clear(0)

    def _line(self, content: bytes) -> None:
        start, self.offset = self.offset, self.offset + len(content) + 1
        line, former = files.line(content), self.columns.get("round")
        if line is None or (former and line["round"] < former[-1]):
            self.damaged += 1
            return
        row = len(self.starts)
        self.starts.append(start)
        ids: list[int] = line["ids"] if isinstance(line.get("ids"), list) else []
        at = self._places(ids)
        values = {name: v for name, v in line.items() if number(v) is not None}
        for name, v in line.items():
            each = _each(v, len(ids)) if at is not None and name not in ("ids", "left_out", "faults") else None
            if each is not None:
                self._cells(name, row, at, each)
                if name == "tau":
                    values[" steps"] = float(np.nansum(each))
        values[" bytes"] = sum(number(line.get(name)) or 0 for name in ("bytes_up", "bytes_down"))
        for name, v in values.items():
            self._number(name, row, float(v))
        for column in self.columns.values():
            column.extend([np.nan] * (row + 1 - len(column)))
        self._fault(line)

    def _number(self, name: str, row: int, value: float) -> None:
        if name not in self.columns and len(self.columns) >= NAMES:
            return
        column = self.columns.setdefault(name, array("d"))
        column.extend([np.nan] * (row - len(column)))
        column.append(value)

    def _places(self, ids: list[int]) -> Any:
        """Which client, and below CELLS which of its blocks, stands where in a line's lists."""
        if not ids or not all(type(i) is int and 0 <= i < self.clients for i in ids):
            return None
        return np.array(ids, dtype=np.int64) // self.block

    def _cells(self, name: str, row: int, at: Any, values: Any) -> None:
        height = -(-self.clients // self.block)
        grid = self.grids.get(name)
        if grid is None:
            if len(self.grids) >= NAMES // 4:
                return
            grid = np.full((max(64, row + 1), height), np.nan, np.float32)
        if row >= len(grid):
            grid = _longer(grid, max(2 * len(grid), row + 1))
        there = np.isfinite(values)
        if self.block == 1:
            grid[row, at[there]] = values[there]
        else:
            sums, counts = (np.bincount(at[there], w, height) for w in (values[there], None))
            np.divide(sums, counts, out=grid[row], where=counts > 0, casting="same_kind")
        self.grids[name] = grid

    def _fault(self, line: dict[str, Any]) -> None:
        left, said = (v if isinstance(v := line.get(name), list) else [] for name in ("left_out", "faults"))
        found = [(str(f.get("client")), f.get("what")) for f in said if isinstance(f, dict)]
        named = {client for client, _ in found}
        found += [(str(i), "left out: it gave a number that is not finite") for i in left if str(i) not in named]
        self.fault_count += len(found)
        for client, what in found:
            self.faults.append({"round": line["round"] + 1, "client": client[:80], "what": str(what)[:500]})

    def names(self) -> tuple[list[str], list[str]]:
        """Recorded names with one number a round, and those with one a client."""
        return [n for n in self.columns if n != "round" and n[0] != " "], list(self.grids)

    def curve(self, name: str, axis: str, low: float, high: float, width: int) -> tuple[list[Any], list[Any]]:
        """A recorded name over an axis, thinned to the screen's width."""
        if name not in self.columns:
            return [], []
        y, x = np.array(self.columns[name]), self._axis(axis)
        if name in AT_START:
            x = np.concatenate([[0.0], x])[: len(y)]
        part = thin.window(x, low, high)
        return tuple(_short(v) for v in thin.curve(x[part], y[part], width))  # type: ignore[return-value]

    def _axis(self, axis: str) -> Any:
        """[K] the axis' value after each round, rising."""
        if axis == "round":
            return np.array(self.columns.get("round", ())) + 1
        return np.nancumsum(np.array(self.columns.get("seconds" if axis == "seconds" else f" {axis}", ())))

    def heat(self, name: str, low: float, high: float, rows: int, columns: int) -> dict[str, Any]:
        """One number a client and round, thinned to the screen: cells, where they stand, what a cell averages."""
        grid, rounds = self.grids.get(name), self._axis("round")
        if grid is None:
            return {"x": [], "y": [], "z": [], "rounds": 1, "clients": 1}
        first, last = int(np.searchsorted(rounds, low, "left")), int(np.searchsorted(rounds, high, "right"))
        grid = grid if last <= len(grid) else _longer(grid, last)  # a name that is no longer recorded
        z, tall, wide = thin.blocks(grid[first:last].T, rows, columns)
        side = self.block * tall
        x = (rounds[first:last:wide] + (wide - 1) / 2).tolist()  # even steps: browsers draw such maps far faster
        y = [i * side + (side - 1) / 2 for i in range(len(z))]
        return {"x": x, "y": y, "z": [_short(row) for row in z], "rounds": wide, "clients": side}

    def log(self, before: int, count: int) -> tuple[int, list[Any]]:
        """The lines that end at the `before`-th, and the number of the first of them."""
        last = max(0, min(before, len(self.starts)))
        first = max(0, last - count)
        if first == last:
            return first, []
        end = self.starts[last] if last < len(self.starts) else self.offset
        while end - self.starts[first] > files.MOST and first < last - 1:
            first += 1
        with files.opened(self.path) as file:
            file.seek(self.starts[first])
            content = file.read(end - self.starts[first])
        return first, [parsed for part in content.split(b"\n") if (parsed := files.line(part))]


def _each(value: Any, length: int) -> Any:
    """A list of so many numbers, null among them; None for anything else."""
    if not isinstance(value, list) or len(value) != length or not set(map(type, value)) <= {int, float, type(None)}:
        return None
    try:
        return np.array(value, dtype=float)
    except OverflowError:
        return None


def _longer(grid: Any, length: int) -> Any:
    return np.concatenate([grid, np.full((length - len(grid), grid.shape[1]), np.nan, grid.dtype)])


def _short(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows; what is absent is null."""
    values = np.asarray(values, dtype=float)
    there = np.isfinite(values)
    size = np.abs(np.where(there & (values != 0), values, 1.0))
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(size)), -300, 300)
    digits = (np.round(np.where(there, values, 0.0) * scale) / scale).tolist()
    return digits if there.all() else [v if known else None for v, known in zip(digits, there.tolist(), strict=True)]
