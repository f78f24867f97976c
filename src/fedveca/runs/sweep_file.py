"""What a sweep writes into its sweep.json, and how that is read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from fedveca.runs.files import read_object
from fedveca.runs.schema import Direction, finite_number, is_count
from fedveca.runs.search import TrialSettings
from fedveca.runs.setting_checks import FIELDS

SWEEP_FILE = "sweep.json"
TUNING, REPORTED = "tuning", "reported"  # the folders of the runs that choose, and of those that are compared
SWEEP_BYTES = 2**24  # the most of a sweep.json that is read
SweepState = Literal["tuning", "comparing", "finished"]


class TrialEntry(TypedDict):
    """Some settings of a method and what they gave, by tuning seed; null for a run that diverged."""

    settings: TrialSettings
    values: list[float | None]  # of the metric, on validation rows
    losses: list[float | None]
    mean: float | None  # over all tuning seeds; null where a run diverged
    loss: float | None


class TuningEntry(TypedDict):
    """How the settings of one method were chosen."""

    method: str
    chosen: TrialSettings | None  # null until all were tried, and where every run diverged
    trials: list[TrialEntry]
    rows: NotRequired[int]  # gradient rows of all its tuning runs


class SweepContent(TypedDict):
    """What sweep.json holds."""

    state: SweepState
    quantity: str  # by which settings are chosen, such as val_accuracy
    better: Direction
    val: float
    space: dict[str, str]  # what was tried, as the command line has it
    seeds: list[int]
    tuning_seeds: list[int]
    methods: list[TuningEntry]


def choose_trial(trials: Sequence[TrialEntry], better: Direction) -> TrialEntry | None:
    """The trial with the best mean; of equal ones that with the lower loss, then the first. None where all diverged."""
    whole = [trial for trial in trials if trial["mean"] is not None]
    sign = -1 if better == "higher" else 1

    def rank(trial: TrialEntry) -> tuple[float, float]:
        loss = trial["loss"]
        return sign * cast(float, trial["mean"]), float("inf") if loss is None else loss

    return min(whole, key=rank) if whole else None


def list_edges(entry: TuningEntry) -> list[str]:
    """The chosen values that are the lowest or the highest of three or more: one beyond may be better."""
    found = []
    for key, value in (entry["chosen"] or {}).items():
        tried = {trial["settings"][key] for trial in entry["trials"]}
        numbers = [v for v in tried if not isinstance(v, str)]
        if len(numbers) == len(tried) > 2 and value in (min(numbers), max(numbers)):
            found.append(f"{key}={value}")
    return found


def read_sweep(folder: Path) -> SweepContent | None:
    """What the sweep.json of a folder says; None where there is none that a sweep writes."""
    try:
        found = read_object(folder, SWEEP_FILE, SWEEP_BYTES)
    except (OSError, ValueError):
        return None
    space, methods = found.get("space"), found.get("methods")
    good = isinstance(found.get("quantity"), str) and found.get("better") in ("higher", "lower")
    good &= found.get("state") in ("tuning", "comparing", "finished") and finite_number(found.get("val")) is not None
    good &= isinstance(space, dict) and all(key in FIELDS and isinstance(v, str) for key, v in space.items())
    for name in ("seeds", "tuning_seeds"):
        seeds = found.get(name)
        good &= isinstance(seeds, list) and all(map(is_count, seeds))
    good &= isinstance(methods, list) and all(_is_entry(entry, found.get("tuning_seeds")) for entry in methods)
    return cast(SweepContent, found) if good else None


def _is_entry(entry: object, seeds: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("method"), str):
        return False
    trials, chosen = entry.get("trials"), entry.get("chosen")
    if not is_count(entry.get("rows", 0)):
        return False
    if not isinstance(trials, list) or not (chosen is None or _are_settings(chosen)):
        return False
    return all(_is_trial(trial, len(seeds) if isinstance(seeds, list) else -1) for trial in trials)


def _is_trial(trial: object, seeds: int) -> bool:
    if not isinstance(trial, dict) or not _are_settings(trial.get("settings")):
        return False
    lists = [trial.get(name) for name in ("values", "losses")]
    if not all(isinstance(each, list) and len(each) == seeds for each in lists):
        return False
    numbers = [trial.get("mean"), trial.get("loss"), *(v for each in lists if isinstance(each, list) for v in each)]
    return all(v is None or finite_number(v) is not None for v in numbers)


def _are_settings(value: object) -> bool:
    return isinstance(value, dict) and all(key in FIELDS and type(v) in (str, int, float) for key, v in value.items())
