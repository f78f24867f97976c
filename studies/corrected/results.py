"""What the study of FedVeca corrected shows: docs/results/corrected.json, its table and two figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, NotRequired, TypedDict

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fedveca.runs.folder import Run
from fedveca.runs.schema import get_number
from fedveca.runs.statistics import mean_and_spread, paired_difference
from fedveca.views.figures.style import CATEGORIES, INK, STYLE, darken, draw_band, label_lines, save_figure
from fedveca.views.series import find_look
from studies.corrected.variants import ABLATIONS

TASKS = {"svm-mnist": "SVM, MNIST", "cnn-mnist": "CNN, MNIST", "cnn-cifar10": "CNN, CIFAR-10"}
VARIANTS = {  # of SCAFFOLD: title, colour and dash
    "scaffold+": ("SCAFFOLD, more steps", CATEGORIES[0], "-"),
    "scaffold probed": ("SCAFFOLD, probe's steps", CATEGORIES[4], "--"),
}
FIRST = ("scaffold", "corrected", "fedveca", "fedavg")  # the methods of README's first picture
METHODS = ("corrected", "fedveca", "scaffold", *VARIANTS, "fedavg", "fedprox", "fednova")
LABELS = {  # by what follows the task in a study's name
    "case1": "Case 1",
    "case2": "Case 2",
    "case3": "Case 3",
    "dirichlet0.1": "Dirichlet 0.1",
    "dirichlet0.5": "Dirichlet 0.5",
    "alpha0.98": "alpha 0.98",
    "alpha0.9": "alpha 0.9",
    "clients50": "50 clients",
    "clients50-ten": "50 clients, 10 per round",
}
TESTED = 5  # rounds between two tests in files that do not say which rounds were tested
LOWEST = {"svm-mnist": 80, "cnn-mnist": 82, "cnn-cifar10": 22}  # accuracy that the curves begin at


class Group(NamedTuple):
    """Runs that are compared with each other: by method and seed."""

    study: str
    task: str
    label: str
    runs: Mapping[str, Mapping[int, Run]]


class Values(TypedDict):
    mean: float | None
    std: float
    values: list[float | None]


class Lead(TypedDict):
    """Points of accuracy, and the ends of the 95 % interval where there is more than one seed."""

    mean: float
    low: NotRequired[float]
    high: NotRequired[float]


class Row(TypedDict):
    """One method of one setting, over the seeds that all of the setting's methods have."""

    study: str
    task: str
    label: str
    method: str
    seeds: list[int]
    kept_test_accuracy: Values
    kept_test_loss: Values
    last_test_accuracy: Values
    last_test_loss: Values
    tau_all: float | None
    corrected_minus_this: NotRequired[Lead]
    curve: NotRequired[list[float]]  # the accuracy after every tested round, mean over seeds
    curve_std: NotRequired[list[float]]
    tested: NotRequired[list[int]]  # the rounds of the curve


def look_of(method: str) -> tuple[str, str, str]:
    """A method's title, colour and dash."""
    return VARIANTS.get(method) or find_look(method)


def load_rows(out: Path) -> list[Row]:
    """The rows of all finished runs of the studies' folder."""
    return [row for group in _load_groups(out) for row in tabulate(group)]


def _load_groups(out: Path) -> Iterator[Group]:
    for study in ("main", "alpha", "partition", "clients"):
        for folder in sorted((out / study).glob("*/")):
            task = next(name for name in TASKS if folder.name.startswith(name))
            runs = _load_runs(folder)
            found = {m: {r.experiment.seed: r for r in runs if r.experiment.method == m} for m in METHODS}
            if study == "main":
                for variant in VARIANTS:
                    found[variant] = {r.experiment.seed: r for r in _load_runs(out / variant / folder.name)}
            label = LABELS[folder.name.removeprefix(f"{task}-")]
            yield Group(study, task, label, {method: mine for method, mine in found.items() if mine})
    for label in ABLATIONS:
        for folder in sorted((out / "ablation").glob(f"* {label}/")):
            task = next(name for name in TASKS if folder.name.startswith(name))
            mine = {r.experiment.seed: r for r in _load_runs(folder)}
            yield Group("ablation", task, label, {"corrected": mine})


def _load_runs(folder: Path) -> list[Run]:
    """The runs that ended and did not diverge."""
    runs = (Run.open(path) for path in sorted(folder.glob("*-seed*")))
    return [run for run in runs if run.summary and not run.diverged]


def tabulate(group: Group) -> list[Row]:
    """One row per method."""
    if not group.runs:
        return []
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in group.runs.values())))
    rows: list[Row] = []
    for method in (m for m in METHODS if m in group.runs):
        mine = [group.runs[method][seed] for seed in seeds]
        row: Row = {
            "study": group.study,
            "task": group.task,
            "label": group.label,
            "method": method,
            "seeds": seeds,
            "kept_test_accuracy": _values(mine, "kept", "test_accuracy"),
            "kept_test_loss": _values(mine, "kept", "test_loss"),
            "last_test_accuracy": _values(mine, "last", "test_accuracy"),
            "last_test_loss": _values(mine, "last", "test_loss"),
            "tau_all": mean_and_spread(run.summary["tau_all"] for run in mine).mean,
        }
        if method != "corrected" and seeds and "corrected" in group.runs:
            ours = _values([group.runs["corrected"][seed] for seed in seeds], "kept", "test_accuracy")["values"]
            row["corrected_minus_this"] = find_lead(ours, row["kept_test_accuracy"]["values"])
        if group.study == "main" and mine:
            curves = [[line["test_accuracy"] or 0.0 for line in run.rounds if "test_accuracy" in line] for run in mine]
            row["curve"] = np.mean(curves, 0).tolist()
            if len(curves) > 1:
                row["curve_std"] = np.std(curves, 0, ddof=1).tolist()
            row["tested"] = [k + 1 for k, line in enumerate(mine[0].rounds) if "test_accuracy" in line]
        rows.append(row)
    return rows


def _values(runs: Sequence[Run], which: Literal["kept", "last"], name: str) -> Values:
    values = [get_number(run.summary[which], name) for run in runs]
    spread = mean_and_spread(values)
    return {"mean": spread.mean, "std": spread.std, "values": values}


def find_lead(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Lead:
    """The mean difference in points of accuracy and its 95 % interval over seeds."""
    found = paired_difference(ours, theirs)
    lead: Lead = {"mean": 100 * found.mean}
    if found.interval:
        lead["low"], lead["high"] = 100 * found.interval[0], 100 * found.interval[1]
    return lead


def write_results(rows: list[Row], folder: Path) -> None:
    """Writes corrected.json and its two figures."""
    content = {
        "command": "python -m studies.corrected main ablation alpha partition clients --out corrected",
        "setting": "K = 100, batch 100, lr 0.01, alpha 0.95, 5 clients unless said, probe of 1,024 rows",
        "rows": rows,
    }
    (folder / "corrected.json").write_text(json.dumps(content, indent=1) + "\n")
    draw(rows, folder)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """The two figures of docs/corrected.md."""
    main = {(row["task"], row["method"]): row for row in rows if row["study"] == "main"}
    with plt.rc_context(STYLE):
        _draw_leads(main, folder / "corrected-leads.svg")
        _draw_curves(main, folder / "corrected-curves.svg")


def _draw_leads(rows: Mapping[tuple[str, str], Row], path: Path) -> None:
    """How far the corrected method is ahead of each rival, with its interval."""
    rivals = METHODS[1:]
    seeds = len(next(iter(rows.values()))["seeds"])
    caption = f"Lead of FedVeca corrected over each method, Case 3, kept models, {seeds} seeds"
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.8), sharey=True, layout="constrained")
    for axis, (task, title) in zip(axes, TASKS.items(), strict=True):
        for y, method in enumerate(rivals):
            lead, colour = rows[task, method]["corrected_minus_this"], look_of(method)[1]
            if "low" in lead and "high" in lead:
                axis.plot([lead["low"], lead["high"]], [y, y], color=colour, linewidth=2)
            axis.plot(lead["mean"], y, "o", color=colour)
            axis.annotate(
                f"{lead['mean']:+.2f}".replace("-0.00", "0.00").replace("-", "−"),
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
                color=darken(colour),
            )
        axis.axvline(0, color=INK, linewidth=1)
        axis.set_title(title)
        axis.set_xlabel("points ahead (left of 0: behind)")
    axes[0].set_yticks(range(len(rivals)), [f"over {look_of(method)[0]}" for method in rivals])
    axes[0].set_ylim(len(rivals) - 0.5, -0.5)
    figure.suptitle(f"{caption}: mean and 95 % interval")
    about = "One panel per task, one row per method; right of the line at 0 FedVeca corrected is ahead."
    save_figure(figure, path, f"{caption}: mean and 95 % interval", about)


def _draw_curves(rows: Mapping[tuple[str, str], Row], path: Path) -> None:
    """Accuracy of the current model over rounds, mean over seeds; at the ends the last models' accuracy."""
    seeds = len(next(iter(rows.values()))["seeds"])
    caption = f"Case 3, the model after each round: mean of {seeds} seeds; at the ends mean ± standard deviation"
    figure, axes = plt.subplots(3, 1, figsize=(9.5, 9), layout="constrained")
    for axis, (task, title) in zip(axes, TASKS.items(), strict=True):
        _plot_curves(axis, [rows[task, method] for method in METHODS])
        axis.set_ylim(bottom=LOWEST[task])
        axis.set_title(f"{title}: test accuracy (%)")
    axes[-1].set_xlabel("round")
    figure.suptitle(caption)
    label_lines(*axes)
    about = f"Three panels, one per task. Lines: {', '.join(look_of(method)[0] for method in METHODS)}."
    save_figure(figure, path, caption, about)


def _plot_curves(axis: Axes, rows: Sequence[Row], digits: int = 2) -> None:
    """One line per row, with a band where the file has one, named with the last models' accuracy."""
    for row in rows:
        name, colour, dash = look_of(row["method"])
        mean = 100 * np.array(row["curve"])
        std = 100 * np.array(row["curve_std"]) if "curve_std" in row else None
        at = row.get("tested") or range(TESTED, TESTED * len(mean) + 1, TESTED)
        label = f"{name}  {_percent(row['last_test_accuracy'], digits)}"
        draw_band(axis, at, mean, std, (label, colour, dash), 2.1 if row["method"] == "corrected" else 1.6)
    axis.margins(x=0.01)


def draw_first(rows: Sequence[Row], path: Path) -> None:
    """README's first picture: four methods on the CNN for MNIST."""
    main = {row["method"]: row for row in rows if (row["study"], row["task"]) == ("main", "cnn-mnist")}
    seeds, rounds = len(main["fedavg"]["seeds"]), TESTED * len(main["fedavg"]["curve"])
    caption = "Test accuracy on non-IID data: a CNN on MNIST, 5 clients (Case 3)"
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.6, 4.3), layout="constrained")
        _plot_curves(axis, [main[method] for method in FIRST], digits=1)
        axis.set_xlabel("communication round")
        axis.set_ylabel("test accuracy (%)")
        axis.set_ylim(40, 100)
        ends = f"numbers: after round {rounds}, ± one standard deviation"
        axis.set_title(f"mean of {seeds} seeds; {ends}")
        figure.suptitle(caption)
        label_lines(axis, gap=14, size=10.5)
        values = ", ".join(
            f"{look_of(method)[0]} {_percent(main[method]['last_test_accuracy'], 1)} %" for method in FIRST
        )
        about = f"Four curves over {rounds} rounds, tested every {TESTED} rounds. After the last round: {values}."
        save_figure(figure, path, caption, about)


def print_table(rows: Sequence[Row]) -> None:
    """The tables of docs/corrected.md, as Markdown."""
    for study in dict.fromkeys(row["study"] for row in rows):
        print(f"\n{study}")
        for row in (row for row in rows if row["study"] == study):
            kept, last = _percent(row["kept_test_accuracy"]), _percent(row["last_test_accuracy"])
            lead = row.get("corrected_minus_this")
            gap = f"{lead['mean']:+.2f} ({lead['low']:+.2f} to {lead['high']:+.2f})" if lead and "low" in lead else ""
            steps = "-" if row["tau_all"] is None else f"{row['tau_all']:.0f}"
            print(
                f"| {TASKS[row['task']]} | {row['label']} | {look_of(row['method'])[0]} | {len(row['seeds'])} | {kept} "
                f"| {last} | {steps} | {gap} |"
            )


def _percent(values: Values, digits: int = 2) -> str:
    return "-" if values["mean"] is None else f"{100 * values['mean']:.{digits}f} ±{100 * values['std']:.{digits}f}"
