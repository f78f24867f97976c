"""The figures of the paper's Section V, from run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from fedveca.runs.folder import Run
from fedveca.views.figures.curves import STYLE, draw_line, focus_axis, save_figure
from fedveca.views.series import find_look
from studies.paper.measures import MODELS, Runs, by_client, by_round, deviation, final_values, kept_so_far, runs_of
from studies.paper.reported import REPORTED, TITLES, task_of

COLOURS = {"svm-mnist": "#0072B2", "cnn-mnist": "#009E73", "cnn-cifar10": "#D55E00"}
CLIENT_COLOURS = ("#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
AXES = (("test_loss", "test loss"), ("test_accuracy", "test accuracy (%)"))
Look = tuple[str, str, str]  # label, colour, dash


def table1(runs: Runs, path: Path) -> None:
    """Accuracy of every method: kept and last model with one standard deviation, and the paper's value."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(runs), figsize=(1.2 + 3.3 * len(runs), 3.6), layout="constrained", squeeze=False, sharey=True
        )
        for axis, study in zip(axes[0], runs, strict=True):
            methods = list(dict.fromkeys(r.experiment.method for r in runs[study]))
            for y, method in enumerate(methods):
                colour = find_look(method)[1]
                for which, shift, fill in zip(MODELS, (-0.16, 0.16), (colour, "white"), strict=True):
                    values = 100 * np.array(final_values(runs_of(runs, study, method), which, "test_accuracy"))
                    std = float(deviation(values))
                    axis.errorbar(
                        values.mean(),
                        y + shift,
                        xerr=std,
                        fmt="o",
                        color=colour,
                        markerfacecolor=fill,
                        markersize=6,
                        capsize=2,
                        label={"kept": "kept model", "last": "last model"}[which] if y == 0 else None,
                    )
                value = 100 * REPORTED[task_of(study)][method]["test_accuracy"]
                named = None if y else "the paper's value"
                axis.plot(value, y, "kD", markersize=5, markerfacecolor="none", label=named)
            axis.set_yticks(range(len(methods)), [find_look(m)[0] for m in methods])
            axis.set_title(TITLES[task_of(study)], fontsize=10)
            axis.set_xlabel("test accuracy (%)")
        axes[0, 0].invert_yaxis()
        _below(figure, axes[0, 0])
        _above(figure, "Table I, Case 3", runs)
        save_figure(figure, path)


def curves(runs: Runs, path: Path, caption: str = "Case 3, every round's model") -> None:
    """Test loss above, test accuracy below, one column a study: mean over seeds and one standard deviation."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            2, len(runs), figsize=(1.2 + 3.3 * len(runs), 6.2), layout="constrained", squeeze=False, sharex=True
        )
        for column, study in enumerate(runs):
            for axis, (name, label) in zip(axes[:, column], AXES, strict=True):
                _methods(axis, runs[study], name, label if column == 0 else "")
            case = "" if "case3" in study else f", Case {study[-1]}"
            axes[0, column].set_title(TITLES[task_of(study)] + case, fontsize=10)
            axes[1, column].set_xlabel("round")
        _below(figure, axes[0, 0])
        _above(figure, caption, runs)
        save_figure(figure, path)


def curves_kept(runs: Runs, path: Path) -> None:
    """The same of the model handed out so far, the one with the least training loss."""
    seen = {study: [kept_so_far(run) for run in runs[study]] for study in runs}
    curves(seen, path, "Case 3, the model kept so far (least training loss)")


def cases(runs: Runs, path: Path) -> None:
    shown = {study: runs[study] for study in runs if not study.endswith("case3")}
    curves(shown, path, "Cases 1 and 2, every round's model")


def premise(runs: Runs, path: Path) -> None:
    """eta tau_k L over the rounds, and the bound 1 that Theorem 1 asks for."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
        for study in runs:
            values = by_round(runs_of(runs, study), "premise")[:, 1:]  # round 0 has no L yet
            rounds, mean = np.arange(1, values.shape[1] + 1), values.mean(0)
            std = deviation(values)
            axis.plot(rounds, mean, color=COLOURS[task_of(study)], label=TITLES[task_of(study)])
            axis.fill_between(rounds, mean - std, mean + std, color=COLOURS[task_of(study)], alpha=0.15, linewidth=0)
        axis.axhline(1, color="#444444", linestyle=":", label="bound of Theorem 1")
        axis.set_xlabel("round k")
        axis.set_ylabel(r"$\eta\,\tau_k L$ (no unit)")
        axis.set_ylim(bottom=0)
        _below(figure, axis)
        _above(figure, "FedVeca, Case 3: the premise of Theorem 1", runs)
        save_figure(figure, path)


def instant(run: Run, path: Path, rounds: int = 50) -> None:
    """Six quantities of one run, round by round: of each client where they are the clients' own."""
    panels = (
        ("tau", r"local steps $\tau_{(k,i)}$"),
        ("tau_k", r"mean local steps $\tau_k$"),
        ("L", r"smoothness $L$"),
        ("beta", r"$\beta_{(k,i)}$"),
        ("delta", r"$\delta_{(k,i)}$ (log scale)"),
        ("A", r"$A_{(k,i)}$ (log scale)"),
    )
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained", sharex=True)
        for axis, (name, label) in zip(axes.flat, panels, strict=True):
            lines = [entry for entry in run.rounds[:rounds] if entry.get(name) is not None]
            lines = [entry for entry in lines if name != "L" or entry["L"]]  # 0: not known yet
            at, values = [entry["round"] for entry in lines], by_client(lines, name)
            if name in ("tau_k", "L"):
                axis.plot(at, values, color="black", linewidth=1.6)
            else:
                for i in range(run.experiment.clients):
                    style: Any = {"color": CLIENT_COLOURS[i % len(CLIENT_COLOURS)], "linestyle": "-" if i < 3 else "--"}
                    style |= {"linewidth": 0.5, "marker": "o", "markersize": 3.5} if name == "tau" else {}
                    axis.plot(at, values[:, i], label=f"client {i + 1}", **style)
            if name in ("delta", "A"):
                axis.set_yscale("log")
            elif name != "beta":
                axis.set_ylim(bottom=0)
            axis.set_ylabel(label)
        for axis in axes[1]:
            axis.set_xlabel("round k")
        _below(figure, axes[1, 0])
        one = f"FedVeca, seed {run.experiment.seed}, first {rounds} rounds"
        figure.suptitle(f"SVM on MNIST, Case 3: {one}", fontsize=11)
        save_figure(figure, path)


def alpha(runs: Runs, path: Path) -> None:
    """FedVeca with three values of alpha."""
    colours = {0.995: "#009E73", 0.95: "#D55E00", 0.5: "#0072B2"}
    sets = {runs_of(runs, study)[0].experiment.alpha: runs_of(runs, study) for study in runs}
    shown = [(sets[a], (rf"$1-\alpha = {1 - a:.3g}$", colour, "-")) for a, colour in colours.items() if a in sets]
    _pair(shown, path, runs, band=False)


def clients(runs: Runs, path: Path) -> None:
    """FedVeca with 5, 30 and 50 clients; FedAvg and FedNova with 50."""
    fade = {5: ("#D55E00", "-"), 30: ("#E69F00", "--"), 50: ("#7A3600", "-")}
    sets = []
    for study in runs:
        n = runs[study][0].experiment.clients
        for method in ("fedveca", "fedavg", "fednova") if n == 50 else ("fedveca",):
            name, *usual = find_look(method)
            colour, dash = fade[n] if method == "fedveca" else usual
            sets.append((runs_of(runs, study, method), (f"{name}, {n} clients", colour, dash)))
    _pair(sets, path, runs)


def _pair(sets: Sequence[tuple[list[Run], Look]], path: Path, runs: Runs, band: bool = True) -> None:
    """Test loss and accuracy side by side, one line a set of runs."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
        for axis, (name, label) in zip(axes, AXES, strict=True):
            for mine, shape in sets:
                draw_line(axis, mine, name, shape, band)
            focus_axis(axis, [r for mine, _ in sets for r in mine], name)
            axis.set_xlabel("round")
            axis.set_ylabel(label)
        _below(figure, axes[0])
        _above(figure, "SVM on MNIST, Case 3", runs, band)
        save_figure(figure, path)


def _methods(axis: Any, runs: Sequence[Run], name: str, label: str) -> None:
    for method in dict.fromkeys(r.experiment.method for r in runs):
        draw_line(axis, [r for r in runs if r.experiment.method == method], name)
    focus_axis(axis, runs, name)
    axis.set_ylabel(label)


def _below(figure: Any, axis: Any) -> None:
    """One panel's legend for all, under them."""
    handles, labels = axis.get_legend_handles_labels()
    room = int(10.5 * figure.get_figwidth() / (7 + max(map(len, labels))))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(room, len(labels)))


def _above(figure: Any, caption: str, runs: Runs, band: bool = True) -> None:
    seeds = len({r.experiment.seed for of_study in runs.values() for r in of_study})
    spread = ": mean and one standard deviation" if band else ": mean"
    figure.suptitle(f"{caption}; {seeds} seeds{spread}" if seeds > 1 else f"{caption}; one seed", fontsize=11)
