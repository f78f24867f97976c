"""The body of a report as HTML; every word that comes from a folder is escaped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from html import escape
from typing import Any

from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.views.report import words
from fedveca.views.series import AXES, WHICH, Curve, rises, table

SWITCH = {"rounds": "rounds", "steps": "local steps", "bytes": "bytes", "seconds": "seconds"}
DASHARRAY = {"-": "", "--": "7 4", "-.": "7 3 2 3", ":": "2 3"}
MAP = {
    "tau": (
        "Local steps τ of each client and round",
        "Brighter is more local steps; beside it the labels that the "
        "client's rows have, darker (in dark mode: brighter) for a larger share.",
    ),
    "A": ("A = η β² δ", "What decides τ: the client with the least A takes the most steps."),
    "beta": ("β", "How fast a client's gradient turns as it walks."),
    "delta": ("δ", "How far its gradients add up, against the common one."),
}
LINE = {
    "tau_k": ("τ_k, mean local steps", "Weighted by rows: the step that the server takes."),
    "premise": ("Premise of Theorem 1", "η τ_k L; the theorem asks for at least 1 (dotted)."),
    "L": ("L, smoothness", "The largest estimate so far."),
}


def body(found: Sequence[list[Curve]], drawn: Sequence[dict[str, Any]]) -> str:
    several = len(found) > 1
    links = (f'<a href="#s{i}">{escape(words.heading(mine))}</a>' for i, mine in enumerate(found))
    nav = f"<nav>{''.join(links)}</nav>" if several else ""
    parts = (_section(i, mine, seen, several) for i, (mine, seen) in enumerate(zip(found, drawn, strict=True)))
    return nav + "\n".join(parts)


def _section(at: int, found: list[Curve], drawn: dict[str, Any], several: bool) -> str:
    rows = table(found)
    names = [metric["name"] for metric in drawn["metrics"] if metric["name"].startswith("test_")]
    return "\n".join(
        [
            f'<section id="s{at}">',
            f"<h2>{escape(words.heading(found))}</h2>" if several else "",
            f'<p class="question">{escape(words.question(found))}</p>',
            f'<p class="answer">{escape(words.answer(found, rows, names))}</p>',
            _table(rows, names),
            _curves(at, found, drawn),
            _inside(at, drawn),
            _partition(at, drawn),
            _again(found),
            "</section>",
        ]
    )


def _table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Kept and last model, mean and standard deviation over seeds; the best of each column marked."""
    names = sorted(names, key=rises, reverse=True)
    columns = [(which, name) for which in WHICH for name in names]
    groups = "".join(f'<th scope="colgroup" colspan="{len(names)}">{which} model</th>' for which in WHICH if names)
    heads = "".join(f'<th scope="col">{escape(words.called(name))}</th>' for _, name in columns)
    lines = []
    for row in rows:
        cells = []
        for which, name in columns:
            value, good = row[which][name], words.marked(rows, row, which, name)
            inner = escape(words.shown(name, value["mean"], value["std"]))
            cells.append(f'<td class="best" title="best">{inner}</td>' if good else f"<td>{inner}</td>")
        told = ((row["stopped"], "stopped"), (row["unfinished"], "not ended"))
        remark = "".join(f" <small>({count} {word})</small>" for count, word in told if count)
        steps = "-" if row["steps"]["mean"] is None else f"{row['steps']['mean']:,.0f}"
        lines.append(
            f'<tr><th scope="row">{escape(row["label"])}{remark}</th>{"".join(cells)}<td>{steps}</td>'
            f"<td>{row['seeds']}</td></tr>"
        )
    note = "Kept: the model that the run hands out, by default that of the least training loss. Last: after all rounds."
    spread = " Mean ± one standard deviation over seeds. ★: the best mean; centralised training is no rival."
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Closing values"><table><thead><tr>'
        f'<td></td>{groups}<td colspan="2"></td></tr><tr><th scope="col">method</th>{heads}'
        '<th scope="col">local steps</th><th scope="col">seeds</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="note">{note}{spread if len(rows) > 1 else ""}</p>'
    )


def _curves(at: int, found: Sequence[Curve], drawn: dict[str, Any]) -> str:
    if not drawn["metrics"]:
        return "<p>No round has a test value yet, so there are no curves.</p>"
    radios = "".join(
        f'<label><input type="radio" name="axis{at}" value="{axis}"{" checked" if axis == "rounds" else ""}>'
        f"<span>{SWITCH[axis]}</span></label>"
        for axis in AXES
    )
    legend = "".join(
        '<button type="button" aria-pressed="true"><svg width="26" height="8" aria-hidden="true">'
        f'<line x1="0" x2="26" y1="4" y2="4" stroke-width="2.5" stroke="{c.colour}" data-colour="{c.colour}" '
        f'stroke-dasharray="{DASHARRAY[c.dash]}"/></svg>{escape(c.label)}</button>'
        for c in found
    )
    figures = "".join(
        _figure(f"s{at}-curve{i}", m["label"].capitalize(), _about(m["name"]), words.ends(found, m["name"]))
        for i, m in enumerate(drawn["metrics"])
    )
    return (
        f'<h3>Over the run</h3><div class="controls"><fieldset><legend>against</legend>{radios}</fieldset>'
        f'<div class="legend" role="group" aria-label="Curves to show"><b>show</b>{legend}</div></div>'
        f'<div class="grid">{figures}</div><p class="note">Line: mean over seeds; band: one standard deviation. Drag '
        "to zoom, double-click to see all; click a name to hide its curve, double-click it to see it alone.</p>"
    )


def _about(name: str) -> str:
    if name == "train_loss":
        return "F(w), on the clients' own rows, of the model that a round starts from."
    return "Of the model after each round, on all test rows."


def _inside(at: int, drawn: dict[str, Any]) -> str:
    """tau, A, beta, delta, L of runs that adapt their local steps."""
    if not drawn["runs"]:
        return ""
    first = drawn["runs"][0]
    choice = _choice("which-run", "shown:", [run["label"] for run in drawn["runs"]]) or escape(first["label"])
    left = drawn["adaptive"] - len(drawn["runs"])
    more = f' <span class="note">{left} more such runs are in the table and the curves.</span>' if left > 0 else ""
    total, here = first["maps"][0]["all"], len(first["maps"][0]["clients"])
    some = f" {here} of {total} clients are drawn, evenly spaced." if here < total else ""
    if first["partition"] is None:
        some += " The label mix is not drawn: this run folder has no partition.json that can be read."
    maps = []
    for i, seen in enumerate(first["maps"]):
        title, about = MAP[seen["name"]]
        maps.append(_figure(f"s{at}-inside-map{i}", title, about + ("" if i else some), _seen(seen), wide=i == 0))
    lines = (
        _figure(f"s{at}-inside-line{i}", *LINE[line["name"]], _course(line)) for i, line in enumerate(first["lines"])
    )
    return (
        "<h3>Inside the controller, round by round</h3><p>FedVeca tells every client how many local steps to take in "
        f'the next round.</p><div class="controls">{choice}{more}</div>{maps[0]}'
        f'<div class="grid small">{"".join(lines)}</div><div class="grid small">{"".join(maps[1:])}</div>'
    )


def _partition(at: int, drawn: dict[str, Any]) -> str:
    title = "<h3>Who has which rows</h3>"
    if not drawn["partitions"]:
        why = "These run folders have no partition.json that can be read, so the partition cannot be drawn."
        return f"{title}<p>{why}</p>"
    part = drawn["partitions"][0]
    choice = _choice("which-part", "shown: that of", [p["label"] for p in drawn["partitions"]])
    some = f" {len(part['clients'])} of {part['all']} clients are drawn." if len(part["clients"]) < part["all"] else ""
    about = f"Rows of each label (area of a disc) and of each client (bar).{some}"
    told = "; ".join(
        f"client {i} has {size} rows" + (f" of {sum(n > 0 for n in row)} labels" if len(row) > 1 else "")
        for i, size, row in list(zip(part["clients"], part["sizes"], part["labels"], strict=True))[:20]
    )
    figure = _figure(f"s{at}-part", "The partition", about, f"Partition: {told}.", wide=True)
    return f"{title}{choice}{figure}"


def _again(found: Sequence[Curve]) -> str:
    runs = [run for curve in found for run in curve.runs]
    shared, differing = words.settings(runs)
    lines = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in shared.items())
    many = (
        f"<tr><th>{escape(k)}</th><td>{escape(', '.join(map(str, v[:12])))}{' ...' if len(v) > 12 else ''}</td></tr>"
        for k, v in differing.items()
    )
    made = "".join(f"<pre>{escape(about)}</pre>" for about in _environments(runs))
    return (
        f"<h3>Run it again</h3><pre>{escape(chr(10).join(words.commands(found)))}</pre>"
        '<p class="note">Each run folder\'s experiment.toml is enough too: fedveca run FOLDER/experiment.toml. The '
        "same seed gives the same numbers.</p>"
        f'<details><summary>All settings</summary><div class="scroll"><table>{"".join(many)}{lines}</table></div>'
        "</details>" + (f"<details><summary>Made with</summary>{made}</details>" if made else "")
    )


def _environments(runs: Sequence[Run]) -> list[str]:
    """What made the runs, each once, a line per name."""
    found: dict[str, None] = {}
    for run in runs:
        with contextlib.suppress(OSError, ValueError):
            about = read_object(run.folder, "environment.json", 2**16) if run.folder else {}
            found["\n".join(f"{key}: {value}" for key, value in about.items())] = None
    return [about for about in found if about][:20]


def _figure(name: str, title: str, about: str, alternative: str, wide: bool = False) -> str:
    return (
        f"<figure{' class=wide' if wide else ''}><b>{escape(title)}</b>"
        f'<div class="plot" id="{name}" role="img" aria-label="{escape(alternative)}"></div>'
        f"<figcaption>{escape(about)}</figcaption></figure>"
    )


def _choice(name: str, label: str, labels: Sequence[str]) -> str:
    """A select where there is something to choose."""
    options = "".join(f'<option value="{i}">{escape(text)}</option>' for i, text in enumerate(labels))
    return f'<label class="choice">{label} <select class="{name}">{options}</select></label>' if len(labels) > 1 else ""


def _seen(seen: dict[str, Any]) -> str:
    """A heat map in words."""
    every = [[v for v in row if v is not None] for row in seen["z"]]
    each = (f"client {i} from {min(v):g} to {max(v):g}" for i, v in zip(seen["clients"], every, strict=True) if v)
    return f"{MAP[seen['name']][0]}, a heat map of clients and rounds: {'; '.join(list(each)[:20])}."


def _course(line: dict[str, Any]) -> str:
    """A line in words."""
    y = line["y"]
    told = f"from {min(y):g} to {max(y):g}, {y[-1]:g} at the end" if y else "never known"
    return f"{LINE[line['name']][0]} over the rounds: {told}."
