"""What Python users make of their runs: a table of methods, a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedveca.runs.compare import TableRow, make_table
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

RunSource = Run | Path | str  # a run, or its folder


def report(runs: RunSource | Sequence[RunSource], path: Path | str = "report.html") -> Path:
    """Writes a report of runs: one HTML file that needs no network.

    Args:
        runs: One run or several, as objects or as folders that hold them. Different tasks get sections of their own.
        path: The file, in a folder that exists.

    Returns:
        The file.

    Raises:
        UserError: Where something is not a run, or the file cannot be written.
    """
    write_report(_open_all(runs), Path(path))
    return Path(path)


def compare_table(runs: Sequence[RunSource]) -> list[TableRow]:
    """The table of a comparison: one row per method, with the mean and the standard deviation over the seeds.

    Args:
        runs: What `compare` returned, or run folders; all of them have ended.

    Returns:
        The rows of table.json; `pandas.json_normalize` makes a frame of them.

    Raises:
        UserError: Where something is not a run.
    """
    return make_table(_open_all(runs))


def _open_all(runs: RunSource | Sequence[RunSource]) -> list[Run]:
    """The runs; a folder may hold many of them."""
    found: list[Run] = []
    for run in [runs] if isinstance(runs, Run | Path | str) else runs:
        found += find_runs([Path(run)])[0] if isinstance(run, Path | str) else [run]
    return check_runs(found)
