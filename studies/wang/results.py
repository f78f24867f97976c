"""What the study of 15 seconds shows: `python -m studies.wang.results docs/results/wang.json` prints its tables."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib.pyplot as plt
from scipy import stats

from fedveca.algorithms.registry import find_method
from fedveca.runs.statistics import Difference, paired_difference
from fedveca.views.figures.style import INK, QUIET, STYLE, darken, save_figure
from fedveca.views.series import find_look
from studies.rivals.results import correct_holm
from studies.wang.run import FIXED, PLACES, WangUnit, list_methods

LEVEL, STAR = 0.05, r"\*"  # in Markdown
Value = Literal["last_loss", "last_accuracy", "kept_loss", "kept_accuracy"]
VALUES: tuple[Value, ...] = ("last_loss", "last_accuracy", "kept_loss", "kept_accuracy")
CHOSEN = "fixed"  # the fixed tau with the lowest training loss on the choosing seeds
ADAPTIVE = ("adaptivetau", "adacomm", "equaltime", "fedveca", "fedveca_time")
OURS = ("fedveca", "fedveca_time")
NAMES = {"alike": "equal devices", "mixed": "unequal devices"}
Key = tuple[str, str, str]  # fleet, case, method


class TimedLead(NamedTuple):
    """A method of ours against a rival, over the same seeds."""

    fleet: str
    case: str
    ours: str
    rival: str
    lead: Difference  # above 0 where ours is better
    p: float  # of a paired t test, by Holm's rule over all comparisons


def index_units(units: list[WangUnit]) -> dict[Key, WangUnit]:
    """By fleet, case and method; the fixed tau that was chosen is a method more."""
    by = {(unit["fleet"], unit["case"], unit["method"]): unit for unit in units}
    for fleet, case in list_places(units):
        fixed = [unit for (f, c, m), unit in by.items() if (f, c) == (fleet, case) and m.startswith(FIXED)]
        by[fleet, case, CHOSEN] = min(fixed, key=lambda unit: unit["tried"][0][1])
    return by


def list_places(units: list[WangUnit]) -> list[tuple[str, str]]:
    """Fleets and cases that every method has run, in the order of the tables."""
    done = {place: {unit["method"] for unit in units if (unit["fleet"], unit["case"]) == place} for place in PLACES}
    return sorted(place for place, methods in done.items() if methods == {*list_methods()})


def list_values(unit: WangUnit, value: Value) -> list[float]:
    return [run[value] for _, run in sorted(unit["runs"].items())]


def compare_units(units: list[WangUnit], value: Value) -> list[TimedLead]:
    """FedVeca and its variant against every other method that chooses tau, and against the chosen fixed one."""
    by, found = index_units(units), []
    sign = -1 if value.endswith("loss") else 1
    for fleet, case in list_places(units):
        for ours in OURS:
            for rival in (CHOSEN, *ADAPTIVE):
                if rival != ours and not (rival in OURS and ours == OURS[0]):
                    mine, theirs = (list_values(by[fleet, case, name], value) for name in (ours, rival))
                    mine, theirs = [sign * v for v in mine], [sign * v for v in theirs]
                    p = float(stats.ttest_rel(mine, theirs).pvalue)
                    found.append(TimedLead(fleet, case, ours, rival, paired_difference(mine, theirs), p))
    adjusted = correct_holm([one.p for one in found])
    return [one._replace(p=p) for one, p in zip(found, adjusted, strict=True)]


def name_place(fleet: str, case: str) -> str:
    return f"{NAMES[fleet]}, {case.replace('case', 'Case ')}"


def name_timed(method: str) -> str:
    """As tables call it."""
    if method == CHOSEN:
        return "fixed τ, chosen"
    if method.startswith(FIXED):
        return f"τ = {method.removeprefix(FIXED)}"
    known = find_method(method)
    return known.title if known else method


def format_value(value: Value, number: float) -> str:
    return f"{number:.4f}" if value.endswith("loss") else f"{number:.2f}"


def make_table(units: list[WangUnit], value: Value) -> str:
    """Means over the seeds: a line per method, a column per fleet and case; the best one is bold."""
    by, places = index_units(units), list_places(units)
    clear = {
        (one.fleet, one.case, one.rival) for one in compare_units(units, value) if one.p < LEVEL and one.ours == OURS[0]
    }
    heads = [name_place(fleet, case) for fleet, case in places]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    pick = min if value.endswith("loss") else max
    fixed = [m for m in list_methods() if m.startswith(FIXED)]
    means = {key: statistics.fmean(list_values(unit, value)) for key, unit in by.items()}
    best = {place: pick(means[(*place, m)] for m in list_methods()) for place in places}
    for method in (*fixed, CHOSEN, *ADAPTIVE):
        cells = []
        for fleet, case in places:
            text = format_value(value, means[fleet, case, method])
            text = f"**{text}**" if means[fleet, case, method] == best[fleet, case] else text
            cells.append(text + (STAR if (fleet, case, method) in clear else ""))
        lines.append(f"| {name_timed(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_leads(units: list[WangUnit], value: Value, ours: str) -> str:
    """Differences with their intervals: a line per fleet and case, a column per rival."""
    leads = [one for one in compare_units(units, value) if one.ours == ours]
    rivals = list(dict.fromkeys(one.rival for one in leads))
    lines = [f"| | {' | '.join(name_timed(rival) for rival in rivals)} |", "|---" * (len(rivals) + 1) + "|"]
    scale, digits = (1000, 1) if value.endswith("loss") else (1, 2)
    for fleet, case in list_places(units):
        cells = []
        for rival in rivals:
            (one,) = (one for one in leads if (one.fleet, one.case, one.rival) == (fleet, case, rival))
            low, high = one.lead.interval or (one.lead.mean, one.lead.mean)
            mean, low, high = (f"{scale * v:+.{digits}f}".replace("-", "−") for v in (one.lead.mean, low, high))
            cells.append(f"{mean} [{low}, {high}]{STAR if one.p < LEVEL else ''}")
        lines.append(f"| {name_place(fleet, case)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_details(units: list[WangUnit]) -> str:
    """What was chosen, and how many rounds and local steps the 15 seconds held: chosen; rounds; mean tau."""
    by, places = index_units(units), list_places(units)
    heads = [name_place(fleet, case) for fleet, case in places]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in (CHOSEN, *ADAPTIVE):
        cells = []
        for fleet, case in places:
            unit = by[fleet, case, method]
            rounds, tau = (statistics.fmean(run[name] for run in unit["runs"].values()) for name in ("rounds", "tau"))
            chosen = ", ".join(
                f"{name.replace('tau_0', 'τ₀').replace('alpha', 'α')} {v}" for name, v in unit["choice"].items()
            )
            cells.append("; ".join(filter(None, [chosen, f"{rounds:.0f} rounds", f"τ {tau:.1f}"])))
        lines.append(f"| {name_timed(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(units: list[WangUnit], path: Path) -> None:
    """The loss of the last model at 15 s against tau: the curve of the fixed ones, and a point per adaptive method."""
    by, places = index_units(units), list_places(units)
    with plt.rc_context(STYLE):
        columns = -(-len(places) // 2)
        figure, axes = plt.subplots(2, columns, figsize=(11.5, 6.8), layout="constrained", sharex=True)
        for axis in axes.flat[len(places) :]:
            axis.set_axis_off()
        for axis, (fleet, case) in zip(axes.flat, places, strict=False):
            fixed = [by[fleet, case, method] for method in list_methods() if method.startswith(FIXED)]
            x = [float(unit["method"].removeprefix(FIXED)) for unit in fixed]
            draw_points(axis, x, fixed, QUIET, "fixed τ", "o", "-")
            for marker, method in zip("Ps^DX", ADAPTIVE, strict=True):
                unit = by[fleet, case, method]
                tau = statistics.fmean(run["tau"] for run in unit["runs"].values())
                title, colour, _ = find_look(method)
                draw_points(axis, [tau], [unit], colour, title, marker, "none")
            axis.set(title=name_place(fleet, case), xscale="log", xticks=[1, 2, 5, 10, 20, 50, 100])
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        for axis in axes[-1]:
            axis.set_xlabel("local steps τ, mean over clients and rounds")
        for axis in axes[:, 0]:
            axis.set_ylabel("test loss")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        caption = "Test loss of the last model after 15 simulated seconds: SVM on MNIST, 5 clients, 10 seeds"
        figure.suptitle(caption)
        about = "A curve of fixed numbers of local steps, a point for each method that chooses them; 95 % intervals."
        save_figure(figure, path, caption, about)


def draw_points(
    axis: plt.Axes, x: list[float], units: list[WangUnit], colour: str, label: str, marker: str, line: str
) -> None:
    """Means with 95 % intervals over the seeds."""
    values = [list_values(unit, "last_loss") for unit in units]
    spans = [paired_difference(v, [0.0] * len(v)) for v in values]
    half = [span.interval[1] - span.mean if span.interval else 0.0 for span in spans]
    means, size = [span.mean for span in spans], 4 if line != "none" else 8
    axis.errorbar(
        x, means, half, color=colour, ecolor=darken(colour), marker=marker, markersize=size, linestyle=line,
        label=label,
        markeredgecolor="white" if line == "none" else INK, markeredgewidth=0.6, elinewidth=1.2, linewidth=1.4,
        zorder=2 if line != "none" else 3,
    )  # fmt: skip


def main() -> None:
    units: list[WangUnit] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    for value in VALUES:
        print(f"\n{value}\n\n{make_table(units, value)}\n")
        for ours in OURS:
            print(f"{name_timed(ours)}\n\n{make_leads(units, value, ours)}\n")
    print(make_details(units))


if __name__ == "__main__":
    main()
