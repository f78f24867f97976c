"""A report: one HTML file about one run or many that works offline."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from fedveca.algorithms.registry import DASHES
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.folder_types import Partition
from fedveca.runs.output_file import require_file, write_file
from fedveca.runs.overrides import check_runs
from fedveca.runs.schema import describe_quantity
from fedveca.runs.setting_checks import FIELDS
from fedveca.runs.sweep_file import SweepContent
from fedveca.version import __version__
from fedveca.views.comparison import Comparison, compare_curves
from fedveca.views.comparison_text import explain_costs, explain_table, give_answer
from fedveca.views.report import text
from fedveca.views.report.clients import (
    STAGE_TITLES,
    make_client_tables,
    make_clients,
    make_confusions,
)
from fedveca.views.report.commands import is_from_python, make_commands
from fedveca.views.report.plotly_bundle import pack_script, plotly_script
from fedveca.views.report.section import RunData, SectionData, make_sections, name_line, name_map
from fedveca.views.report.sweep import make_sweep_data, make_sweep_section
from fedveca.views.report.table import GapData, make_cost_table, make_csv, make_gaps, make_result_table
from fedveca.views.run_text import describe_privacies
from fedveca.views.series import AXES, Curve, group_curves, group_sections
from fedveca.views.sweep import find_sweeps

HERE = Path(__file__).parent
AXIS_LABELS = AXES | {"rounds": "rounds", "bytes": "bytes"}
SVG_DASHES = {name: " ".join(f"{2.5 * part:g}" for part in parts) for name, parts in DASHES.items()}
ABOUT = {
    "tau": "Brighter is more local steps; next to it are the labels of the client's rows, darker (in dark mode: "
    "brighter) for a larger share.",
    "A": "What decides τ: the client with the lowest A takes the most steps.",
    "beta": "How fast a client's gradient changes along its local steps; the noise of mini-batches is part of it.",
    "delta": "How far a client's accumulated gradient departs from the global one.",
    "tau_k": "Weighted by rows: the step that the server takes.",
    "premise": "η τₖ L; the theorem asks for at least 1 (dotted).",
    "condition_alpha": "α min A / 2L; the theorem asks for less than 1 (dotted).",
    "condition_step": "η/4 Σ p (τ (2L + A) − A) − 1; F falls by the theorem where it is below 0 (dotted).",
    "condition_drift": "‖dₖ‖ / ‖∇F(wₖ)‖, the length of the server's direction; the paper assumes at most 1 (dotted).",
    "L": "The largest estimate so far.",
    "train_loss": "F(w) on the clients' rows. A round records the loss of the model that it starts from, so this curve "
    "begins before the first round and ends one round before the others.",
}
ABOUT_TEST = "Of the model after each round, on all test rows."
ABOUT_STARTS = {
    "val_": "Of the model after each round, on the rows that clients hold back for validation.",
    "clients_": "Of the model after each round: the mean of the tenth of the clients that it serves worst.",
}
ABOUT_BAND = (
    "Line: mean over the clients. Dark band: the middle half of the clients. Light band: from the mean of the worst "
    "tenth to that of the best."
)
ABOUT_DOTS = "One point per client. Dashed: the mean of the clients; dotted: the mean of the worst tenth."


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
        runs: The runs to compare; those of different tasks get sections of their own. Of a sweep, the runs that chose
            the settings are not compared with those that have them: a section shows what they found.
        path: The HTML file, in a folder that exists.

    Returns:
        The file's name and size, and how many runs and sections it has.

    Raises:
        UserError: Where the runs are not runs, or the file cannot be written.
    """
    path, runs = Path(path), check_runs(runs)
    require_file(path)
    runs, sweeps = find_sweeps(runs)
    sections = [group_curves(mine) for mine in group_sections(runs)]
    content = render_page(sections, sweeps).encode("utf-8", "backslashreplace")  # JSON may hold half a surrogate pair
    write_file(path, content)
    return {"report": str(path), "runs": len(runs), "sections": len(sections), "bytes": len(content)}


def render_page(sections: Sequence[Sequence[Curve]], sweeps: Sequence[tuple[Path, SweepContent]] = ()) -> str:
    """The whole file as text; the templates escape every word that comes from a folder."""
    files = HERE / "page"
    scripts = [(files / name).read_text("utf-8") for name in ("charts.js", "clients.js", "sweep.js", "report.js")]
    hashes = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in (plotly_script(), *scripts)
    )
    data, comparisons = make_sections(sections), [compare_curves(curves) for curves in sections]
    for mine, comparison in zip(data, comparisons, strict=True):
        mine["csv"], mine["gaps"] = make_csv(comparison), make_gaps(comparison)
        mine["clients"], mine["confusions"] = make_clients(comparison.curves), make_confusions(comparison.curves)
    numbers = {"sections": data, "sweeps": [make_sweep_data(content) for _, content in sweeps]}
    count = sum(len(c.runs) + c.identical + c.conflicting for curves in sections for c in curves)
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
        date=_find_date(),
        contents=[
            (f"s{at}", text.make_heading(curves), _list_parts(at, mine))
            for at, (curves, mine) in enumerate(zip(sections, data, strict=True))
        ],
        sections=[
            _render_section(templates.get_template("section.html"), at, comparison, mine, len(sections) > 1)
            for at, (comparison, mine) in enumerate(zip(comparisons, data, strict=True))
        ],
        sweeps=[
            _render_sweep(templates.get_template("sweep.html"), at, content, home.name if len(sweeps) > 1 else "")
            for at, (home, content) in enumerate(sweeps)
        ],
        runs=count,
        data=json.dumps(numbers, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        plotly=pack_script(),
        scripts=scripts,
    )


def _render_section(template: Template, at: int, comparison: Comparison, data: SectionData, several: bool) -> str:
    curves = comparison.curves
    runs = [run for curve in curves for run in curve.runs]
    first = data["runs"][0] if data["runs"] else None
    return template.render(
        at=at,
        heading=text.make_heading(curves) if several else "",
        question=text.ask_question(curves),
        answer=give_answer(comparison),
        unequal=bool(comparison.budgets),
        privacy=describe_privacies(curves),
        warnings=text.list_warnings(curves),
        results=make_result_table(comparison),
        notes=explain_table(comparison),
        costs=make_cost_table(comparison),
        cost_notes=explain_costs(comparison),
        gaps=_make_gap_figure(data["gaps"]),
        several_seeds=any(len(curve.runs) > 1 for curve in curves),
        axes={axis: AXIS_LABELS.get(axis, label) for axis, label in data["axes"].items()},
        dashes=SVG_DASHES,
        legend=curves,
        curves=[_make_curves_figure(metric["name"], data) for metric in data["metrics"]],
        client_tables=make_client_tables(comparison),
        bands=_make_band_figures(data),
        dots=_make_dot_figures(data),
        confusion=_make_confusion_figure(data),
        maps=_make_map_figures(first) if first else [],
        lines=_make_line_figures(first) if first else [],
        partition=_make_partition_figure(data["partitions"][0]) if data["partitions"] else None,
        data=data,
        commands=make_commands(curves),
        custom=any(map(is_from_python, runs)),
        settings=_list_settings(runs),
        environments=_read_environments(runs),
    )


class RenderedSweep(NamedTuple):
    """The section on a sweep."""

    heading: str
    html: str


def _render_sweep(template: Template, at: int, content: SweepContent, name: str) -> RenderedSweep:
    heading = f"How the settings were chosen{f': {name}' if name else ''}"
    return RenderedSweep(heading, template.render(at=at, heading=heading, section=make_sweep_section(content)))


def _make_curves_figure(name: str, data: SectionData) -> Figure:
    ends = text.describe_curves(name, [(curve["label"], curve["metrics"][name]) for curve in data["curves"]])
    usual = next((about for start, about in ABOUT_STARTS.items() if name.startswith(start)), ABOUT_TEST)
    return Figure(describe_quantity(name).label, ABOUT.get(name, usual), ends)


def _make_band_figures(data: SectionData) -> list[tuple[str, Figure]]:
    """By stage, the distribution over the clients of the first method."""
    clients = data["clients"]
    if clients is None:
        return []
    alternatives, name = clients["curves"][0]["alternatives"], clients["metrics"][0]["name"]
    return [(stage, Figure(STAGE_TITLES[stage], ABOUT_BAND, alternatives[stage][name])) for stage in clients["stages"]]


def _make_dot_figures(data: SectionData) -> list[tuple[str, Figure]]:
    """By stage, each client of the first model against its rows."""
    clients = data["clients"]
    if clients is None or not clients["models"]:
        return []
    model, name = clients["models"][0], clients["metrics"][0]["name"]
    return [
        (stage, Figure(STAGE_TITLES[stage], ABOUT_DOTS, model["alternatives"][stage][name]))
        for stage in clients["stages"]
    ]


def _make_confusion_figure(data: SectionData) -> Figure | None:
    if not data["confusions"]:
        return None
    about = "Of the test rows of each true label, the share that the model gives each label; rows add up to 100 %."
    return Figure("True and predicted labels", about, data["confusions"][0]["alternative"])


def _list_parts(at: int, data: SectionData) -> list[tuple[str, str]]:
    """The parts of a section: anchor and title."""
    parts = [("results", "Results"), ("costs", "Cost until a target")]
    parts += [("curves", "Over the run")] if data["metrics"] else []
    parts += [("clients", "Clients")] if data["clients"] else []
    parts += [("confusion", "Confusion")] if data["confusions"] else []
    parts += [("inside", "Inside the controller")] if data["runs"] else []
    parts += [("rows", "Who has which rows"), ("again", "Run it again")]
    return [(f"s{at}-{name}", title) for name, title in parts]


def _find_date() -> str:
    """Today in UTC, or the day that SOURCE_DATE_EPOCH states, as reproducible builds do."""
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(stated), UTC) if stated.isascii() and stated.isdigit() else datetime.now(UTC)
    return f"{now:%Y-%m-%d}"


def _make_gap_figure(gaps: GapData | None) -> Figure | None:
    if gaps is None:
        return None
    each = (f"{name} {text_}" for name, text_ in zip(gaps["labels"], gaps["texts"], strict=True))
    about = (
        f"Each rival minus {gaps['best']}, seed by seed: mean and 95 % interval. An interval that includes 0 is chance."
    )
    return Figure(
        f"{gaps['title']}: difference to the best", about, f"Differences to {gaps['best']}: {'; '.join(each)}."
    )


def _make_map_figures(run: RunData) -> list[Figure]:
    first = run["maps"][0]
    some = ""
    if len(first["clients"]) < first["all"]:
        some = f" {len(first['clients'])} of {first['all']} clients are drawn, evenly spaced."
    if run["partition"] is None:
        some += " The label mix is not drawn: this run folder has no partition.json that can be read."
    figures = []
    for heat in run["maps"]:
        name = heat["name"]
        about = ABOUT[name] + (some if name == "tau" else "")
        figures.append(Figure(name_map(name), about, heat["alternative"]))
    return figures


def _make_line_figures(run: RunData) -> list[Figure]:
    return [Figure(name_line(line["name"]), ABOUT[line["name"]], line["alternative"]) for line in run["lines"]]


def _make_partition_figure(part: Partition) -> Figure:
    some = f" {len(part['clients'])} of {part['all']} clients are drawn." if len(part["clients"]) < part["all"] else ""
    clients = (
        f"client {i} has {size} rows" + (f" of {sum(n > 0 for n in row)} labels" if len(row) > 1 else "")
        for i, size, row in list(zip(part["clients"], part["sizes"], part["labels"], strict=True))[:20]
    )
    held = any(part.get("val", [])) or any(part.get("test", []))
    lighter = " Discs are training rows; the lighter ends of a bar are rows held back for validation and tests."
    about = f"Rows of each label (area of a disc) and of each client (bar).{lighter if held else ''}{some}"
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
