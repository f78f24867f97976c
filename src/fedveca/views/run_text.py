"""What terminal and report say alike about single runs, in words: what went wrong, and what privacy was spent."""

from __future__ import annotations

from collections.abc import Sequence

from fedveca.runs.folder import Run
from fedveca.runs.schema import get_number
from fedveca.views.series import Curve


def list_run_warnings(run: Run) -> list[str]:
    """What went wrong in a run, which need not have ended: losses that grew, and what the guard did."""
    recorded = [record["warning"] for record in run.rounds if "warning" in record]
    texts = run.summary.get("warnings", recorded)
    guarded = [record["round"] + 1 for record in run.rounds if "guarded" in record]
    if guarded:
        times = {1: "once", 2: "twice"}.get(len(guarded), f"{len(guarded)} times")
        texts = [f"the guard returned to the best model {times}, first in round {guarded[0]}", *texts]
    return [*texts]


def get_epsilon(run: Run) -> float | None:
    """The privacy that a run has spent so far; None without differential privacy."""
    spent = get_number(run.summary, "epsilon")
    return get_number(run.rounds[-1], "epsilon") if spent is None and run.rounds else spent


def describe_privacy(run: Run) -> str:
    """The privacy that a run has spent, in a line; "" without differential privacy."""
    spent = get_epsilon(run)
    if spent is None:
        return ""
    delta = run.experiment.dp_delta
    return f"differential privacy: epsilon {spent:.4g} at delta {delta:g}, a client as the unit"


def describe_privacies(curves: Sequence[Curve]) -> str:
    """The privacy that the runs of each method have spent, in a sentence; "" without differential privacy."""
    runs = [run for curve in curves for run in curve.runs]
    each = [(c.label, [e for run in c.runs if (e := get_epsilon(run)) is not None]) for c in curves]
    ends = [(label, f"{min(spent):.4g}", f"{max(spent):.4g}") for label, spent in each if spent]
    if not ends:
        return ""
    said = [(label, low if low == high else f"{low} to {high}") for label, low, high in ends]
    alike = len({text for _, text in said}) == 1 and len(said) == len(curves)
    spent = said[0][1] if alike else " and ".join(f"{text} ({label})" for label, text in said)
    deltas = sorted({run.experiment.dp_delta for run in runs if get_epsilon(run) is not None})
    return (
        f"Differential privacy: ε = {spent} at δ = {' and '.join(f'{delta:g}' for delta in deltas)}, with a client as "
        f"the unit{', for each run' if len(runs) > 1 else ''}."
    )
