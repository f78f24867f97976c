"""What a report says in sentences: the question, the answer, and what a figure shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from fedveca.algorithms.registry import is_pooled
from fedveca.runs.experiment import Experiment
from fedveca.runs.schema import describe_quantity, format_spread, format_value
from fedveca.runs.statistics import Spread
from fedveca.views.report.commands import find_budget_setter
from fedveca.views.series import Band, Curve, HeatMap, Row, Which, find_direction

PARTITIONS = {
    "case1": "rows are dealt in turn, so that all clients look alike (Case 1)",
    "case2": "every client has labels of its own (Case 2)",
    "case3": "half of the clients share the lower labels evenly, the others have upper labels of their own (Case 3)",
    "iid": "rows are dealt at random",
    "dirichlet": "each label is shared out by Dirichlet({concentration:g})",
    "shards": "each client has {shards} pieces of the rows sorted by label",
    "quantity": "labels are mixed, sizes are drawn from Dirichlet({concentration:g})",
    "writer": "each client has the rows of its own writers",
}
MODEL_TITLES = {"svm": "squared SVM", "cnn": "CNN", "mlp": "MLP"}
CASES = {"case1": "Case 1", "case2": "Case 2", "case3": "Case 3", "dirichlet": "Dirichlet({concentration:g})"}
DATA_TITLES = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def name_quantity(name: str) -> str:
    """A recorded quantity within a sentence: `test accuracy`."""
    label = describe_quantity(name).label
    return label[:1].lower() + label[1:]


def format_result(name: str, value: Spread) -> str:
    """A mean over seeds, with its standard deviation where there is one."""
    if value.mean is None or not value.std:
        return format_value(name, value.mean)
    return format_spread(name, value.mean, value.std) + (" %" if describe_quantity(name).unit == "share" else "")


def join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def name_task(curves: Sequence[Curve]) -> str:
    e = curves[0].runs[0].experiment
    return f"{MODEL_TITLES.get(e.model, e.model)} on {DATA_TITLES.get(e.data, e.data)}"


def make_heading(curves: Sequence[Curve]) -> str:
    """The section's name."""
    e, methods = curves[0].runs[0].experiment, {curve.method for curve in curves}
    same = _count_values(curves, "partition", "clients", "concentration") == 1
    where = f", {e.clients} clients, {_describe_rule(CASES, e, e.partition)}" if same else ""
    many = f"{len(curves)} {'methods' if len(methods) == len(curves) else 'settings'} compared"
    return f"{name_task(curves)}{where}: {curves[0].label if len(curves) == 1 else many}"


def ask_question(curves: Sequence[Curve]) -> str:
    """What was compared, in plain words."""
    e, task, labels = curves[0].runs[0].experiment, name_task(curves), join_words([curve.label for curve in curves])
    if len(curves) == 1:
        said = [f"How does {labels} train this model: {task}?"]
    elif len({curve.method for curve in curves}) == len(curves):
        said = [f"Which of {labels} trains the best {task}?"]
    else:
        said = [f"Which of these trains the best {task}: {labels}?"]
    if _count_values(curves, "clients", "partition", "concentration", "shards") == 1:
        said.append(f"{e.clients} clients; {_describe_rule(PARTITIONS, e, f'partition={e.partition}')}.")
    if _count_values(curves, "rounds", "batch", "lr") == 1:
        said.append(f"{e.rounds} rounds, mini-batches of {e.batch}, learning rate {e.lr:g}.")
    seeds = sorted({len(curve.runs) for curve in curves})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said.append(f"{many} seed{'' if seeds[-1] == 1 else 's'}{' each' if len(curves) > 1 else ''}.")
    if setter := find_budget_setter(curves):
        said.append(
            f"Every method with fixed steps may take at most as many local steps as {setter.label} took: "
            "the paper's fair protocol."
        )
    return " ".join(said)


def give_answer(curves: Sequence[Curve], rows: Sequence[Row], names: Sequence[str]) -> str:
    """The closing values in a sentence or two, and whether the seeds can tell the first two apart."""
    better = {name: find_direction((run for curve in curves for run in curve.runs), name) for name in names}
    first_known = next((n for n in names if better[n]), names[0] if names else None)
    name = next((n for n in names if better[n] == "higher"), first_known)
    if name is None:
        return "No model was tested yet."
    which: Which = "kept" if any(row.models["kept"][name].mean is not None for row in rows) else "last"
    finite = [(mean, row) for row in rows if (mean := row.models[which][name].mean) is not None]
    rivals = [(mean, row) for mean, row in finite if not is_pooled(row.method)] or finite
    if not rivals:
        return "No model has a finite test value."
    if len(rivals) == 1:
        row = rivals[0][1]
        every = (f"{name_quantity(n)} {format_result(n, row.models[which][n])}" for n in names)
        return f"{row.label}: the {which} model has {', '.join(every)}."
    if better[name] is None:
        every = (f"{row.label} {format_result(name, row.models[which][name])}" for _, row in rivals)
        unknown = "The metric does not state whether a higher or a lower value is better."
        return f"The {which} models have {name_quantity(name)}: {', '.join(every)}. {unknown}"
    rivals.sort(key=lambda rival: rival[0], reverse=better[name] == "higher")
    (value, first), (other, second) = rivals[:2]
    spreads = [row.models[which][name] for row in (first, second)]
    gap, wide = abs(value - other), math.hypot(*(spread.std for spread in spreads))
    lead = f"{100 * gap:.2f} points" if describe_quantity(name).unit == "share" else f"{gap:.4g}"
    if min(spread.n for spread in spreads) < 2:
        chance = "with one seed, this may be chance"
    else:
        chance = f"{'more' if gap > wide else 'less'} than the spread over seeds"
    return (
        f"{first.label} has the best {name_quantity(name)} of the {which} models, {format_result(name, spreads[0])}; "
        f"next is {second.label} with {format_result(name, spreads[1])}, {lead} behind: {chance}."
    )


def describe_curves(name: str, bands: Sequence[tuple[str, Band]]) -> str:
    """A figure of curves for those who do not see it."""
    ends = (
        f"{label} ends at {format_value(name, band['mean'][-1] if band['mean'] else None)}" for label, band in bands
    )
    return f"{describe_quantity(name).label} over the run, one curve each: {'; '.join(ends)}."


def describe_heat_map(title: str, heat: HeatMap) -> str:
    """A heat map in words."""
    every = [[v for v in row if v is not None] for row in heat["z"]]
    each = [f"client {i} from {min(v):g} to {max(v):g}" for i, v in zip(heat["clients"], every, strict=True) if v]
    return f"{title}, a heat map of clients and rounds: {'; '.join(each[:20])}."


def describe_line(title: str, y: Sequence[float]) -> str:
    """A line in words."""
    course = f"from {min(y):g} to {max(y):g}, {y[-1]:g} at the end" if y else "never known"
    return f"{title} over the rounds: {course}."


def _describe_rule(texts: dict[str, str], e: Experiment, other: str) -> str:
    """A partition in words; only texts from this file are templates, never one from a run folder."""
    return texts[e.partition].format(**asdict(e)) if e.partition in texts else other


def _count_values(curves: Sequence[Curve], *names: str) -> int:
    return len({tuple(getattr(run.experiment, name) for name in names) for curve in curves for run in curve.runs})
