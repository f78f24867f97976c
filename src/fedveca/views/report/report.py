"""A report: one HTML file for one run or many, that opens from disk and asks no network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedveca.algorithms.registry import is_pooled
from fedveca.errors import UserError, printable
from fedveca.runs.files import write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.version import __version__
from fedveca.views.report import html as report_page
from fedveca.views.report import words as report_words
from fedveca.views.report.plotly_bundle import plotly
from fedveca.views.series import AXES, Curve, band, curves, heat, metrics, number, partition, rises, sections, thin

ROOM = 300_000  # numbers of heat maps in one report
MOST = 12  # runs, and partitions, that a section lets one choose from
MAPS = {"tau": ("τ", False), "A": ("A", True), "beta": ("β", True), "delta": ("δ", True)}
LINES: dict[str, tuple[str, float | None]] = {"tau_k": ("τ_k", None), "premise": ("η τ_k L", 1.0), "L": ("L", None)}


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders and below them, each once; and what was passed over, in a sentence each."""
    if isinstance(paths, str | Path) or not paths:
        raise UserError(f"paths={paths!r} are no folders; give a list of run folders, or of folders of them")
    runs: dict[Path, Run] = {}
    passed = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"{path} is no folder; name run folders, or folders of them")
        found = [path] if (path / "experiment.toml").exists() else sorted(_below(path))
        if not found:
            raise UserError(f"{path} holds no run folder")
        for folder in found:
            try:
                runs.setdefault(folder.resolve(), _opened(folder))
            except ValueError as error:
                if folder == path:
                    raise
                passed.append(f"passed over: {error}")
    if not runs:
        raise UserError(f"{paths[0]} holds no run that can be read: {passed[0].removeprefix('passed over: ')}")
    return list(runs.values()), passed


def _below(path: Path) -> Iterator[Path]:
    """The folders that hold settings, however deep; links are not followed."""
    left = [path]
    while left:
        here = left.pop()
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                if entry.name == "experiment.toml":
                    yield here
                if entry.is_dir(follow_symlinks=False):
                    left.append(here / entry.name)


def _opened(folder: Path) -> Run:
    """A run that can be shown."""
    run = Run.open(folder)
    try:
        metrics([run])
    except ValueError as error:
        raise UserError(f"{printable(str(folder), 400)} cannot be shown: {error}") from error
    return run


def write(runs: Sequence[Run], path: Path) -> dict[str, Any]:
    """Writes the report whole or not at all; says where it is and how large."""
    path, runs = Path(path), check_runs(runs)
    require_file(path)
    found = [curves(mine) for mine in sections(runs)]
    text = page(found).encode("utf-8", "backslashreplace")  # JSON may hold half a surrogate pair
    with writing_file(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    return {"report": str(path), "runs": len(runs), "sections": len(found), "bytes": len(text)}


def require_file(path: Path) -> None:
    """ValueError where a file cannot be written: a folder, a pipe or a device is there."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; name another")


@contextlib.contextmanager
def writing_file(path: Path) -> Iterator[None]:
    """ValueError in one sentence where the file system says no."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def page(found: Sequence[list[Curve]]) -> str:
    """The whole file as text."""
    body, data = content(found)
    files = resources.files("fedveca.views.report") / "page"
    scripts = [plotly(), *((files / name).read_text("utf-8") for name in ("charts.js", "report.js"))]
    title = report_words.heading(found[0]) if len(found) == 1 else f"{len(found)} tasks, {_count(found)} runs"
    return Template((files / "report.html").read_text("utf-8")).substitute(
        title=escape(title),
        version=__version__,
        style=(files / "report.css").read_text("utf-8"),
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        body=body,
        footer=f"Made by fedveca {__version__} from {_count(found)} run folders.",
        data=data,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def content(found: Sequence[list[Curve]]) -> tuple[str, str]:
    """The words as HTML, and what the figures draw as JSON."""
    drawn = [drawing(mine) for mine in found]
    _fill(found, drawn)
    data = json.dumps({"sections": drawn}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return report_page.body(found, drawn), data


def drawing(found: Sequence[Curve]) -> dict[str, Any]:
    """One section's curves as numbers; `runs` and `partitions` are filled in as far as there is room."""
    names = metrics(run for curve in found for run in curve.runs)
    return {
        "axes": AXES,
        "metrics": [
            {"name": n, "label": report_words.called(n), "percent": "accuracy" in n, "rising": rises(n)} for n in names
        ],
        "curves": [
            {
                "label": c.label,
                "colour": c.colour,
                "dash": c.dash,
                "strong": c.method == "fedveca",
                "metrics": {n: _short(band(c.runs, n, 500)) for n in names},
            }
            for c in found
        ],
        "runs": [],
        "partitions": [],
        "adaptive": 0,
    }


def _fill(found: Sequence[list[Curve]], drawn: Sequence[dict[str, Any]]) -> None:
    """The inside of runs that adapt their steps, first seeds first, until there is no more room; and partitions."""
    room = ROOM
    wanted = []
    for section, mine in zip(drawn, found, strict=True):
        for curve in mine:
            for rank, run in enumerate(curve.runs):
                wanted.append((rank, section, curve, run))
        section["adaptive"] = sum(_adaptive(run) for curve in mine for run in curve.runs)
    for _, section, curve, run in sorted(wanted, key=lambda entry: entry[0]):
        label = f"{curve.label}, seed {run.experiment.seed}"
        if _adaptive(run) and len(section["runs"]) < MOST:
            seen = inside(run, label)
            size = sum(len(m["z"]) * len(m["rounds"]) for m in seen["maps"])
            if size <= room:
                room -= size
                section["runs"].append(seen | {"partition": _partition(section, run, label)})
        elif not is_pooled(curve.method):
            _partition(section, run, label)


def _partition(section: dict[str, Any], run: Run, label: str) -> int | None:
    """The place of the run's partition in its section, which holds each once."""
    part, known = partition(run), section["partitions"]
    at = next((i for i, p in enumerate(known) if part and all(p[key] == part[key] for key in part)), None)
    if part and at is None and len(known) < MOST:
        known.append(part | {"label": label})
        return len(known) - 1
    return at


def _adaptive(run: Run) -> bool:
    return any(isinstance(line.get("A"), list) for line in run.rounds)


def inside(run: Run, label: str) -> dict[str, Any]:
    """One run round by round: its clients' numbers as maps, its own as lines."""
    maps = []
    for name, (symbol, log) in MAPS.items():
        seen = _short(heat(run, name), 4)
        maps.append(seen | {"name": name, "symbol": symbol, "log": log, "small": name != "tau"})
    lines = []
    for name, (symbol, bound) in LINES.items():
        at = [(k + 1, v) for k, line in enumerate(run.rounds) if (v := number(line.get(name))) is not None]
        at = [at[i] for i in thin(len(at), 500) if name == "tau_k" or at[i][1] > 0]  # L is 0 while none is known
        rounds, y = [k for k, _ in at], _short([v for _, v in at])
        lines.append({"name": name, "symbol": symbol, "bound": bound, "rounds": rounds, "y": y})
    return {"label": label, "maps": maps, "lines": lines}


def _short(value: Any, digits: int = 6) -> Any:
    """Numbers to so many digits, through lists and tables; whole ones as such."""
    if isinstance(value, dict):
        return {key: _short(v, digits) for key, v in value.items()}
    if isinstance(value, list):
        return [_short(v, digits) for v in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{digits}g}")
    return value


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _count(found: Sequence[list[Curve]]) -> int:
    return sum(len(curve.runs) for mine in found for curve in mine)
