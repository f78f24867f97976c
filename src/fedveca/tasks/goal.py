"""What is minimised and what is reported: the loss and the metrics that settings or functions name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedveca.errors import UserError
from fedveca.tasks.losses import LOSSES, Rows
from fedveca.tasks.metric_settings import parse_metrics
from fedveca.tasks.metrics import METRICS, Metric, MetricFunction, RowMetric, read_direction

Metrics = str | MetricFunction | Sequence[str | MetricFunction]  # names with commas between, a function, or several


class Goal(NamedTuple):
    """What is minimised and what is reported."""

    loss: Rows
    metrics: tuple[Metric, ...]  # test_<name> in the record; the first is the main one
    classes: int

    @staticmethod
    def of(loss: str | Rows, metric: Metrics, classes: int) -> Goal:
        """Names or functions; auto is what labels (classes > 0) or numbers want."""
        if loss == "auto":
            loss = "cross_entropy" if classes else "squared_error"
        if not isinstance(loss, str) and not callable(loss):
            raise UserError(f"loss is {type(loss).__name__}; it is a function of (scores, y)")
        return Goal(LOSSES[loss] if isinstance(loss, str) else loss, make_metrics(metric, classes), classes)


def make_metrics(given: Metrics, classes: int) -> tuple[Metric, ...]:
    """The metrics that a setting or a user's functions name; auto is what labels (classes > 0) or numbers want.

    Raises:
        UserError: Where one is neither a name nor a function, two have the same name, or the first is a table.
    """
    each = parse_metrics(given) if isinstance(given, str) else given if isinstance(given, Sequence) else (given,)
    found = tuple(_make_metric(one, classes) for one in each)
    names = [metric.name for metric in found]
    if not names or len({*names}) < len(names):
        said = f"metric has two called {max(names, key=names.count)}" if names else "metric is an empty list"
        raise UserError(f"{said}; give one function or several, each with a name of its own")
    if found[0].table:
        raise UserError(
            f"metric starts with {names[0]}, a table; the first one is what curves show: put a number first"
        )
    return found


def _make_metric(given: str | MetricFunction, classes: int) -> Metric:
    if isinstance(given, str):
        name = ("accuracy" if classes else "absolute_error") if given == "auto" else given
        if name not in METRICS:
            raise UserError(f"metric={name} is not known; allowed: {' | '.join(METRICS)}, or a function of (scores, y)")
        return METRICS[name]
    if not callable(given):
        raise UserError(f"metric is {type(given).__name__}; it is a function of (scores, y)")
    name = display_name(given)
    if name == "loss":
        raise UserError("metric is called 'loss', a name that the record uses itself; give the function another name")
    if not name.isidentifier():
        raise UserError(f"metric is called {name!r}; its name is in the record: give a function made by def")
    unit = getattr(given, "unit", "")
    return RowMetric(name, "", read_direction(given, f"metric ({name})"), unit, function=given)


def check_classes(metrics: Sequence[Metric], classes: int) -> None:
    """UserError where a metric needs more or fewer classes than there are."""
    for metric in metrics:
        if metric.labels and not metric.least <= classes <= metric.most:
            low, high = metric.least, metric.most
            need = f"{low}" if low == high else f"at least {low}" if classes < low else f"at most {high}"
            raise UserError(f"metric={metric.name} needs {need} classes; there are {classes}")


def display_name(thing: Any) -> str:
    """What to call an object of the user's: a function's own name, else that of its class."""
    return str(getattr(thing, "__name__", type(thing).__name__))
