"""The figures of the paper's Section V, from the results alone: what a JSON file of docs/results holds.

`python docs/pictures.py` draws all of them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedveca.algorithms.registry import is_pooled
from fedveca.views.figures.curves import focus_values
from fedveca.views.figures.run import QuantityValues, draw_quantities
from fedveca.views.figures.style import (
    CATEGORIES,
    INK,
    STYLE,
    darken,
    draw_band,
    find_linestyle,
    label_lines,
    save_figure,
)
from fedveca.views.series import find_look
from studies.paper.reported import TITLES, task_of

TASK_LOOKS = {
    "svm-mnist": (CATEGORIES[0], "-"),
    "cnn-mnist": (CATEGORIES[1], "--"),
    "cnn-cifar10": (CATEGORIES[2], "-."),
}
AXES = (("test_loss", "test loss"), ("test_accuracy", "test accuracy (%)"))
INSTANT = ("tau", "tau_k", "L", "beta", "delta", "A")
EVERY, SO_FAR = "every round's model", "the model kept so far"  # the two parts of curves.json
Array = NDArray[np.float64]
Methods = Mapping[str, Mapping[str, Any]]  # by method, what was measured: lists over rounds, and closing values
Look = tuple[str, str, str]  # label, colour, dash


def draw_results(content: Mapping[str, Any], folder: Path) -> None:
    """Draws every figure of a result, which is what its JSON file holds, into a folder."""
    for name, draw in FIGURES[content["what"]].items():
        draw(content, folder / f"{name}.svg")


def _count_seeds(content: Mapping[str, Any]) -> int:
    found = re.search(r"--seeds (\d+)", content["command"])
    return int(found[1]) if found else 1


def _add_seeds(content: Mapping[str, Any], caption: str, band: bool = True) -> str:
    """A caption with what its lines are over the seeds."""
    seeds = _count_seeds(content)
    spread = "mean and one standard deviation" if band else "mean"
    return f"{caption}: {spread} of {seeds} seeds" if seeds > 1 else f"{caption}: one seed"


def _get(values: Mapping[str, Any], name: str) -> tuple[Array, Array]:
    """Mean and standard deviation; shares in per cent, NaN where a round has none."""
    scale = 100 if name == "test_accuracy" else 1
    mean, std = (scale * np.array(values[name][part], dtype=float).reshape(-1) for part in ("mean", "std"))
    return mean, std


def table1(content: Mapping[str, Any], path: Path) -> None:
    """Accuracy of every method: kept and last model with one standard deviation, and the paper's value."""
    tables = content["results"]
    caption = _add_seeds(content, "Table I of the paper, Case 3, test accuracy")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(tables), figsize=(1.6 + 3.0 * len(tables), 3.7), layout="constrained", squeeze=False, sharey=True
        )
        for axis, table in zip(axes[0], tables, strict=True):
            rows = table["rows"]
            for y, row in enumerate(rows):
                colour = find_look(row["method"])[1]
                for which, shift, fill in (("kept", -0.17, colour), ("last", 0.17, "white")):
                    (mean,), (std,) = _get(row[which], "test_accuracy")
                    axis.errorbar(
                        mean,
                        y + shift,
                        xerr=std,
                        fmt="o",
                        color=colour,
                        markerfacecolor=fill,
                        markersize=6,
                        capsize=2,
                    )
                kept = _get(row["kept"], "test_accuracy")[0][0]
                value = 100 * row["paper"]["test_accuracy"]
                axis.plot(
                    value,
                    y,
                    "D",
                    color=INK,
                    markersize=5,
                    markerfacecolor="none",
                )
                axis.annotate(
                    f"{kept:.1f}",
                    (1, y - 0.17),
                    xycoords=("axes fraction", "data"),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    color=darken(colour),
                    fontsize=9.5,
                )
            axis.set_yticks(range(len(rows)), [find_look(row["method"])[0] for row in rows])
            axis.margins(x=0.08)
            axis.set_title(TITLES[table["task"]])
            axis.set_xlabel("test accuracy (%)")
        axes[0, 0].invert_yaxis()
        looks: tuple[tuple[str, dict[str, Any]], ...] = (
            ("kept model: lowest training loss (its mean at the right)", {"marker": "o"}),
            ("last model", {"marker": "o", "markerfacecolor": "white"}),
            ("the paper's value", {"marker": "D", "markerfacecolor": "none", "markersize": 5}),
        )
        keys = [Line2D([], [], color=INK, linestyle="none", label=said, **look) for said, look in looks]
        figure.legend(handles=keys, loc="outside lower center", ncols=3)
        figure.suptitle(caption)
        about = "One panel per task, one row per method; the number at the right is the kept model's mean."
        save_figure(figure, path, caption, about)


def curves(content: Mapping[str, Any], path: Path) -> None:
    """Test loss and accuracy of every round's model, one row per task."""
    _draw_methods(content["results"][EVERY], path, _add_seeds(content, "Case 3, the model after each round"))


def curves_kept(content: Mapping[str, Any], path: Path) -> None:
    """The same of the model that would be returned so far, the one with the lowest training loss."""
    caption = _add_seeds(content, "Case 3, the model kept so far (lowest training loss)")
    _draw_methods(content["results"][SO_FAR], path, caption)


def cases(content: Mapping[str, Any], path: Path) -> None:
    """The same for Cases 1 and 2."""
    shown = {study: methods for study, methods in content["results"].items() if not study.endswith("case3")}
    _draw_methods(shown, path, _add_seeds(content, "Cases 1 and 2, the model after each round"))


def _draw_methods(studies: Mapping[str, Methods], path: Path, caption: str) -> None:
    """Test loss at the left, accuracy at the right, one row per study."""
    with plt.rc_context(STYLE):
        high = 0.7 + 2.7 * len(studies)
        figure, axes = plt.subplots(len(studies), 2, figsize=(10.5, high), layout="constrained", squeeze=False)
        for row, (study, methods) in zip(axes, studies.items(), strict=True):
            sets = [(values, find_look(method), is_pooled(method)) for method, values in methods.items()]
            _draw_pair(row, sets)
            case = "" if "case3" in study else f", Case {study[-1]}"
            for axis, (_, label) in zip(row, AXES, strict=True):
                axis.set_title(f"{TITLES[task_of(study)]}{case}: {label}")
        figure.suptitle(caption)
        label_lines(*axes.flat)
        save_figure(figure, path, caption, _list_methods(studies))


def _list_methods(studies: Mapping[str, Methods]) -> str:
    names = dict.fromkeys(find_look(method)[0] for methods in studies.values() for method in methods)
    return f"Test loss and test accuracy over the rounds. Lines: {', '.join(names)}."


def _draw_pair(axes: Sequence[Any], sets: Sequence[tuple[Mapping[str, Any], Look, bool]], band: bool = True) -> None:
    """Test loss and accuracy in two panels, one line per set of values; what is pooled is one number."""
    for axis, (name, _) in zip(axes, AXES, strict=True):
        seen = []
        for values, look, pooled in sets:
            mean, std = _get(values, name)
            if pooled:
                axis.axhline(
                    mean[-1], color=look[1], linestyle=find_linestyle(look[2]), linewidth=1.5, label=look[0], zorder=1.9
                )
                seen.append(mean[-1:])
            else:
                mine = look[0].startswith("FedVeca")
                draw_band(axis, range(1, len(mean) + 1), mean, std if band else None, look, 2 if mine else 1.6)
                seen.append(mean[len(mean) // 20 :])
        focus_values(axis, seen, "higher" if name == "test_accuracy" else "lower")
        axis.margins(x=0.01)
        axis.set_xlabel("round")


def premise(content: Mapping[str, Any], path: Path) -> None:
    """eta tau_k L over the rounds, and the bound 1 that Theorem 1 asks for."""
    caption = _add_seeds(content, "FedVeca, Case 3, the premise of Theorem 1")
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(9.5, 3.8), layout="constrained")
        for study, values in content["results"].items():
            mean, std = (part[1:] for part in _get(values, "premise"))  # round 0 has no L yet
            task = task_of(study)
            draw_band(axis, range(1, len(mean) + 1), mean, std, (TITLES[task], *TASK_LOOKS[task]))
        axis.axhline(1, color=INK, linestyle=find_linestyle(":"), linewidth=1.4, label="bound: below 1")
        axis.set_xlabel("round k")
        axis.set_ylabel(r"$\eta\,\tau_k L$")
        axis.set_ylim(bottom=0)
        axis.margins(x=0.01)
        figure.suptitle(caption)
        label_lines(axis)
        save_figure(figure, path, caption, "Theorem 1 holds for values below 1, the dotted line.")


def instant(content: Mapping[str, Any], path: Path) -> None:
    """Six quantities of one run, round by round: of each client where they are the clients' own."""
    results = content["results"]
    found: dict[str, QuantityValues] = {}
    for name in INSTANT:
        known = [(k, v) for k, v in zip(results["round"], results[name], strict=True) if v not in (None, 0.0)]
        values = np.array([v for _, v in known], dtype=float).T
        found[name] = QuantityValues([k for k, _ in known], values, range(len(values)) if values.ndim == 2 else ())
    title = f"FedVeca, SVM on MNIST, Case 3, seed {results['seed']}, first {len(results['round'])} rounds"
    draw_quantities(found, path, title, "the paper counts clients from 1, here from 0")


def alpha(content: Mapping[str, Any], path: Path) -> None:
    """FedVeca with three values of alpha."""
    sets = []
    for study, methods in content["results"].items():
        value = content["studies"][study]["settings"].get("alpha", 0.95)
        place = (0.5, 0.95, 0.995).index(value)
        look = (f"1 − α = {1 - value:.3g}", CATEGORIES[place], ("--", "-.", "-")[place])
        sets.append((methods["fedveca"], look, False))
    caption = _add_seeds(content, "FedVeca, SVM on MNIST, Case 3, three values of α", band=False)
    _draw_sets(sets, path, caption, band=False)


def clients(content: Mapping[str, Any], path: Path) -> None:
    """FedVeca with 5, 30 and 50 clients; FedAvg and FedNova with 50."""
    sets = []
    for study, methods in content["results"].items():
        n = content["studies"][study]["settings"].get("clients", 5)
        for method, values in methods.items():
            name, colour, dash = find_look(method)
            if method == "fedveca":  # darker for fewer clients
                colour = darken(colour, {5: 13, 30: 7}.get(n, 1))
            sets.append((values, (f"{name}, {n} clients", colour, dash), False))
    _draw_sets(sets, path, _add_seeds(content, "SVM on MNIST, Case 3, by the number of clients"))


def _draw_sets(
    sets: Sequence[tuple[Mapping[str, Any], Look, bool]], path: Path, caption: str, band: bool = True
) -> None:
    """Test loss and accuracy side by side, one line per set of values."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.9), layout="constrained")
        _draw_pair(axes, sets, band)
        for axis, (_, label) in zip(axes, AXES, strict=True):
            axis.set_title(label)
        figure.suptitle(caption)
        label_lines(*axes)
        names = ", ".join(look[0] for _, look, _ in sets)
        save_figure(figure, path, caption, f"Test loss and test accuracy over the rounds. Lines: {names}.")


FIGURES: dict[str, dict[str, Callable[[Mapping[str, Any], Path], None]]] = {  # by result and by file
    "table1": {"table1": table1},
    "curves": {"curves": curves, "curves-kept": curves_kept},
    "premise": {"premise": premise},
    "cases": {"cases": cases},
    "instant": {"instant": instant},
    "alpha": {"alpha": alpha},
    "clients": {"clients": clients},
}
