"""What is reported of a model on rows: metrics, and the one function that evaluates a model block by block.

A metric is a pair: `count` makes of a block's scores and targets statistics that add up over blocks (or, where a value
needs all rows at once, stand one after another), and `close` makes of their sums the value. So no evaluation holds more
than one block of rows, and a client's, a server's and a test's values are the same numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, show_value
from fedveca.tasks.losses import IGNORED, average_places
from fedveca.tasks.names import LONGEST_UNIT, is_unit

Better = Literal["higher", "lower"]
BETTER: tuple[Better, ...] = ("higher", "lower")
Function = TypeVar("Function", bound=Callable[..., object])
MetricFunction = Callable[[Tensor, Tensor], Any]  # (scores, y) -> one number per row, or one of all rows
Parts = tuple[Tensor, ...]
Table = list[list[float]]
MOST_CLASSES = 100  # of a confusion matrix: it is in the record of every tested round


def metric(better: Better, unit: str = "") -> Callable[[Function], Function]:
    """Declares which values of a metric are better, so that reports can mark the best method.

    Args:
        better: "higher" or "lower".
        unit: What it is measured in; "share" is shown in per cent. Empty where it has no unit.

    Returns:
        A decorator that sets the attributes `better` and `unit` of the function and returns it.

    Raises:
        UserError: Where `better` is neither, or `unit` is not a short text.

    Examples:
        >>> import fedveca
        >>> @fedveca.metric(better="higher")
        ... def within_half(scores, y):
        ...     return ((scores.squeeze(-1) - y).abs() < 0.5).float()
        >>> within_half.better
        'higher'
    """
    check_direction(better, "metric")
    if not isinstance(unit, str) or not is_unit(unit):
        raise UserError(f"metric: unit={show_value(unit)} is not a unit; allowed: text of up to {LONGEST_UNIT} letters")

    def declare(function: Function) -> Function:
        vars(function).update(better=better, unit=unit)
        return function

    return declare


def read_direction(function: object, said: str) -> Better | None:
    """Which values of a metric are better; None where it does not say, so that no method is marked best."""
    found = getattr(function, "better", None)
    return None if found is None else check_direction(found, said)


def check_direction(better: object, said: str) -> Better:
    """The direction; UserError where it is neither of the two."""
    for known in BETTER:
        if better == known:
            return known
    raise UserError(f"{said}: better={show_value(better)} is not known; allowed: {' | '.join(BETTER)}")


@dataclass(frozen=True)
class Metric(ABC):
    """One value of a model on rows: its name in the record, its direction and unit, and how it is computed."""

    name: str
    text: str = ""
    better: Better | None = None
    unit: str = ""  # "share" is shown in per cent
    labels: bool = False  # whether it is for labels and scores of every class
    least: int = 0  # classes that it needs
    most: float = math.inf
    table: ClassVar[bool] = False
    gathers: ClassVar[bool] = False  # whether the parts of blocks stand one after another, instead of adding up

    @abstractmethod
    def count(self, scores: Tensor, y: Tensor) -> Parts:
        """The statistics of a block of rows; tensors of float64, where they add up."""

    @abstractmethod
    def close(self, parts: Parts, rows: int) -> float | Table:
        """The value, of the statistics of all rows."""


@dataclass(frozen=True)
class RowMetric(Metric):
    """The mean over rows of a function that gives one number per row, or one per place of a sequence."""

    function: MetricFunction = lambda scores, y: scores

    def count(self, scores: Tensor, y: Tensor) -> Parts:
        values = torch.as_tensor(self.function(scores, y), dtype=torch.float32)
        if values.shape == y.shape and _has_gaps(y):
            values = average_places(torch.where(y == IGNORED, 0.0, values), y)
        return (len(y) * values.mean().double(),)

    def close(self, parts: Parts, rows: int) -> float:
        return float(parts[0]) / rows if rows else math.nan


@dataclass(frozen=True)
class WholeMetric(Metric):
    """A function of the scores and the targets of all rows at once."""

    function: MetricFunction = lambda scores, y: math.nan
    gathers: ClassVar[bool] = True

    def count(self, scores: Tensor, y: Tensor) -> Parts:
        return scores, y

    def close(self, parts: Parts, rows: int) -> float:
        return float(torch.as_tensor(self.function(*parts), dtype=torch.float32)) if rows else math.nan


@dataclass(frozen=True)
class CountMetric(Metric):
    """A number that is computed from the confusion matrix: rows are classes of the targets, columns predictions."""

    formula: Callable[[Tensor], Tensor] = torch.sum
    labels: bool = True

    def count(self, scores: Tensor, y: Tensor) -> Parts:
        return (count_confusion(scores, y),)

    def close(self, parts: Parts, rows: int) -> float | Table:
        return float(self.formula(parts[0]))


@dataclass(frozen=True)
class TableMetric(CountMetric):
    """The confusion matrix itself."""

    table: ClassVar[bool] = True

    def close(self, parts: Parts, rows: int) -> Table:
        found: Table = parts[0].long().tolist()
        return found


@dataclass(frozen=True)
class Perplexity(Metric):
    """exp of the mean cross-entropy over the places that count."""

    labels: bool = True

    def count(self, scores: Tensor, y: Tensor) -> Parts:
        flat, labels = flatten_places(scores, y)
        total = nn.functional.cross_entropy(flat.double(), labels, reduction="sum")
        return total, torch.tensor(float(len(labels)), dtype=torch.float64, device=total.device)

    def close(self, parts: Parts, rows: int) -> float:
        return float(torch.exp(parts[0] / parts[1]))


@dataclass(frozen=True)
class Auc(Metric):
    """The share of the pairs of a row of class 1 and a row of class 0 that the scores order rightly; ties count half.

    It is exact, by ranks, so that it keeps one score per row. A single score per row is that of class 1.
    """

    labels: bool = True
    gathers: ClassVar[bool] = True

    def count(self, scores: Tensor, y: Tensor) -> Parts:
        flat, labels = flatten_places(scores if scores.dim() > y.dim() else scores[..., None], y)
        flat = flat.double()
        return flat[:, -1] - flat[:, 0] if flat.shape[1] > 1 else flat[:, 0], labels

    def close(self, parts: Parts, rows: int) -> float:
        score, y = parts
        ones = int((y == 1).sum())
        zeros = len(y) - ones
        if not ones or not zeros or bool(score.isnan().any()):
            return math.nan
        _, at, counts = torch.unique(score, return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        ranks = last - (counts.double() - 1) / 2  # from 1; rows of equal scores share the mean of theirs
        return float(ranks[at][y == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros)


def _has_gaps(y: Tensor) -> bool:
    """Whether some places of a sequence have labels that do not count."""
    return y.dim() > 1 and not y.is_floating_point() and bool((y == IGNORED).any())


def flatten_places(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[places, C] and [places]: every row, or every place of a sequence, whose label counts."""
    flat, labels = scores.reshape(-1, scores.shape[-1]), y.reshape(-1)
    counted = labels != IGNORED
    return (flat, labels) if bool(counted.all()) else (flat[counted], labels[counted])


def count_confusion(scores: Tensor, y: Tensor) -> Tensor:
    """[C, C] of float64: how often class i was predicted as class j."""
    flat, labels = flatten_places(scores, y)
    classes = flat.shape[-1]
    return torch.bincount(labels * classes + flat.argmax(-1), minlength=classes**2).view(classes, classes).double()


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / b.clamp(min=1), 0.0)


def _find_classes(table: Tensor) -> Tensor:
    """[C] bool: the classes that the targets or the predictions have."""
    return (table.sum(0) + table.sum(1)) > 0


def f1(table: Tensor) -> Tensor:
    """The mean over classes of 2 TP / (2 TP + FP + FN)."""
    return _divide(2 * table.diagonal(), table.sum(0) + table.sum(1))[_find_classes(table)].mean()


def precision(table: Tensor) -> Tensor:
    """The mean over classes of TP / (TP + FP); 0 for a class that is never predicted."""
    return _divide(table.diagonal(), table.sum(0))[_find_classes(table)].mean()


def recall(table: Tensor) -> Tensor:
    """The mean over classes of TP / (TP + FN); 0 for a class that is predicted, but that no target has."""
    return _divide(table.diagonal(), table.sum(1))[_find_classes(table)].mean()


def balanced_accuracy(table: Tensor) -> Tensor:
    """The mean over the classes of the targets of TP / (TP + FN)."""
    return _divide(table.diagonal(), table.sum(1))[table.sum(1) > 0].mean()


def accuracy(scores: Tensor, y: Tensor) -> Tensor:
    """[B]; of a sequence, the share of its places. Places whose label is -100 do not count."""
    right = (scores.argmax(-1) == y).float()
    return right if y.dim() == 1 else average_places(right, y)


def top5(scores: Tensor, y: Tensor) -> Tensor:
    """[B]: whether fewer than five classes come before the label; of equal scores the lower class comes first."""
    mine = scores.gather(-1, y.clamp(min=0)[..., None])
    classes = torch.arange(scores.shape[-1], device=scores.device)
    behind = (scores < mine) | ((scores == mine) & (classes >= y[..., None]))
    right = ((~behind).sum(-1) < 5).float()
    return right if y.dim() == 1 else average_places(torch.where(y == IGNORED, 0.0, right), y)


def absolute_error(scores: Tensor, y: Tensor) -> Tensor:
    """[B], or as many numbers per row as it has targets."""
    return (scores.reshape(y.shape) - y).abs()


METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        RowMetric("accuracy", "share of the rows with the right label", "higher", "share", True, function=accuracy),
        RowMetric("absolute_error", "mean distance to the target", "lower", function=absolute_error),
        CountMetric("f1", "F1 of each class, averaged over classes", "higher", "share", formula=f1),
        CountMetric(
            "balanced_accuracy",
            "mean share right of each class in the targets",
            "higher",
            "share",
            formula=balanced_accuracy,
        ),
        CountMetric(
            "precision", "precision of each class, averaged over classes", "higher", "share", formula=precision
        ),
        CountMetric("recall", "recall of each class, averaged over classes", "higher", "share", formula=recall),
        RowMetric(
            "top5",
            "share of the rows whose label is among the five highest scores",
            "higher",
            "share",
            True,
            6,
            function=top5,
        ),
        Auc("auc", "area under the ROC curve of two classes", "higher", "share", least=2, most=2),
        Perplexity("perplexity", "exp of the mean cross-entropy of a label", "lower"),
        TableMetric("confusion", "how often each class was predicted as each other", most=MOST_CLASSES),
    )
}


class Scorer(Protocol):
    """What an evaluation needs of a problem."""

    size: int  # P
    statistics: int  # S

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is computed besides the loss."""
        ...

    def losses(self, w: Tensor, x: Tensor, y: Tensor, statistics: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss [] and the scores [B, ...]."""
        ...

    def labels(self, y: Tensor) -> Tensor:
        """Targets as metrics take them."""
        ...


class BlockCounts(NamedTuple):
    """What a block of rows adds to an evaluation."""

    rows: int
    loss: Tensor  # [] float64: the sum over the rows
    parts: tuple[Parts, ...]  # of each metric


def count_block(problem: Scorer, model: Tensor, x: Tensor, y: Tensor) -> BlockCounts:
    """Evaluates a model, w [P] or w and running statistics [P + S], on one block of prepared rows."""
    w, running = model[: problem.size], model[problem.size :] if problem.statistics else None
    with torch.no_grad():
        loss, scores = problem.losses(w, x, y, running)
        labels = problem.labels(y)
        return BlockCounts(len(y), len(y) * loss.double(), tuple(m.count(scores, labels) for m in problem.metrics))


def close_counts(metrics: Sequence[Metric], blocks: Iterable[BlockCounts]) -> dict[str, float | Table]:
    """The loss and each metric of all blocks: `loss`, and the names of the metrics in their order."""
    every = list(blocks)
    rows = sum(block.rows for block in every)
    found: dict[str, float | Table] = {"loss": math.nan}
    if rows:
        found["loss"] = float(_add([block.loss for block in every])) / rows
    for i, each in enumerate(metrics):
        parts = zip(*(block.parts[i] for block in every), strict=True)
        join = torch.cat if each.gathers else _add
        found[each.name] = each.close(tuple(join(part) for part in parts), rows)
    return found


def _add(values: Sequence[Tensor]) -> Tensor:
    """The sum; of single numbers as one of two columns, so that its rounding is the same whatever else is added."""
    together = torch.stack(list(values))
    return together.sum(0) if together.dim() > 1 else torch.stack([together, together], 1).sum(0)[0]


def evaluate_rows(problem: Scorer, model: Tensor, blocks: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float | Table]:
    """The loss and all metrics of a model on rows, block by block.

    Args:
        problem: The problem, whose `metrics` are computed.
        model: w [P], or w and running statistics [P + S].
        blocks: Prepared rows x [B, ...] and their targets y [B, ...], a block at a time. How they are cut
            changes values by rounding at most.

    Returns:
        `loss`, and each metric by its name, in their order: numbers, and lists of lists for tables. A value that is not
        defined, such as the AUC of rows of one class, is NaN.
    """
    return close_counts(problem.metrics, (count_block(problem, model, x, y) for x, y in blocks))
