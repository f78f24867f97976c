"""What the study of FedVeca corrected shows: docs/results/corrected.json, its tables and two figures."""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from scipy.stats import t as student

NAMES = {"svm-mnist": "SVM, MNIST", "cnn-mnist": "CNN, MNIST", "cnn-cifar10": "CNN, CIFAR-10"}
METHODS = {
    "corrected": ("FedVeca corrected", "#0072B2"),
    "fedveca": ("FedVeca", "#56B4E9"),
    "scaffold": ("SCAFFOLD", "#D55E00"),
    "scaffold+": ("SCAFFOLD, more steps", "#E69F00"),
    "scaffold probed": ("SCAFFOLD, probe's steps", "#8C510A"),
    "fedavg": ("FedAvg", "#009E73"),
    "fedprox": ("FedProx", "#CC79A7"),
    "fednova": ("FedNova", "#555555"),
}
Row = dict[str, Any]


def spread(values: list[float]) -> dict[str, Any]:
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": sd, "values": values}


def paired(mine: list[float], theirs: list[float]) -> dict[str, float]:
    """Mean difference in points of accuracy and its 95 % interval over seeds."""
    apart = [100 * (a - b) for a, b in zip(mine, theirs, strict=True)]
    if len(apart) < 2:
        return {"mean": apart[0]}
    half = float(student.ppf(0.975, len(apart) - 1)) * statistics.stdev(apart) / len(apart) ** 0.5
    mean = statistics.fmean(apart)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def table(rows: list[Row]) -> list[Row]:
    """One row a study, task, setting and method, over the seeds that all of the setting's methods have."""
    groups: dict[tuple[str, str, str], dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        groups[row["study"], row["task"], row["label"]][row["method"]][row["seed"]] = row
    out = []
    for (study, task, label), methods in groups.items():
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in methods.values())))
        lead = [methods["corrected"][s]["kept"]["test_accuracy"] for s in seeds]
        for method, by_seed in methods.items():
            mine = [by_seed[s] for s in seeds]
            line: Row = {"study": study, "task": task, "label": label, "method": method, "seeds": seeds}
            for which in ("kept", "last"):
                for name in ("test_accuracy", "test_loss"):
                    line[f"{which}_{name}"] = spread([row[which][name] for row in mine])
            line["tau_all"] = statistics.fmean(row["tau_all"] for row in mine)
            if method != "corrected":
                line["corrected_minus_this"] = paired(lead, line["kept_test_accuracy"]["values"])
            if study == "main":
                line["curve"] = [statistics.fmean(c) for c in zip(*(row["curve"] for row in mine), strict=True)]
            out.append(line)
    return out


def leads(lines: list[Row], path: Path) -> None:
    """How far the corrected method is ahead of each rival, with its interval."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    rivals = [m for m in METHODS if m != "corrected"]
    for ax, (task, title) in zip(axes, NAMES.items(), strict=True):
        for y, method in enumerate(reversed(rivals)):
            line = next(x for x in lines if (x["study"], x["task"], x["method"]) == ("main", task, method))
            d = line["corrected_minus_this"]
            ax.plot([d["low"], d["high"]], [y, y], color=METHODS[method][1], linewidth=2)
            ax.plot(d["mean"], y, "o", color=METHODS[method][1])
        ax.axvline(0, color="#888888", linewidth=0.8)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("points of accuracy ahead")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(rivals)), [METHODS[m][0] for m in reversed(rivals)])
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def curves(lines: list[Row], path: Path) -> None:
    """Accuracy of the current model over rounds, mean over seeds."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    for ax, (task, title) in zip(axes, NAMES.items(), strict=True):
        for method, (name, colour) in METHODS.items():
            line = next(x for x in lines if (x["study"], x["task"], x["method"]) == ("main", task, method))
            y = [100 * v for v in line["curve"]]
            wide = 2.2 if method == "corrected" else 1.1
            ax.plot(range(5, 5 * len(y) + 1, 5), y, color=colour, linewidth=wide, label=name)
        low = {"svm-mnist": 80, "cnn-mnist": 82, "cnn-cifar10": 22}[task]
        ax.set_ylim(bottom=low)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("round")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test accuracy, %")
    axes[-1].legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def write(study: Path, folder: Path) -> None:
    plt.rcParams |= {"svg.hashsalt": "fedveca", "svg.fonttype": "none", "font.size": 9}
    lines = table([json.loads(line) for line in study.read_text().splitlines()])
    (folder / "corrected.json").write_text(
        json.dumps(
            {
                "command": "python benchmarks/corrected.py main ablation alpha partition clients --out study.jsonl",
                "setting": "K = 100, batch 100, lr 0.01, alpha 0.95, 5 clients unless said, probe of 1,024 rows",
                "rows": lines,
            },
            indent=1,
        )
        + "\n"
    )
    leads(lines, folder / "corrected-leads.svg")
    curves(lines, folder / "corrected-curves.svg")
    for study_name in ("main", "ablation", "alpha", "partition", "clients"):
        print(f"\n{study_name}")
        for line in lines:
            if line["study"] == study_name:
                kept, last = line["kept_test_accuracy"], line["last_test_accuracy"]
                d = line.get("corrected_minus_this", {})
                apart = f"{d['mean']:+.2f} ({d['low']:+.2f} to {d['high']:+.2f})" if "low" in d else ""
                print(
                    f"| {NAMES[line['task']]} | {line['label']} | {METHODS[line['method']][0]} "
                    f"| {len(line['seeds'])} | "
                    f"{100 * kept['mean']:.2f} ±{100 * kept['std']:.2f} | {100 * last['mean']:.2f} "
                    f"±{100 * last['std']:.2f} | {line['tau_all']:.0f} | {apart} |"
                )
