"""One run's rounds as columns that grow: rounds.jsonl is read once, each time from where the last look ended."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from fedveca.errors import UserError
from fedveca.runs.files import OBJECT_BYTES
from fedveca.runs.folder_types import Json
from fedveca.runs.schema import SCHEMA, describe_quantity, get_number, is_number
from fedveca.views.board.downsample import Cells, Floats, Places, average_blocks, find_window, thin_band, thin_curve
from fedveca.views.board.files import (
    HIGHEST_SETTING,
    NAME_LETTERS,
    Line,
    Stamp,
    is_shown_name,
    open_file,
    parse_line,
    to_plain_json,
)

BOARD_AXES = ("round", "steps", "rows", "bytes", "seconds", "clock", "joules")
_CELLS = 2**23  # of one heat map in memory; more clients than fit are averaged in blocks as they come
NUMBERS = 16 * _CELLS  # of one run in memory
_SENT, _CHUNK = 2**20, 2**18  # cells of a heat map in an answer, and those that are averaged at a time
_NAMES = 128  # recorded names, and quartiles of the values of clients
_TESTED = "per tested client"  # the kind of quantities over the clients that tested the model
_LINE_BYTES = 2**26
_LARGE = 2**20  # bytes of a line that is parsed alone: what JSON makes of it takes many times as much
_FAULTS = 1000
QUARTILES = {"low": 25, "middle": 50, "high": 75}  # percentiles
_parsing = threading.Lock()


class FaultRow(TypedDict):
    """A client that failed or was left out; the round is counted from 1."""

    round: int
    client: str
    what: str


class HeatMap(TypedDict):
    """Cells by client and round, where they stand, and how many rounds and clients a cell averages."""

    x: list[float]
    y: list[float]
    z: list[list[float | None]]
    rounds: int
    clients: int


class Column:
    """One recorded name: the lines that have it, and their numbers one after the other."""

    def __init__(self, kind: Literal["d", "f"]) -> None:
        self.rows, self.values = array("i"), array(kind)


class LinePlaces:
    """Which client, or block of clients, each number of a list belongs to, line by line."""

    def __init__(self) -> None:
        self.at, self.ends = array("i"), array("q")  # places, and where those of each line end
        self.highest = 0  # a method that pools all rows has one client, whatever the settings say


class ClientBand(TypedDict):
    """A value over the clients, by the rounds that tested them: x, mean, both tenths and quartiles."""

    x: list[float | None]
    mean: list[float | None]
    worst: list[float | None]
    low: list[float | None]
    middle: list[float | None]
    high: list[float | None]
    best: list[float | None]


class RunTail:
    """Columns of numbers, grids of one number per client, faults; complete lines only.

    Memory grows with what the lines hold, not with the numbers of clients and rounds in the settings.
    """

    def __init__(self, path: Path, clients: int, rounds: int) -> None:
        self.path = path
        self.clients, rounds = (max(1, min(n, HIGHEST_SETTING)) for n in (clients, rounds))
        self.block = max(1, -(-self.clients * rounds // _CELLS))
        self.lock = threading.Lock()
        self._clear(0)

    def _clear(self, inode: int) -> None:
        self.inode = inode
        self.offset, self.size, self.damaged, self.fault_count, self.kept = 0, 0, 0, 0, 0
        self.within = False  # a line that is too long
        self.stamp: Stamp | None = None  # of the file that was read to its end
        self.starts = array("q")
        self.columns: dict[str, Column] = {}
        self.grids: dict[str, Column] = {}
        self.places = {"ids": LinePlaces(), "tested": LinePlaces()}  # by the list of clients that others run over
        self.faults: deque[FaultRow] = deque(maxlen=_FAULTS)

    @property
    def share(self) -> float:
        """How much of the file has been read."""
        return self.offset / self.size if self.size else 1.0

    def read(self, seconds: float = 0.5) -> None:
        """Reads on for about so long; a file that was replaced or cut is read from its start."""
        until = time.monotonic() + seconds
        try:
            with open_file(self.path) as file:
                about = os.fstat(file.fileno())
                stamp = Stamp(about.st_ino, about.st_size, about.st_mtime_ns)
                if stamp == self.stamp:
                    return
                if stamp.inode != self.inode or stamp.size < self.offset:
                    self._clear(stamp.inode)
                self.size, self.stamp = stamp.size, None
                file.seek(self.offset)
                while content := file.readline(_LINE_BYTES):
                    if not content.endswith(b"\n") and len(content) < _LINE_BYTES:
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
        with _parsing if len(content) > _LARGE else nullcontext():
            line = parse_line(content) if ended and self.kept < NUMBERS else None
            former = self.columns.get("round")
            if line is None or (former and line.round < former.values[-1]):
                self.damaged += 1
            else:
                self._add_line(line, start)

    def _add_line(self, line: Line, start: int) -> None:
        row = len(self.starts)
        self.starts.append(start)
        sums: dict[str, float] = {}
        for over, places in self.places.items():
            listed = line.values.get(over)
            ids = listed if isinstance(listed, list) else []
            if (at := self._find_places(ids)) is not None:
                blocks, within = np.unique(at, return_inverse=True) if self.block > 1 else (at, None)
                places.highest = max(places.highest, int(at.max()))
                places.at.frombytes(blocks.astype(np.int32).tobytes())
                self.kept += len(blocks)
                for name, each in _list_floats(line, over, len(ids)):
                    self._add_cells(name, row, each if within is None else _average(each, within.ravel(), len(blocks)))
                    sums |= _find_quartiles(name, each) if over == "tested" else {}
                    if name == "tau":
                        sums[" steps"] = float(np.nansum(each))
            places.ends.append(len(places.at))
        if {"bytes_up", "bytes_down"} & line.values.keys():
            sums[" bytes"] = sum(get_number(line.values, name) or 0 for name in ("bytes_up", "bytes_down"))
        shown = {name: value for name, value in line.values.items() if is_shown_name(name)}
        for name, value in (sums | shown).items():
            self._add_number(name, row, value)
        self._add_faults(line)

    def _add_number(self, name: str, row: int, value: Json) -> None:
        if isinstance(value, bool) and describe_quantity(name).kind == "flag":
            value = int(value)
        if not is_number(value) or (name not in self.columns and len(self.columns) >= _NAMES):
            return
        column = self.columns.setdefault(name, Column("d"))
        column.rows.append(row)
        column.values.append(value)
        self.kept += 1

    def _find_places(self, ids: list[Json]) -> NDArray[np.integer] | None:
        """Which client, and above _CELLS which block of clients, each place of a line's lists belongs to."""
        if not ids or not all(type(i) is int and 0 <= i < self.clients for i in ids):
            return None
        return np.array(ids, dtype=np.int64) // self.block

    def _add_cells(self, name: str, row: int, values: Floats) -> None:
        if not is_shown_name(name) or (name not in self.grids and len(self.grids) >= _NAMES // 8):
            return
        grid = self.grids.setdefault(name, Column("f"))
        grid.rows.append(row)
        with np.errstate(over="ignore"):
            grid.values.frombytes(values.astype(np.float32).tobytes())
        self.kept += len(values)

    def _add_faults(self, line: Line) -> None:
        left, faults = (v if isinstance(v := line.values.get(name), list) else [] for name in ("left_out", "faults"))
        found = [(_to_text(f.get("client"), 80), f.get("what")) for f in faults if isinstance(f, dict)]
        known = {client for client, _ in found}
        names = (_to_text(client, 80) for client in left)
        found += [(name, "left out: its answer was not finite") for name in names if name not in known]
        self.fault_count += len(found)
        for client, what in found[-_FAULTS:]:
            self.faults.append({"round": line.round + 1, "client": client, "what": _to_text(what, 500)})

    def list_names(self) -> tuple[list[str], list[str]]:
        """The recorded names with one number per round, and those with one per client."""
        return [n for n in self.columns if n != "round" and is_shown_name(n)], list(self.grids)

    def read_curve(self, name: str, axis: str, low: float, high: float, width: int) -> list[list[float | None]]:
        """A recorded name over an axis: all x, then all y; thinned to the screen's width, all lows and highs too."""
        _, x, y = self.read_points(name, axis, low, high)
        return [round_digits(v) for v in thin_curve(x, y, width)]

    def read_points(self, name: str, axis: str, low: float, high: float) -> tuple[Places, Floats, Floats]:
        """A recorded name over a window of an axis, as it was recorded: rounds counted from 1, x, y."""
        if name not in self.columns or not is_shown_name(name):
            return np.zeros(0, int), np.zeros(0), np.zeros(0)
        column = self.columns[name]
        rows, x = np.array(column.rows), self._read_axis(axis)
        at_start = name in SCHEMA and SCHEMA[name].at == "start"  # the model before the round
        x = (np.concatenate([[0.0], x]) if at_start else x)[rows]
        part = find_window(x, low, high)
        return self._read_axis("round").astype(int)[rows][part], x[part], np.array(column.values)[part]

    def read_distribution(self, name: str, axis: str, low: float, high: float, width: int) -> ClientBand:
        """How a list over the clients that tested is distributed, over a window of an axis, thinned to the screen."""
        aggregate = name.replace("client_test_", "clients_", 1).replace("client_tuned_", "tuned_", 1)
        names = {
            "mean": aggregate,
            "worst": f"{aggregate}_worst",
            **{part: f" {part} {name}" for part in QUARTILES},
            "best": f"{aggregate}_best",
        }
        middle = self.columns.get(names["middle"], Column("d"))
        rows = np.array(middle.rows, dtype=int)
        x = self._read_axis(axis)[rows]
        part = find_window(x, low, high)
        columns = [x[part], *(self._spread_column(of)[rows][part] for of in names.values())]
        thin = thin_band(columns, width) if rows.size else columns
        return cast(ClientBand, dict(zip(("x", *names), (round_digits(values) for values in thin), strict=True)))

    def _spread_column(self, name: str) -> Floats:
        """[K] a column with NaN in the lines that do not have it."""
        column, each = self.columns.get(name, Column("d")), np.full(len(self.starts), np.nan)
        each[np.array(column.rows, dtype=int)] = np.array(column.values)
        return each

    def list_cells(self, name: str, low: float, high: float) -> Iterator[tuple[int, int, float]]:
        """Round, client and number of a window of the rounds, as they were recorded; UserError for means of blocks."""
        grid, rounds = self.grids.get(name), self._read_axis("round")
        if grid is None:
            return
        if self.block > 1:
            raise UserError(f"{name} of {self.clients} clients is kept as means only; its numbers are in rounds.jsonl")
        first, last = int(np.searchsorted(rounds, low, "left")), int(np.searchsorted(rounds, high, "right"))
        for down, across, values in self._read_cells(name, first, last):
            for client, k, value in zip(down.tolist(), across.tolist(), values.tolist(), strict=True):
                if is_number(value):
                    yield int(rounds[first + k]), client, value

    def _read_axis(self, axis: str) -> NDArray[np.float64]:
        """[K] the axis' value after each round, rising."""
        column = self.columns.get(f" {axis}" if axis in ("steps", "bytes") else axis, Column("d"))
        each = np.zeros(len(self.starts))
        each[np.array(column.rows)] = np.array(column.values)
        if axis == "clock":  # counted since the start
            return cast(NDArray[np.float64], np.maximum.accumulate(each))
        return each + 1 if axis == "round" else np.cumsum(each)

    def read_heat_map(self, name: str, low: float, high: float, rows: int, columns: int) -> HeatMap:
        """One number per client and round, averaged to the screen's size."""
        grid, rounds = self.grids.get(name), self._read_axis("round")
        if grid is None:
            return {"x": [], "y": [], "z": [], "rounds": 1, "clients": 1}
        first, last = int(np.searchsorted(rounds, low, "left")), int(np.searchsorted(rounds, high, "right"))
        highest = self._find_line_places(name).highest
        shape = (-(-self.clients // self.block) if highest else 1, max(0, last - first))
        rows = min(rows, max(1, _SENT // max(1, min(shape[1], columns))))
        z, tall, wide = average_blocks(self._read_cells(name, first, last), shape, rows, columns)
        side = self.block * tall
        x = (rounds[first:last:wide] + (wide - 1) / 2).tolist()  # even steps: browsers draw such maps far faster
        y = [i * side + (side - 1) / 2 for i in range(len(z))]
        return {"x": x, "y": y, "z": [round_digits(row) for row in z], "rounds": wide, "clients": side}

    def _find_line_places(self, name: str) -> LinePlaces:
        return self.places["tested" if describe_quantity(name).kind == _TESTED else "ids"]

    def _read_cells(self, name: str, first: int, last: int) -> Iterator[Cells]:
        """Where the numbers of some lines belong, down and across, and the numbers; not too many at a time."""
        grid, line_places = self.grids[name], self._find_line_places(name)
        rows, ends = np.array(grid.rows), np.array(line_places.ends)
        begins = np.concatenate([[0], ends[:-1]])[rows]
        ends = ends[rows]
        sizes = ends - begins
        values = np.concatenate([[0], np.cumsum(sizes)])  # where those of a line begin
        at, stop = (int(i) for i in np.searchsorted(rows, [first, last]))
        while at < stop:
            to = min(stop, max(at + 1, int(np.searchsorted(ends, begins[at] + _CHUNK, "right"))))
            places = np.array(line_places.at[int(begins[at]) : int(ends[to - 1])])
            into = np.repeat(begins[at:to] - begins[at] - values[at:to] + values[at], sizes[at:to])
            down = places[into + np.arange(len(into))]
            across = np.repeat(rows[at:to] - first, sizes[at:to])
            yield down, across, np.array(grid.values[int(values[at]) : int(values[to])])
            at = to

    def read_log(self, before: int, count: int) -> tuple[int, list[Json]]:
        """The lines that end at the `before`-th, and the number of the first of them."""
        last = max(0, min(before, len(self.starts)))
        first, size = last, 0
        lines: list[Json] = []
        if not last:
            return 0, lines
        with open_file(self.path) as file:
            while first > max(0, last - count):
                file.seek(self.starts[first - 1])
                content = file.readline(_LINE_BYTES)
                size += len(content)
                if lines and size > OBJECT_BYTES:
                    break
                first -= 1
                line = parse_line(content)
                lines.append(to_plain_json(_drop_clients(line.values) if line else {"round": first}))
        return first, lines[::-1]


def _list_floats(line: Line, over: str, length: int) -> Iterator[tuple[str, Floats]]:
    """The lists of a line that run over this list of clients."""
    for name, value in line.values.items():
        if name not in ("ids", "tested", "left_out", "faults", "candidates", "candidate_loss") and isinstance(
            value, list
        ):
            each = (
                _to_floats(value, length) if (describe_quantity(name).kind == _TESTED) == (over == "tested") else None
            )
            if each is not None:
                yield name, each


def _find_quartiles(name: str, values: Floats) -> dict[str, float]:
    """Under names of the board itself, so that a curve of quartiles needs no list."""
    known = values[np.isfinite(values)]
    if not known.size or len(name) > NAME_LETTERS:
        return {}
    found = np.percentile(known, list(QUARTILES.values())).tolist()
    return {f" {part} {name}": value for part, value in zip(QUARTILES, found, strict=True)}


def _to_floats(value: Json, length: int) -> Floats | None:
    """A list of so many numbers, null among them; None for anything else."""
    if not isinstance(value, list) or len(value) != length or not set(map(type, value)) <= {int, float, type(None)}:
        return None
    try:
        return np.array(value, dtype=float)
    except OverflowError:
        return None


def _drop_clients(values: dict[str, Json]) -> dict[str, Json]:
    """A line without the values of all clients that tested: the page shows their aggregates."""
    lists = (_TESTED, "table")
    return {k: v for k, v in values.items() if k != "tested" and describe_quantity(k).kind not in lists}


def _average(values: Floats, within: NDArray[np.integer], blocks: int) -> Floats:
    """[blocks] the mean of each block's numbers, NaN where it has none."""
    there = np.isfinite(values)
    sums, counts = (np.bincount(within[there], w, blocks) for w in (values[there], None))
    means: Floats = np.divide(sums, counts, out=np.full(blocks, np.nan), where=counts > 0)
    return means


def _to_text(value: Json, most: int) -> str:
    return str(value)[:most] if value is None or isinstance(value, str | int | float) else "invalid"


def round_digits(values: Floats) -> list[float | None]:
    """Six digits are more than a screen shows; what is absent is null."""
    there = np.isfinite(values)
    size = np.abs(np.where(there & (values != 0), values, 1.0))
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(size)), -300, 300)
    digits = (np.round(np.where(there, values, 0.0) * scale) / scale).tolist()
    return [v if known else None for v, known in zip(digits, there.tolist(), strict=True)]
