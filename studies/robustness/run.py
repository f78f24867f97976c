"""Accuracy with faulty clients: every method under every defence.

    python -m studies.robustness --out docs/results/robustness.json --figure docs/results/robustness.svg

Ten clients share the digits of scikit-learn, evenly in number; "by label" gives each four pieces of one label, "alike"
splits them row by row. What all runs have in common is in preset.toml. A result already in --out is not repeated.
`--table` prints the tables of docs/robustness.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import matplotlib.pyplot as plt
import torch

from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number
from fedveca.tasks.datasets.dataset import load
from fedveca.views.figures.style import CATEGORIES, STYLE, draw_band, label_lines, save_figure
from fedveca.views.series import find_look

Settings = dict[str, str | int | float]
METHODS = ("fedveca", "fedavg", "fedprox", "fednova", "scaffold")
DEFENCES: dict[str, Settings] = {"mean": {}, "clip": {}, "trimmed": {"aggregate_trim": 0.4}, "median": {}}
KINDS = {"flip": "flip:{}", "scale": "scale:{}:10", "reversed": "scale:{}:-10"}
WORDS = {"flip": "sign flipped", "scale": "ten times too long", "reversed": "ten times too long, sign flipped"}
SHARES = (0.2, 0.4)
AWAY = ("fedveca", "fedavg", "scaffold")
SPLITS: dict[str, Settings] = {"by label": {"partition": "shards", "shards": 4}, "alike": {"partition": "case1"}}
COMMON = preset(str(Path(__file__).with_name("preset.toml")))


class Values(TypedDict):
    """One number per seed."""

    accuracy: list[float | None]
    steps: list[int]


class Content(TypedDict):
    """What robustness.json holds."""

    command: str
    environment: Environment
    settings: Settings
    seeds: int
    cpu_seconds: float
    results: dict[str, Values]


def methods(split: str, kind: str = "") -> tuple[str, ...]:
    """All where they differ most, two elsewhere."""
    return METHODS if split == "by label" and kind != "scale" else ("fedveca", "fedavg")


def jobs() -> dict[str, Settings]:
    """The settings of each run, by its name."""
    out: dict[str, Settings] = {}
    for split, where in SPLITS.items():
        for method in methods(split):
            for rule, strength in DEFENCES.items():
                this = where | {"method": method, "aggregate": rule} | strength
                out[f"{split}/{method}/{rule}/none"] = this
                for kind, form in KINDS.items():
                    for share in SHARES if method in methods(split, kind) else ():
                        out[f"{split}/{method}/{rule}/{kind} {share}"] = this | {"faults": form.format(share)}
    for method in AWAY:
        for fault in ("drop:0.2", "drop:0.4", "crash:0.1:5", "nan:0.4"):
            out[f"away/{method}/mean/{fault}"] = SPLITS["by label"] | {"method": method, "faults": fault}
    for share, trim in ((0.2, 0.2), (0.4, 0.4)):
        for rule in ("mean", "clip"):
            this = SPLITS["by label"] | {"faults": f"lie:{share}", "aggregate": rule, "aggregate_trim": trim}
            out[f"lie/fedveca/{rule}/lie {share}"] = this
    return out


def measure(path: Path, seeds: int) -> Content:
    """Runs what is not in the file yet; the file is written after each seed."""
    before: Content | None = json.loads(path.read_text()) if path.exists() else None
    results, spent = (before["results"], before["cpu_seconds"]) if before else ({}, 0.0)
    digits, began = load("digits"), time.process_time()
    content = before
    for seed in range(seeds):
        for name, settings in jobs().items():
            values = results.setdefault(name, {"accuracy": [], "steps": []})
            if len(values["accuracy"]) > seed:
                continue
            print(f"seed {seed}: {name}", flush=True)
            done = run(Experiment(**(COMMON | settings | {"seed": seed})), device="cpu", data=digits)
            values["accuracy"].append(get_number(done.summary["last"], "test_accuracy"))
            values["steps"].append(done.summary["tau_all"])
        content = {
            "command": "python -m studies.robustness --out docs/results/robustness.json",
            "environment": describe_environment("cpu"),
            "settings": COMMON,
            "seeds": seed + 1,
            "cpu_seconds": round(spent + time.process_time() - began, 1),
            "results": results,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
    assert content
    return content


def mean(results: Mapping[str, Values], name: str) -> float:
    """Accuracy in %, over the seeds; a run that diverged counts as the guess it is."""
    return 100 * statistics.fmean(0.1 if v is None else v for v in results[name]["accuracy"])


def table(results: Mapping[str, Values]) -> str:
    lines = []
    for split in SPLITS:
        for kind in KINDS:
            lines += [f"\n**{WORDS[kind]}**, clients' data {split}: accuracy in % with 0, 20, 40 % bad clients\n"]
            lines += [f"| method | {' | '.join(DEFENCES)} |", f"|---|{'---|' * len(DEFENCES)}"]
            for method in methods(split, kind):
                cells = []
                for rule in DEFENCES:
                    at = [f"{split}/{method}/{rule}/{end}" for end in ("none", f"{kind} 0.2", f"{kind} 0.4")]
                    cells.append(", ".join(f"{mean(results, name):.0f}" for name in at))
                lines.append(f"| {find_look(method)[0]} | {' | '.join(cells)} |")
    faults = [name.rpartition("/")[2] for name in results if name.startswith("away/fedveca/")]
    lines += ["\n**away or not finite**, `aggregate=mean`, by label\n", f"| method | none | {' | '.join(faults)} |"]
    lines.append(f"|---|---|{'---|' * len(faults)}")
    for method in AWAY:
        names = [f"by label/{method}/mean/none", *(f"away/{method}/mean/{fault}" for fault in faults)]
        lines.append(f"| {find_look(method)[0]} | {' | '.join(f'{mean(results, n):.0f}' for n in names)} |")
    lines += ["\n**lies about numbers**, FedVeca, by label; `aggregate_trim` is the share of liars\n"]
    lines += ["| `faults` | `aggregate` | accuracy % | local steps |", "|---|---|---|---|"]
    for name in (name for name in results if name.startswith("lie/")):
        _, _, rule, fault = name.split("/")
        steps = statistics.fmean(results[name]["steps"])
        lines.append(f"| `{fault.replace(' ', ':')}` | {rule} | {mean(results, name):.0f} | {steps:.0f} |")
    return "\n".join(lines)


def draw(results: Mapping[str, Values], path: Path) -> None:
    """One row per method and split, one column per fault: accuracy against the share of bad clients."""
    looks = dict(zip(DEFENCES, zip(CATEGORIES, ("-", "--", "-.", ":"), strict=False), strict=True))
    rows = [(method, split) for split in SPLITS for method in ("fedavg", "fedveca")]
    seeds = len(results["by label/fedavg/mean/none"]["accuracy"])
    caption = f"Test accuracy with bad clients, by the rule that aggregates: mean of {seeds} seeds"
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(4, 3, figsize=(10.5, 9), sharex=True, sharey=True, layout="constrained")
        for line, (method, split) in zip(axes, rows, strict=True):
            for axis, kind in zip(line, KINDS, strict=True):
                for rule, look in looks.items():
                    names = [f"{split}/{method}/{rule}/{end}" for end in ("none", f"{kind} 0.2", f"{kind} 0.4")]
                    draw_band(axis, [0, 20, 40], [mean(results, name) for name in names], None, (rule, *look))
                    axis.lines[-1].set(marker="o", markersize=4)
                axis.set_xticks([0, 20, 40])
            line[0].set_ylabel(f"{find_look(method)[0]}, data {split}\naccuracy (%)")
        for axis, kind in zip(axes[0], KINDS, strict=True):
            axis.set_title(WORDS[kind])
        for axis in axes[-1]:
            axis.set_xlabel("bad clients (%)")
        figure.suptitle(caption)
        label_lines(*axes.flat)
        about = f"Columns: what a bad client sends. Rows: method and split. Lines: aggregate={', '.join(DEFENCES)}."
        save_figure(figure, path, caption, about)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    content = measure(args.out, args.seeds)
    if args.figure:
        draw(content["results"], args.figure)
    if args.table:
        print(table(content["results"]))
