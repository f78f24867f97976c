"""Run folders with values of every client, in the form that a run leaves, without training anything."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from fedveca.runs.experiment import Experiment


def summarise(name: str, values: Sequence[float], rows: Sequence[int], lower: bool, prefix: str) -> dict[str, float]:
    """The aggregates of a value over the clients, by hand: the mean of the worst and the best tenth among them."""
    ranked = sorted(values, reverse=lower)
    tenth = max(1, len(ranked) // 10)
    return {
        f"{prefix}_{name}": fmean(values),
        f"{prefix}_{name}_rows": sum(v * n for v, n in zip(values, rows, strict=True)) / sum(rows),
        f"{prefix}_{name}_sd": pstdev(values),
        f"{prefix}_{name}_worst": fmean(ranked[:tenth]),
        f"{prefix}_{name}_best": fmean(ranked[-tenth:]),
    }


def count_rows(clients: int) -> list[int]:
    """Training rows by client: from 20 upwards, in steps of 10, in five sizes."""
    return [20 + 10 * (i % 5) for i in range(clients)]


def record_clients(k: int, clients: int, gain: float, tuned: bool = False) -> dict[str, Any]:
    """One tested round: client i has accuracy between 0.2 and 1, better with more rounds and a higher gain."""
    rows = [n // 4 for n in count_rows(clients)]
    base = 1 - math.exp(-gain * (k + 1))
    accuracy = [base * (0.5 + 0.5 * math.cos(2.4 * i) ** 2) for i in range(clients)]
    loss = [2 * (1 - v) for v in accuracy]
    values: dict[str, Any] = {"tested": list(range(clients)), "client_test_accuracy": accuracy}
    values["client_test_loss"] = loss
    values |= summarise("accuracy", accuracy, rows, False, "clients") | summarise("loss", loss, rows, True, "clients")
    if tuned:
        better = [v + 0.5 * (1 - v) for v in accuracy]
        less = [0.5 * v for v in loss]
        values |= {"client_tuned_accuracy": better, "client_tuned_loss": less}
        values |= summarise("accuracy", better, rows, False, "tuned") | summarise("loss", less, rows, True, "tuned")
    return values | {"test_loss": values["clients_loss_rows"], "test_accuracy": values["clients_accuracy_rows"]}


def write_client_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    clients: int = 20,
    rounds: int = 8,
    tuned: bool = False,
    confusion: bool = False,
    **settings: Any,
) -> Path:
    """Writes a finished run whose clients hold test rows; some took part in each round, all were tested."""
    folder.mkdir(parents=True)
    gain = (0.03 if method == "fedavg" else 0.05) + 0.002 * seed
    e = Experiment(method=method, seed=seed, clients=clients, rounds=rounds, **settings)
    (folder / "experiment.toml").write_text(e.toml())
    lines = []
    for k in range(rounds):
        ids = sorted({(3 * k + 2 * j) % clients for j in range(max(1, clients // 2))})
        line = {"round": k, "ids": ids, "left_out": [], "tau": [5] * len(ids), "tau_k": 5.0, "train_loss": 1 / (k + 1)}
        line |= record_clients(k, clients, gain, tuned)
        if confusion:
            line["test_confusion"] = [[10 + k, 2, 1], [3, 8 + k, 0], [0, 5, 5 + k]]
        lines.append(line | {"bytes_up": 100, "bytes_down": 100, "seconds": 0.1})
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = ("client", "tested", "test_", "tuned_")
    ends = {
        which: {"round": at + 1} | {name: v for name, v in lines[at].items() if name.startswith(first)}
        for which, at in (("last", rounds - 1), ("kept", max(0, rounds - 2)))
    }
    summary = {"tau_all": 5 * rounds, "seconds": 0.1 * rounds, "rounds": rounds, **ends}
    (folder / "summary.json").write_text(json.dumps(summary))
    sizes = count_rows(clients)
    labels = [
        [n - 5 if label == i % 3 else 5 if label == (i + 1) % 3 else 0 for label in range(3)]
        for i, n in enumerate(sizes)
    ]
    part = {"all": clients, "clients": list(range(clients)), "sizes": sizes, "labels": labels}
    part |= {"val": [0] * clients, "test": [n // 4 for n in sizes]}
    (folder / "partition.json").write_text(json.dumps(part))
    return folder
