"""The paper's fair protocol: FedVeca first, then every rival with the same total of local steps."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveca.runs.experiment import METHODS, Experiment
from fedveca.runs.record import Run
from fedveca.runs.run import run
from fedveca.tasks.data import Dataset, load

Started = Callable[[Experiment], Callable[[dict[str, Any]], None] | None]


def compare(
    experiment: Experiment,
    seeds: int,
    out: Path,
    *,
    methods: tuple[str, ...] = METHODS,
    device: str = "auto",
    started: Started | None = None,
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, whole and with the same settings, is not repeated.
    """
    data = _shared(experiment)
    runs = []
    for seed in range(experiment.seed, experiment.seed + seeds):
        tau_all = 0
        for method in methods:
            e = replace(experiment, method=method, seed=seed)
            if method != "fedveca":
                e = replace(e, tau_all=tau_all or e.tau_all)
            folder = out / f"{method}-seed{seed}"
            done = finished(folder, e) or run(
                e, folder, device=device, data=data, watch=started(e) if started else None
            )
            if method == "fedveca":
                tau_all = done.summary["tau_all"]
            runs.append(done)
    (out / "table.json").write_text(json.dumps(table(runs), indent=2) + "\n")
    return runs


def finished(folder: Path, experiment: Experiment) -> Run | None:
    """The run of this experiment that `folder` holds; ValueError if it holds another or half of one."""
    if not folder.exists():
        return None
    done = Run.open(folder)
    if done.experiment != experiment:
        raise ValueError(f"{folder} holds a run with other settings; name another --out")
    if not done.summary:
        raise ValueError(f"{folder} holds a run that was interrupted; remove it to run it again")
    return done


def table(runs: list[Run]) -> list[dict[str, Any]]:
    """One row a method: last and kept model, mean and spread over seeds."""
    rows = []
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [r for r in runs if r.experiment.method == method]
        row: dict[str, Any] = {"method": method, "seeds": [r.experiment.seed for r in mine]}
        row["tau_all"] = statistics.fmean(r.summary["tau_all"] for r in mine)
        for which in ("last", "kept"):
            row[which] = {name: spread([r.summary[which][name] for r in mine]) for name in ("test_loss", "test_accuracy")}
        rows.append(row)
    return rows


def spread(values: list[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; a run that diverged has no value and is counted out."""
    known = [v for v in values if v is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "values": values,
    }


def _shared(e: Experiment) -> Dataset | None:
    """Data that do not depend on the seed are read once."""
    return None if e.data == "synthetic" else load(e.data, e.data_dir)
