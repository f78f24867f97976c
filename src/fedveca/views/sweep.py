"""What terminal and report say of a sweep: which values were chosen, how good they are, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedveca.runs.folder import Run
from fedveca.runs.search import TriedValue
from fedveca.runs.statistics import mean_and_spread
from fedveca.runs.sweep_file import (
    REPORTED,
    SWEEP_FILE,
    TUNING,
    SweepContent,
    TuningEntry,
    choose_trial,
    list_edges,
    read_sweep,
)
from fedveca.views.comparison_text import format_result, name_quantity
from fedveca.views.series import find_look


class ChosenRow(NamedTuple):
    """One method of a sweep, in words."""

    label: str
    chosen: str
    value: str  # its mean, on validation rows where there are any, and the spread over tuning seeds
    tried: str


def list_chosen(content: SweepContent) -> list[ChosenRow]:
    """What was chosen for each method, in the order of the sweep."""
    return [_describe_entry(content, entry) for entry in content["methods"]]


def explain_sweep(content: SweepContent) -> list[str]:
    """Sentences to read below the chosen values."""
    seeds, share = content["tuning_seeds"], f"{100 * content['val']:g} %"
    quantity = name_quantity(content["quantity"])
    by = f"best {quantity} of the kept models on {share} of each client's rows"
    by = by if content["val"] else f"lowest {quantity} of a run, the rule of keep=best"
    each = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    said = [
        f"Each method has the settings with the {by}, with {each}; the seeds of the comparison, and test rows, had no "
        "part in the choice."
    ]
    if content["state"] == "tuning":
        said.insert(0, "The sweep is not finished: what is shown is the best so far.")
    edges = [
        f"{find_look(entry['method'])[0]} {', '.join(found)}"
        for entry in content["methods"]
        if (found := list_edges(entry))
    ]
    if edges:
        said.append(f"At the edge of what was tried, so that a value beyond it may be better: {'; '.join(edges)}.")
    if tuned := [entry["rows"] for entry in content["methods"] if "rows" in entry]:
        runs = sum(len(entry["trials"]) for entry in content["methods"]) * len(seeds)
        said.append(f"The choice took {runs:,} runs and {sum(tuned):,} gradient rows.")
    failed = sum(None in trial["values"] for entry in content["methods"] for trial in entry["trials"])
    if failed:
        said.append(f"{failed} of the settings diverged on at least one seed and were not chosen.")
    return said


def find_sweeps(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Path, SweepContent]]]:
    """The runs to compare and the sweeps that they belong to.

    Runs that tuned are left out where a run of their comparison is among the runs: they chose its settings.
    """
    homes = {home: content for run in runs if (home := _find_home(run)) and (content := read_sweep(home))}
    reported = {home for run in runs if (home := _find_home(run)) in homes and _find_part(run) == REPORTED}
    left = [run for run in runs if not (_find_part(run) == TUNING and _find_home(run) in reported)]
    return left, [(home, content) for home, content in homes.items() if home in reported]


def format_settings(settings: Mapping[str, TriedValue] | None) -> str:
    """Settings as the command line has them; a dash for none."""
    return " ".join(f"{key}={value}" for key, value in (settings or {}).items()) or "-"


def _describe_entry(content: SweepContent, entry: TuningEntry) -> ChosenRow:
    best = choose_trial(entry["trials"], content["better"])
    value = format_result(content["quantity"], mean_and_spread(best["values"])) if best else "-"
    chosen = entry["chosen"] if entry["chosen"] is not None or not best else best["settings"]
    return ChosenRow(find_look(entry["method"])[0], format_settings(chosen), value, str(len(entry["trials"])))


def _find_part(run: Run) -> str:
    """The folder of a sweep in which a run lies, if it does."""
    parents = run.folder.parents if run.folder else ()
    if len(parents) > 1 and parents[0].name == REPORTED:
        return REPORTED
    return TUNING if len(parents) > 2 and parents[1].name == TUNING else ""


def _find_home(run: Run) -> Path | None:
    """The folder of the sweep in which a run lies."""
    part = _find_part(run)
    if not part or run.folder is None:
        return None
    home = run.folder.parents[1 if part == REPORTED else 2]
    return home if (home / SWEEP_FILE).is_file() else None
