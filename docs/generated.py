"""Pages of the site that are made from the source: settings, command line, and the tutorial with its outputs.

`docs/hooks.py` calls it when the site is built, so that no page has to be kept in step by hand.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import html
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fedveca
from fedveca import cli
from fedveca.algorithms.registry import methods
from fedveca.runs.experiment import preset
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS, range_of

DOCS = Path(__file__).parent
make_parser: Callable[[], argparse.ArgumentParser] = vars(cli).get("make_parser") or vars(cli)["_parser"]
GROUPS = {  # where a setting does not state its group itself
    "What is learned": "method data model loss metric pixels precision init hidden data_dir",
    "Clients and their data": "clients partition participation concentration shards heterogeneity",
    "Training": "rounds batch lr tau_0 tau_all probe seed keep",
    "Hyperparameters of methods": "alpha tau_max mu smooth probe_steps",
    "Testing, checkpoints and trackers": "test_every checkpoint_every track",
    "Faults and robust aggregation": "faults aggregate aggregate_clip aggregate_trim",
    "Differential privacy": "dp_noise dp_clip dp_bound dp_delta dp_seed",
    "Where clients run": "engine workers worker_gpus ray_address memory_mb round_timeout min_clients wire",
}


def _cell(text: object) -> str:
    """Text for a cell of a Markdown table."""
    return html.escape(str(text), quote=False).replace("|", "\\|").replace("\n", " ").replace("*", "\\*")


def _code(text: object) -> str:
    shown = str(text) if str(text) else '""'
    return f"`{shown}`".replace("|", "\\|")


def group_settings() -> dict[str, list[str]]:
    """The names of all settings, by group, each once."""
    own = {name: group for group, names in GROUPS.items() for name in names.split()}
    found: dict[str, list[str]] = {}
    for name, field in FIELDS.items():
        found.setdefault(field.metadata.get("group") or own.get(name, "Other settings"), []).append(name)
    order = [*GROUPS, *found]
    return {group: found[group] for group in sorted(found, key=order.index)}


def make_settings() -> str:
    """Every setting with its default, what is allowed and its meaning; then what settings can name."""
    lines = []
    for group, names in group_settings().items():
        lines += [
            f"## {group[:1].upper()}{group[1:]}",
            "",
            "| setting | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        for name in names:
            field = FIELDS[name]
            allowed = _cell(range_of(field).replace(" | ", ", "))
            text = _cell(field.metadata["text"])
            lines.append(f"| `{name}` {{ #{name} }} | {_code(field.default)} | {allowed} | {text} |")
        lines.append("")
    lines += ["## Presets", "", "What each preset sets; every other setting has its default.", ""]
    for name in presets():
        settings = " ".join(f"{key}={value}" for key, value in preset(name).items())
        lines += [f"**`{name}`**", "", "```text", *_wrap(settings), "```", ""]
    lines += ["## Methods", "", "| `method` | page |", "|---|---|"]
    for name, entry in methods().items():
        page = next((page for page in (f"methods/{name}.md", f"{name}.md") if (DOCS / page).exists()), "")
        lines.append(f"| `{name}` | {f'[{entry.title}]({page})' if page else entry.title} |")
    return "\n".join([*lines, ""])


def _wrap(text: str, width: int = 80) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def list_commands(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """Every command and command of a command, by its full name."""
    parser = parser or make_parser()
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                if sub.prog not in {other.prog for other in found.values()}:  # an alias is not a second command
                    found[f"{parser.prog} {name}"] = sub
                    found |= list_commands(sub)
    return found


def make_commands() -> str:
    """Every command: what it does, how it is called, and its options."""
    lines = []
    for name, parser in list_commands().items():
        formatter = argparse.HelpFormatter(parser.prog, width=80)
        formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
        lines += [f"{'#' * min(len(name.split()), 3)} {name}", "", _cell(parser.description or ""), ""]
        lines += ["```text", formatter.format_help().rstrip(), "```", ""]
        rows = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == "==SUPPRESS==":
                continue
            shape = str(action.metavar or "")
            if action.choices is not None and not shape:
                shape = "|".join(map(str, action.choices))
            if action.option_strings:
                called = ", ".join(action.option_strings) + (f" {shape}" if shape and action.nargs != 0 else "")
            else:
                called = shape or action.dest
            text = (action.help or "") % {**vars(action), "prog": parser.prog}
            rows.append(f"| {_code(called)} | {_cell(text)} |")
        if rows:
            lines += ["| argument | meaning |", "|---|---|", *rows, ""]
        if parser.epilog:
            lines += ["```text", *parser.epilog.splitlines(), "```", ""]
    return "\n".join(lines)


def make_names() -> str:
    """The public names that docs/reference.md does not place under a heading of their own."""
    page = (DOCS / "reference.md").read_text("utf-8")
    rest = [n for n in fedveca.__all__ if n not in ("__version__", "testing") and f"::: fedveca.{n}\n" not in page]
    return "\n".join(["## More", "", *(f"::: fedveca.{name}" for name in rest)]) if rest else ""


class Cell(NamedTuple):
    """A cell of a notebook: Markdown, or code."""

    kind: str
    text: str


class Output(NamedTuple):
    """What a cell of code shows: text, or HTML."""

    kind: str
    text: str


def read_notebook(path: Path) -> list[Cell]:
    """The cells of a notebook (nbformat 4)."""
    book = json.loads(path.read_text("utf-8"))
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]


def run_cells(cells: list[Cell]) -> list[list[Output]]:
    """Runs the cells of code one after another, as Jupyter would, and returns what each of them shows."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    shown: list[list[Output]] = []
    for cell in cells:
        outputs: list[Output] = []
        if cell.kind == "code":
            tree = ast.parse(cell.text)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
                exec(compile(tree, "tutorial.ipynb", "exec"), names)
                value = None
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "tutorial.ipynb", "eval"), names)
            if out.getvalue():
                outputs.append(Output("text", out.getvalue()))
            if value is not None:
                outputs.append(_display(value))
        shown.append(outputs)
    return shown


def _display(value: object) -> Output:
    """As a notebook displays the value of a cell: a figure, HTML where the object has some, or its repr."""
    if hasattr(value, "savefig"):
        with io.BytesIO() as file:
            value.savefig(file, format="svg", bbox_inches="tight")
            picture = base64.b64encode(file.getvalue()).decode()
        return Output("html", f'<img alt="the figure that the cell draws" src="data:image/svg+xml;base64,{picture}">')
    show = getattr(value, "_repr_html_", None)
    drawn = show() if show else None
    return Output("html", drawn) if drawn else Output("text", repr(value))


def make_tutorial(path: Path) -> str:
    """The notebook as a page, with what its cells show."""
    cells = read_notebook(path)
    lines: list[str] = []
    for cell, outputs in zip(cells, run_cells(cells), strict=True):
        if cell.kind == "markdown":
            lines += [cell.text, ""]
            continue
        lines += ["```python", cell.text, "```", ""]
        for output in outputs:
            if output.kind == "html":
                flat = "".join(line.strip() + "\n" for line in output.text.splitlines() if line.strip())
                lines += [f'<div class="output">\n{flat}</div>', ""]
            else:
                lines += ["```text", output.text.rstrip(), "```", ""]
    return "\n".join(lines)
