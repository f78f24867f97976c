"""Prints the rows of docs/tables.md that come from controls and from VGG-11: python -m studies.public.rows.

What is printed is what the page shows; tests/docs/test_robustness_page.py compares them. After new runs, copy their
files into docs/results as public-NAME.json and the printed rows onto the page.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from studies.public.niid_controls import CONTROLS, Found, is_of
from studies.public.run import Outcome, read_table, summarise

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = {"fedavg": "FedAvg", "fedprox": r"FedProx, $\mu = 0.01$,", "scaffold": "SCAFFOLD", "fednova": "FedNova"}
VGG = {  # table -> what its rows say after the method
    "fednova_vgg": "plain SGD",
    "fednova_vgg_epochs": "plain SGD, 2 to 4 epochs",
    "fednova_vgg_momentum": "momentum 0.9",
}


def show_control(name: str, every: list[Found]) -> list[str]:
    """The rows of one control, method by method."""
    control = CONTROLS[name]
    runs = [run for found in every if is_of(found, control) for run in found["runs"]]
    rows = []
    for method in control.published:
        mine = [run for run in runs if run["method"] == method]
        if len(mine) < 2:
            continue
        place = "Flower's partition" if name.startswith("flower") else "the authors' partitions"
        value = f"{control.published[method]}"
        sources = f"| {value}" if name.startswith("flower") else f"{value} |"
        last = str(len(mine)) if control.table == "niid_labels" else f"{_mean_steps(mine):,}"
        best, end = (_show([100 * pick(run["accuracy"]) for run in mine]) for pick in (max, lambda values: values[-1]))
        rows.append(f"| {NAMES[method]} on {place}{_say_cut(mine)} | {sources} | {best} | {end} | {last} |")
    return rows


def _say_cut(runs: list[Outcome]) -> str:
    """After how many rounds, where the time of a run ended before its rounds."""
    cut = [len(run["accuracy"]) for run in runs if "cut" in run]
    return f", at least {min(cut)} rounds" if cut else ""


def _mean_steps(runs: list[Outcome]) -> int:
    return round(statistics.mean(run["tau_all"] for run in runs))


def _show(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ±{statistics.stdev(values):.2f}"


def show_vgg(name: str, results: Path = RESULTS) -> list[str]:
    """The rows of one table of VGG-11; of a control, where it has been run."""
    table = read_table("fednova_vgg" if name == "fednova_vgg_epochs" else name)
    path, rows = results / f"public-{name}.json", []
    runs: list[Outcome] = json.loads(path.read_text("utf-8")) if path.exists() else []
    lines = {line["method"]: line for line in summarise("fednova_vgg", runs)}
    for method, value in table["published"].items():
        cut = _say_cut([run for run in runs if run["method"] == method])
        head = f"| {NAMES[method]}, {VGG[name]}{cut} | {value} ±{table['published_sd'][method]}"
        if method in lines:
            line, many = lines[method], lines[method]["seeds"] > 1
            last = f"{line['last']:.2f}" + (f" ±{line['last_sd']:.2f}" if many else "")
            best = f"{line['best']:.2f}" + (f" ±{line['best_sd']:.2f}" if many else "")
            rows.append(f"{head} | {last} | {best} | {line['steps']:,} | {line['seeds']} |")
        elif name != "fednova_vgg_epochs":
            rows.append(f"{head} | not run yet | | | |")
    return rows


def main() -> None:
    every: list[Found] = json.loads((RESULTS / "public-niid_controls.json").read_text("utf-8"))
    for name in CONTROLS:
        print("\n".join([f"{name}:", *show_control(name, every)]))
    for name in VGG:
        print("\n".join([f"{name}:", *show_vgg(name)]))


if __name__ == "__main__":
    main()
