"""What a report says in words: the question, the answer, what a figure shows, how to run it again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from fedveca.algorithms.registry import is_pooled, paper_methods
from fedveca.runs.experiment import FIELDS, Experiment, preset, presets
from fedveca.runs.folder import Run
from fedveca.views.series import ALIKE, Curve, best, number, rises

PARTITION = {
    "case1": "rows are dealt in turn, so that all clients look alike (Case 1)",
    "case2": "every client has labels of its own (Case 2)",
    "case3": "half of the clients share the lower labels evenly, the others have upper labels of their own (Case 3)",
    "iid": "rows are dealt at random",
    "dirichlet": "each label is shared out by Dirichlet({concentration:g})",
    "shards": "each client has {shards} pieces of the rows sorted by label",
    "quantity": "labels are mixed, sizes are drawn from Dirichlet({concentration:g})",
    "writer": "each client has the rows of its own writers",
}
MODEL = {"svm": "squared SVM", "cnn": "CNN", "mlp": "MLP"}
CASES = {"case1": "Case 1", "case2": "Case 2", "case3": "Case 3", "dirichlet": "Dirichlet({concentration:g})"}
DATA = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def shown(name: str, value: float | None, std: float = 0.0) -> str:
    """A metric's value, accuracies in percent; with its spread where there is one."""
    value = number(value)
    if value is None:
        return "-"
    scale, unit = (100, " %") if "accuracy" in name else (1, "")
    text = f"{scale * value:.2f}" if unit else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
    spread = (f" ±{scale * std:.2f}" if unit else f" ±{std:.4f}" if std < 1000 else f" ±{std:.4g}") if std else ""
    return text + spread + unit


def called(name: str) -> str:
    """A recorded name as words."""
    return name.replace("_", " ")


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def task(found: Sequence[Curve]) -> str:
    e = found[0].runs[0].experiment
    return f"{MODEL.get(e.model, e.model)} on {DATA.get(e.data, e.data)}"


def heading(found: Sequence[Curve]) -> str:
    """The section's name."""
    e, methods = found[0].runs[0].experiment, {curve.method for curve in found}
    same = len(_values(found, "partition", "clients", "concentration")) == 1
    where = f", {e.clients} clients, {_rule(CASES, e, e.partition)}" if same else ""
    many = f"{len(found)} {'methods' if len(methods) == len(found) else 'settings'} compared"
    return f"{task(found)}{where}: {found[0].label if len(found) == 1 else many}"


def question(found: Sequence[Curve]) -> str:
    """What was compared, in plain words."""
    e, methods = found[0].runs[0].experiment, list(dict.fromkeys(curve.method for curve in found))
    if len(found) == 1:
        asked = f"How does {found[0].label} train this model: {task(found)}?"
    elif len(methods) == len(found):
        asked = f"Which of {listed([curve.label for curve in found])} trains the best {task(found)}?"
    else:
        asked = f"Which of these trains the best {task(found)}: {listed([curve.label for curve in found])}?"
    told = []
    if len(_values(found, "clients", "partition", "concentration", "shards")) == 1:
        told.append(f"{e.clients} clients; {_rule(PARTITION, e, f'partition={e.partition}')}.")
    if len(_values(found, "rounds", "batch", "lr")) == 1:
        told.append(f"{e.rounds} rounds, mini-batches of {e.batch}, learning rate {e.lr:g}.")
    seeds = sorted({len(curve.runs) for curve in found})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    told.append(f"{many} seed{'' if seeds[-1] == 1 else 's'}{' each' if len(found) > 1 else ''}.")
    rivals = [run for curve in found if curve.method != "fedveca" for run in curve.runs]
    if rivals and "fedveca" in methods and all(run.experiment.tau_all for run in rivals):
        told.append("Every method may take as many local steps as FedVeca took: the paper's fair protocol.")
    return " ".join([asked, *told])


def answer(found: Sequence[Curve], rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """The closing values in a sentence or two, and whether the seeds can tell the first two apart."""
    name = next((n for n in names if rises(n)), names[0] if names else None)
    if name is None:
        return "No model was tested yet."
    which = "kept" if any(row["kept"][name]["mean"] is not None for row in rows) else "last"
    rivals = [row for row in rows if row[which][name]["mean"] is not None and not is_pooled(row["method"])]
    rivals = rivals or [row for row in rows if row[which][name]["mean"] is not None]
    if not rivals:
        return "No model has a finite test value."
    rivals.sort(key=lambda row: row[which][name]["mean"], reverse=rises(name))
    first, value = rivals[0], rivals[0][which][name]
    if len(rivals) == 1:
        every = (f"{called(n)} {shown(n, first[which][n]['mean'], first[which][n]['std'])}" for n in names)
        return f"{first['label']}: the {which} model has {', '.join(every)}."
    second = rivals[1]
    other = second[which][name]
    gap, wide = abs(value["mean"] - other["mean"]), math.hypot(value["std"], other["std"])
    lead = f"{100 * gap:.2f} points" if "accuracy" in name else f"{gap:.4g}"
    if min(value["count"], other["count"]) < 2:
        chance = "one seed cannot tell that from chance"
    else:
        chance = f"{'more' if gap > wide else 'less'} than the seeds spread"
    return (
        f"{first['label']} has the best {called(name)} of the {which} models, "
        f"{shown(name, value['mean'], value['std'])}; next is {second['label']} with "
        f"{shown(name, other['mean'], other['std'])}, {lead} behind: {chance}."
    )


def ends(found: Sequence[Curve], name: str) -> str:
    """A figure of curves for those who do not see it."""
    said = []
    for curve in found:
        known = [v for run in curve.runs for v in map(number, run.column(name)[-1:]) if v is not None]
        said.append(f"{curve.label} ends at {shown(name, sum(known) / len(known) if known else None)}")
    return f"{called(name)} over the run, one curve each: {'; '.join(said)}."


def commands(found: Sequence[Curve]) -> list[str]:
    """What makes these runs again: the fair comparison where they are one, else every curve by itself."""
    methods, first = [curve.method for curve in found], found[0].runs[0].experiment
    seeds = [run.experiment.seed for run in found[0].runs]
    row = list(range(seeds[0], seeds[0] + len(seeds)))
    same = all([run.experiment.seed for run in curve.runs] == row for curve in found)
    alike = len(_values(found, *(set(FIELDS) - {"method", *ALIKE}))) == 1
    if methods == list(paper_methods()) and same and alike:
        return [f"fedveca compare {' '.join(command(first, ('method', 'tau_all')))} --seeds {len(seeds)}"]
    every = [run for curve in found for run in curve.runs]
    return [f"fedveca run {' '.join(command(run.experiment))}" for run in every[:100]]


def command(e: Experiment, but: Sequence[str] = ()) -> list[str]:
    """The nearest preset, and what differs from it."""
    wanted = {key: value for key, value in asdict(e).items() if key not in (*but, "data_dir")}
    near = min(presets(), key=lambda name: len(_differing(wanted, name)))
    return [near, *(shlex.quote(f"{key}={wanted[key]}") for key in _differing(wanted, near))]


def _differing(wanted: dict[str, Any], name: str) -> list[str]:
    has = _preset(name)
    return [key for key, value in wanted.items() if has[key] != value]


@cache
def _preset(name: str) -> dict[str, Any]:
    return asdict(Experiment(**preset(name)))


def settings(runs: Sequence[Run]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Settings that all runs share, and those that differ with their values."""
    each = [asdict(run.experiment) for run in runs]
    values = {key: list(dict.fromkeys(settings[key] for settings in each)) for key in FIELDS}
    return {k: v[0] for k, v in values.items() if len(v) == 1}, {k: v for k, v in values.items() if len(v) > 1}


def marked(rows: Sequence[dict[str, Any]], row: dict[str, Any], which: str, name: str) -> bool:
    """Whether this is the best of several in its column."""
    mean = row[which][name]["mean"]
    return len(rows) > 1 and mean is not None and not is_pooled(row["method"]) and mean == best(rows, which, name)


def _rule(texts: dict[str, str], e: Experiment, other: str) -> str:
    """A partition in words; only texts from this file are templates, never one from a run folder."""
    return texts[e.partition].format(**asdict(e)) if e.partition in texts else other


def _values(found: Sequence[Curve], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(getattr(run.experiment, name) for name in names) for curve in found for run in curve.runs}
