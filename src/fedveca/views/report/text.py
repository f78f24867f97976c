"""What a report says in sentences: the question, and what a figure shows; views/comparison_text.py has the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fedveca.runs.budget import COST_NAMES
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.schema import describe_quantity
from fedveca.runs.value_text import format_value
from fedveca.views.comparison import find_protocol, is_exact_share
from fedveca.views.run_text import list_run_warnings
from fedveca.views.series import Band, Curve, HeatMap

PARTITIONS = {
    "case1": "rows are dealt in turn, so that all clients look alike (Case 1)",
    "case2": "every client has labels of its own (Case 2)",
    "case3": "half of the clients share the lower labels evenly, the others have upper labels of their own (Case 3)",
    "iid": "rows are dealt at random",
    "dirichlet": "each label is shared out by Dirichlet({concentration:g})",
    "dirichlet_niid": "each label is shared out by Dirichlet({concentration:g}) as in NIID-Bench",
    "dirichlet_balanced": "clients are of equal size, their labels are drawn from Dirichlet({concentration:g})",
    "labels": "each client has {labels_per_client} of the labels",
    "shards": "each client has {shards} pieces of the rows sorted by label",
    "quantity": "labels are mixed, sizes are drawn from Dirichlet({concentration:g})",
    "power_law": "labels are mixed, sizes fall as 1 / rank^{exponent:g}",
    "writer": "each client has the rows of its own writers",
}
PARTITION_SETTINGS = (
    "clients",
    "partition",
    "concentration",
    "shards",
    "labels_per_client",
    "exponent",
    "feature_noise",
)
MODEL_TITLES = {"svm": "squared SVM", "cnn": "CNN", "mlp": "MLP"}
CASES = {"case1": "Case 1", "case2": "Case 2", "case3": "Case 3", "dirichlet": "Dirichlet({concentration:g})"}
MOST_LABELS = 7  # in one sentence; the table has them all
MOST_WARNINGS = 12  # of one section
DATA_TITLES = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


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


def list_warnings(curves: Sequence[Curve]) -> list[str]:
    """What went wrong in the runs of a section: losses that grew, what the guard did, and runs that ended early."""
    found = [f"{c.label}, seed {run.experiment.seed}: {text}" for c in curves for run in c.runs for text in _warn(run)]
    more = len(found) - MOST_WARNINGS
    return [*found[:MOST_WARNINGS], f"{more} more are in the run folders"] if more > 0 else found


def _warn(run: Run) -> list[str]:
    """Of one run, which need not have ended."""
    texts = list_run_warnings(run)
    return [*texts, f"stopped: {run.summary['stopped']}"] if "stopped" in run.summary else texts


def ask_question(curves: Sequence[Curve]) -> str:
    """What was compared, in plain words."""
    e, task, labels = curves[0].runs[0].experiment, name_task(curves), join_words([curve.label for curve in curves])
    methods = {curve.method for curve in curves}
    if len(curves) == 1:
        said = [f"How does {labels} train this model: {task}?"]
    elif len(curves) > MOST_LABELS:
        said = [
            f"Which of {len(curves)} settings of {len(methods)} method{'s'[: len(methods) - 1]} trains the best {task}?"
        ]
    elif len(methods) == len(curves):
        said = [f"Which of {labels} trains the best {task}?"]
    else:
        said = [f"Which of these trains the best {task}: {labels}?"]
    if _count_values(curves, *PARTITION_SETTINGS) == 1:
        said.append(f"{e.clients} clients; {_describe_rule(PARTITIONS, e, f'partition={e.partition}')}.")
    if _count_values(curves, "rounds", "batch", "lr") == 1:
        rounds = f"{e.rounds} round{'' if e.rounds == 1 else 's'}"
        said.append(f"{rounds}, mini-batches of {e.batch}, learning rate {e.lr:g}.")
    seeds = sorted({len(curve.runs) for curve in curves})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said.append(f"{many} seed{'' if seeds[-1] == 1 else 's'}{' each' if len(curves) > 1 else ''}.")
    if protocol := find_protocol(curves):
        label, name = protocol.setter.label, COST_NAMES[protocol.kind]
        many = "takes as many" if is_exact_share(curves) else "may take at most as many"
        if protocol.kind == "steps":
            said.append(f"Every method with fixed steps {many} local steps as {label} took: the paper's fair protocol.")
        else:
            said.append(f"Every method takes as many rounds as the {name} of {label} allow.")
    return " ".join(said)


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
