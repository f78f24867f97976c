"""The words of a run's progress, cut to the width that there is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch

from fedveca.algorithms.registry import concerns, is_adaptive
from fedveca.runs.experiment import Experiment, count_probe_rows, describe_task
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import FLOWER, LOCAL, find_starter
from fedveca.runs.run import resolve_device
from fedveca.runs.schema import Round, find_metric, get_number
from fedveca.runs.value_text import format_value, short_label

FIRST_ESTIMATE = 3  # rounds before the time left is shown
MEMORY = 10  # rounds of the moving mean
MANY = 8  # clients: of more, the fewest and the most local steps are shown


class Pace:
    """The time left, from the mean duration of the last rounds."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=MEMORY + 1)
        self._count = 0

    def add(self, now: float | None = None) -> None:
        """One round is over."""
        self._ends.append(time.monotonic() if now is None else now)
        self._count += 1

    def left(self, rounds: int) -> float | None:
        """Seconds for so many more rounds; None before it can be known."""
        if self._count < FIRST_ESTIMATE:
            return None
        return rounds * (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)


def format_seconds(seconds: float) -> str:
    """A duration for people: `8 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def name_run(e: Experiment, keys: Sequence[str] = ()) -> str:
    """A run among others: its method and its seed, and where it is one of a sweep the settings that are swept."""
    swept = [f"{key}={getattr(e, key)}" for key in keys if concerns(key, e.method)]
    return " ".join((e.method, *swept, f"seed {e.seed}"))


def count_runs(count: int) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} run{'' if count == 1 else 's'}"


def describe_round(
    e: Experiment, record: Round, left: float | None = None, width: int = 10**6, keys: Sequence[str] = ()
) -> str:
    """A round in one line of at most `width` characters; what matters less is left out where it does not fit."""
    metric, tau = find_metric([record]), record["tau"]
    value, loss = get_number(record, metric), get_number(record, "test_loss")
    parts = [(0, name_run(e, keys)), (0, f"round {record['round'] + 1}{'' if e.budget else f'/{e.rounds}'}")]
    if value is not None and loss is not None:
        parts.append((1, f"{short_label(metric)} {format_value(metric, value)}"))
        parts.append((3, f"loss {format_value('test_loss', loss)}"))
    if tau:
        parts.append((4, f"tau {tau if len(tau) <= MANY else f'{min(tau)}..{max(tau)}'}"))
    if "epsilon" in record:
        parts.append((3, f"epsilon {record['epsilon']:.3g}"))
    if faults := record.get("faults"):
        parts.append((4, f"faults {len(faults)}"))
    if left is not None:
        parts.append((2, f"{format_seconds(left)} left"))
    if len(fit_parts(parts, 10**6)) > width:
        parts = [(rank, f"tau {min(tau)}..{max(tau)}" if text.startswith("tau ") else text) for rank, text in parts]
    return fit_parts(parts, width)


def fit_parts(parts: list[tuple[int, str]], width: int) -> str:
    """The parts of a line, each with its rank: while they are too wide, those of the highest rank are left out."""
    while len(line := "  ".join(text for _, text in parts)) > width:
        last = max(rank for rank, _ in parts)
        if last == 0:
            return line[:width]
        parts = [(rank, text) for rank, text in parts if rank < last]
    return line


def describe_end(run: Run, width: int = 10**6, before: str = "", keys: Sequence[str] = ()) -> str:
    """A run that is over, in one line."""
    name = f"{before}{name_run(run.experiment, keys)}"
    if run.diverged:
        return f"{name}  diverged: {run.summary['stopped']}"
    kept, metric = run.summary["kept"], run.metric
    value, loss = format_value(metric, get_number(kept, metric)), format_value("test_loss", kept["test_loss"])
    seconds = format_seconds(get_number(run.summary, "seconds") or 0)
    return fit_parts([(0, name), (1, f"{short_label(metric)} {value}"), (3, f"loss {loss}"), (2, seconds)], width)


def describe_start(e: Experiment, device: str, width: int = 10**6, folder: Path | None = None) -> list[str]:
    """What runs and where, in lines of at most `width` characters where words allow."""
    probe = [f"probe {count_probe_rows(e)}"] if e.probe == "auto" else []
    rounds = f"at most {e.rounds} rounds, budget {e.budget}" if e.budget else f"{e.rounds} rounds"
    settings = [rounds, f"batch {e.batch}", *probe, f"lr {e.lr:g}", f"seed {e.seed}", f"on {device}"]
    if e.epochs:
        settings.insert(2, _describe_epochs(e, folder))
    return fill_lines([*describe_task(e).split(", "), *settings], width)


def _describe_epochs(e: Experiment, folder: Path | None) -> str:
    """The epochs per round, and what they are in local steps where the run's folder says so."""
    text = f"epochs {e.epochs}{' at the start' if is_adaptive(e.method) else ''}"
    try:
        found = read_object(folder, "environment.json").get("steps") if folder else None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, list) or len(found) != 2 or not all(type(n) is int for n in found):
        return f"epochs {e.epochs}"
    few, many = found
    return f"{text} ({few if few == many else f'{few} to {many}'} local steps per client)"


def fill_lines(parts: list[str], width: int) -> list[str]:
    """Parts with commas between them, as many on a line as fit."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return lines


def find_device(folder: Path | None) -> str:
    """Where a run computes, as its folder says: CPU, the name of the GPU, or Flower nodes."""
    try:
        name = str(read_object(folder, "environment.json").get("device", "")) if folder else ""
    except (OSError, ValueError):
        name = ""
    if folder and find_starter(folder) in (LOCAL, FLOWER):
        return "Flower nodes"
    return "CPU" if name in ("", "cpu") else name


def name_device(device: str) -> str:
    """A device as people call it; UserError where it is not there."""
    return "CPU" if resolve_device(device) == "cpu" else torch.cuda.get_device_name()
