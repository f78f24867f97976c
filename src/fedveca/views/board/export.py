"""Files that the board makes of chosen runs: recorded numbers as CSV, and the report. Run folders are only read."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedveca.errors import UserError
from fedveca.views.board.files import open_file
from fedveca.views.board.tail import RunTail

MOST_CSV_ROWS = 2**20  # of a CSV file
REPORT_BYTES, REPORT_PARTS = 2**26, 2**20  # of rounds.jsonl, and lists and objects, of all runs of one report
# The report's scripts are inline, and it is made of folders that are not trusted: it gets an origin of its own.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads allow-popups allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_reporting = threading.Lock()


class BoardBusy(RuntimeError):
    """Something takes so much that it is done once at a time."""


class MadeFile(NamedTuple):
    """A file as an answer."""

    content: bytes
    media: str
    headers: dict[str, str]


def write_csv(name: str, axis: str, runs: Iterable[tuple[str, RunTail]], low: float, high: float) -> MadeFile:
    """What some runs recorded under a name, not thinned: a row per round, or per round and client."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    count, heads = 0, list[str]()
    for run, tail in runs:
        with tail.lock:
            tail.read(60)
            lines: Iterable[tuple[object, ...]]
            if name in tail.grids:
                head, lines = ["run", "round", "client", name], tail.list_cells(name, low, high)
            else:
                head = ["run", "round", name] if axis == "round" else ["run", "round", axis, name]
                k, x, y = (values.tolist() for values in tail.read_points(name, axis, low, high))
                lines = zip(k, y, strict=True) if axis == "round" else zip(k, x, y, strict=True)
            for line in lines:
                if not heads:
                    rows.writerow(head)
                    heads = head
                if head == heads:
                    rows.writerow((_to_cell(run), *line))
                count += 1
                if count > MOST_CSV_ROWS:
                    raise UserError(f"{name} has more than {MOST_CSV_ROWS} rows; choose fewer runs or fewer rounds")
    if not heads:
        raise UserError(f"none of these runs recorded {name}")
    return MadeFile(text.getvalue().encode(), "text/csv", _attach(f"{_to_file_name(name)}.csv"))


def make_report(folders: Sequence[Path], download: bool) -> MadeFile:
    """The report of some runs, as `fedveca report` writes it.

    UserError where a run cannot be read or where they are too large; BoardBusy while another report is being made.
    """
    _require_moderate(folders)
    if not _reporting.acquire(blocking=False):
        raise BoardBusy("another report is being made; ask again when it is done")
    try:
        from fedveca.views.paths import find_runs  # PyTorch comes with it
        from fedveca.views.report.report import write_report

        with TemporaryDirectory(prefix="fedveca-board-") as place:
            path = Path(place) / "fedveca-report.html"
            write_report([find_runs([folder])[0][0] for folder in folders], path)
            headers = {"content-security-policy": REPORT_POLICY} | (_attach(path.name) if download else {})
            return MadeFile(path.read_bytes(), "text/html", headers)
    finally:
        _reporting.release()


def _require_moderate(folders: Sequence[Path]) -> None:
    """UserError where reading the rounds of these runs at once would take too much memory."""
    size = parts = 0
    for folder in folders:
        with open_file(folder / "rounds.jsonl") as file:
            while piece := file.read(2**20):
                size, parts = size + len(piece), parts + piece.count(b"[") + piece.count(b"{")
                if size > REPORT_BYTES or parts > REPORT_PARTS:
                    raise UserError(
                        f"the rounds of these runs are too large for a report from the board: at most "
                        f"{REPORT_BYTES // 2**20} MiB and {REPORT_PARTS} lists; choose fewer, or use fedveca report"
                    )


def _attach(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _to_file_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)


def _to_cell(text: str) -> str:
    """A folder's name that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[0] in "=+-@\t\r" else text
