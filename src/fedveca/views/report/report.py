"""A report: one HTML file about one run or many that works offline."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from fedveca.algorithms.registry import DASHES, is_pooled
from fedveca.errors import UserError
from fedveca.runs.experiment import FIELDS
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.runs.schema import SCHEMA, Partition, describe_quantity
from fedveca.version import __version__
from fedveca.views.paths import require_file, write_file
from fedveca.views.report import text
from fedveca.views.report.commands import is_from_python, make_commands
from fedveca.views.report.plotly_bundle import plotly_script
from fedveca.views.report.section import RunData, SectionData, make_sections
from fedveca.views.series import WHICH, Curve, find_best, find_direction, group_curves, group_sections, tabulate

HERE = Path(__file__).parent
AXIS_LABELS = {"rounds": "rounds", "steps": "local steps", "bytes": "bytes", "seconds": "seconds"}
SVG_DASHES = {name: " ".join(f"{2.5 * part:g}" for part in parts) for name, parts in DASHES.items()}
ABOUT = {
    "tau": "Brighter is more local steps; next to it are the labels of the client's rows, darker (in dark mode: "
    "brighter) for a larger share.",
    "A": "What decides τ: the client with the lowest A takes the most steps.",
    "beta": "How fast a client's gradient changes along its local steps.",
    "delta": "How far a client's accumulated gradient departs from the global one.",
    "tau_k": "Weighted by rows: the step that the server takes.",
    "premise": "η τ_k L; the theorem asks for at least 1 (dotted).",
    "L": "The largest estimate so far.",
    "train_loss": "F(w), on the clients' own rows, of the model that a round starts from.",
}
ABOUT_TEST = "Of the model after each round, on all test rows."


class ReportResult(TypedDict):
    """Where a report is, and how large."""

    report: str
    runs: int
    sections: int
    bytes: int


class Figure(NamedTuple):
    """A figure's words; its numbers are in the section's data."""

    title: str
    about: str
    alternative: str


def write_report(runs: Sequence[Run], path: Path) -> ReportResult:
    """Writes a report whole or not at all.

    Args:
        runs: The runs to compare; those of different tasks get sections of their own.
        path: The HTML file; its folder is made where it is missing.

    Returns:
        The file's name and size, and how many runs and sections it has.

    Raises:
        UserError: Where the runs are not runs, or the file cannot be written.
    """
    path, runs = Path(path), check_runs(runs)
    require_file(path)
    sections = [group_curves(mine) for mine in group_sections(runs)]
    content = render_page(sections).encode("utf-8", "backslashreplace")  # JSON may hold half a surrogate pair
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    write_file(path, content)
    return {"report": str(path), "runs": len(runs), "sections": len(sections), "bytes": len(content)}


def render_page(sections: Sequence[Sequence[Curve]]) -> str:
    """The whole file as text; the templates escape every word that comes from a folder."""
    files = HERE / "page"
    scripts = [plotly_script(), *((files / name).read_text("utf-8") for name in ("charts.js", "report.js"))]
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    data = make_sections(sections)
    count = sum(len(curve.runs) for curves in sections for curve in curves)
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return templates.get_template("report.html").render(
        title=text.make_heading(sections[0]) if len(sections) == 1 else f"{len(sections)} tasks, {count} runs",
        version=__version__,
        style=(files / "report.css").read_text("utf-8"),
        hashes=" ".join(f"'sha256-{hash}'" for hash in hashes),
        headings=[text.make_heading(curves) for curves in sections],
        sections=[
            _render_section(templates.get_template("section.html"), at, curves, mine, len(sections) > 1)
            for at, (curves, mine) in enumerate(zip(sections, data, strict=True))
        ],
        runs=count,
        data=json.dumps({"sections": data}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        scripts=scripts,
    )


def _render_section(template: Template, at: int, curves: Sequence[Curve], data: SectionData, several: bool) -> str:
    runs, rows = [run for curve in curves for run in curve.runs], tabulate(curves)
    names = [metric["name"] for metric in data["metrics"] if metric["name"].startswith("test_")]
    better = {name: find_direction(runs, name) for name in names}
    columns = sorted(names, key=lambda name: better[name] != "higher")
    first = data["runs"][0] if data["runs"] else None
    return template.render(
        at=at,
        heading=text.make_heading(curves) if several else "",
        question=text.ask_question(curves),
        answer=text.give_answer(curves, rows, names),
        models=WHICH,
        names=[text.name_quantity(name) for name in columns],
        columns=[(which, name, find_best(rows, which, name, better[name])) for which in WHICH for name in columns],
        rows=rows,
        format_result=text.format_result,
        is_pooled=is_pooled,
        axes=AXIS_LABELS,
        dashes=SVG_DASHES,
        legend=curves,
        curves=[_make_curves_figure(metric["name"], data) for metric in data["metrics"]],
        maps=_make_map_figures(first) if first else [],
        lines=_make_line_figures(first) if first else [],
        partition=_make_partition_figure(data["partitions"][0]) if data["partitions"] else None,
        data=data,
        commands=make_commands(curves),
        custom=any(map(is_from_python, runs)),
        settings=_list_settings(runs),
        environments=_read_environments(runs),
    )


def _make_curves_figure(name: str, data: SectionData) -> Figure:
    ends = text.describe_curves(name, [(curve["label"], curve["metrics"][name]) for curve in data["curves"]])
    return Figure(describe_quantity(name).label, ABOUT.get(name, ABOUT_TEST), ends)


def _make_map_figures(run: RunData) -> list[Figure]:
    first = run["maps"][0]
    some = ""
    if len(first["clients"]) < first["all"]:
        some = f" {len(first['clients'])} of {first['all']} clients are drawn, evenly spaced."
    if run["partition"] is None:
        some += " The label mix is not drawn: this run folder has no partition.json that can be read."
    figures = []
    for heat in run["maps"]:
        name, title = heat["name"], SCHEMA[heat["name"]].label
        title = "Local steps τ of each client and round" if name == "tau" else title
        about = ABOUT[name] + (some if name == "tau" else "")
        figures.append(Figure(title, about, text.describe_heat_map(title, heat)))
    return figures


def _make_line_figures(run: RunData) -> list[Figure]:
    titles = {line["name"]: SCHEMA[line["name"]].label for line in run["lines"]} | {"premise": "Premise of Theorem 1"}
    return [
        Figure(titles[line["name"]], ABOUT[line["name"]], text.describe_line(titles[line["name"]], line["y"]))
        for line in run["lines"]
    ]


def _make_partition_figure(part: Partition) -> Figure:
    some = f" {len(part['clients'])} of {part['all']} clients are drawn." if len(part["clients"]) < part["all"] else ""
    clients = (
        f"client {i} has {size} rows" + (f" of {sum(n > 0 for n in row)} labels" if len(row) > 1 else "")
        for i, size, row in list(zip(part["clients"], part["sizes"], part["labels"], strict=True))[:20]
    )
    about = f"Rows of each label (area of a disc) and of each client (bar).{some}"
    return Figure("The partition", about, f"Partition: {'; '.join(clients)}.")


def _list_settings(runs: Sequence[Run]) -> list[tuple[str, list[object]]]:
    each = [asdict(run.experiment) for run in runs]
    values: dict[str, list[object]] = {key: list(dict.fromkeys(settings[key] for settings in each)) for key in FIELDS}
    return sorted(values.items(), key=lambda item: len(item[1]) == 1)


def _read_environments(runs: Sequence[Run]) -> list[str]:
    """What made the runs, each once, a line per name."""
    found: dict[str, None] = {}
    for run in runs:
        with contextlib.suppress(OSError, ValueError):
            about = read_object(run.folder, "environment.json", 2**16) if run.folder else {}
            found["\n".join(f"{key}: {value}" for key, value in about.items())] = None
    return [about for about in found if about][:20]
