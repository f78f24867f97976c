"""Metrics against values worked by hand, block by block, and what is said of metrics that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedveca.errors import UserError
from fedveca.models import to_group_norm
from fedveca.runs.experiment import Experiment
from fedveca.tasks.metrics import (
    METRICS,
    Auc,
    Metric,
    RowMetric,
    Table,
    WholeMetric,
    close_counts,
    count_block,
    evaluate_rows,
)
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.svm import SquaredSvm

# targets      0 0 0 0  1 1 1  2 2  -     four classes, of which the last is neither in the targets nor predicted
# predictions  0 0 0 1  1 1 0  1 1  -     class 2 is never predicted
#
#            predicted 0  1  2  3
# target 0             3  1  0  0       recall 3/4   precision 3/4   F1 2*3/(4 + 4) = 3/4
# target 1             1  2  0  0       recall 2/3   precision 2/5   F1 2*2/(3 + 5) = 1/2
# target 2             0  2  0  0       recall 0     precision 0/0   F1 0
TARGETS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1, 1])
TABLE = [[3, 1, 0, 0], [1, 2, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]]
BY_HAND = {
    "accuracy": 5 / 9,
    "f1": (3 / 4 + 1 / 2 + 0) / 3,
    "precision": (3 / 4 + 2 / 5 + 0) / 3,
    "recall": (3 / 4 + 2 / 3 + 0) / 3,
    "balanced_accuracy": (3 / 4 + 2 / 3 + 0) / 3,
}


class Echo(nn.Module):
    """Gives its rows as scores, so that a test can choose them; its weight is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def evaluate(metric: Metric, scores: Tensor, y: Tensor, block: int = 1000) -> float | Table:
    problem = ModuleProblem(Echo(), metrics=(metric,))
    blocks = zip(torch.split(scores, block), torch.split(y, block), strict=True)
    return evaluate_rows(problem, problem.init(), blocks)[metric.name]


def one_hot(predicted: Tensor, classes: int) -> Tensor:
    return nn.functional.one_hot(predicted, classes).float()


@pytest.mark.parametrize("block", [1, 2, 4, 9])
@pytest.mark.parametrize("name", list(BY_HAND))
def test_metrics_of_classes_by_hand(name: str, block: int) -> None:
    found = evaluate(METRICS[name], one_hot(PREDICTED, 4), TARGETS, block)
    assert found == pytest.approx(BY_HAND[name], abs=1e-6)


@pytest.mark.parametrize("block", [1, 5, 9])
def test_the_confusion_matrix_has_targets_in_rows_and_predictions_in_columns(block: int) -> None:
    assert evaluate(METRICS["confusion"], one_hot(PREDICTED, 4), TARGETS, block) == TABLE


def test_a_class_that_is_only_predicted_counts_in_recall_but_not_in_balanced_accuracy() -> None:
    """Targets 0 0 1, predictions 0 2 1: recall 1/2, 1 and, of class 2, 0; F1 2/3, 1, 0; precision 1, 1, 0."""
    scores, y = one_hot(torch.tensor([0, 2, 1]), 3), torch.tensor([0, 0, 1])
    assert evaluate(METRICS["recall"], scores, y) == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert evaluate(METRICS["balanced_accuracy"], scores, y) == pytest.approx((1 / 2 + 1) / 2)
    assert evaluate(METRICS["f1"], scores, y) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert evaluate(METRICS["precision"], scores, y) == pytest.approx((1 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("label", "right"),
    [(0, True), (1, True), (2, True), (3, True), (4, True), (5, False), (6, False)],
)
def test_top5_by_hand(label: int, right: bool) -> None:
    """Scores fall from class 0 to class 6: the label is among the five highest up to class 4."""
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]])
    assert evaluate(METRICS["top5"], scores, torch.tensor([label])) == right
    assert evaluate(METRICS["top5"], torch.zeros(1, 7), torch.tensor([label])) == right  # equal scores: by class
    assert evaluate(METRICS["top5"], torch.full((1, 7), math.nan), torch.tensor([label])) == 0


# class 1 has the scores 3, 2, 1; class 0 has 2, 1, 0, -1. Of 12 pairs, 3 beats four, 2 ties one and beats three,
# 1 loses to one, ties one and beats two: 4 + 3.5 + 2.5 = 10
POSITIVE, NEGATIVE = [3.0, 2.0, 1.0], [2.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize("block", [1, 3, 7])
def test_auc_by_hand(block: int) -> None:
    score = torch.tensor(POSITIVE + NEGATIVE)
    y = torch.tensor([1] * 3 + [0] * 4)
    pairs = torch.stack([5 - score / 2, 5 + score / 2], 1)  # only the difference counts
    assert evaluate(METRICS["auc"], pairs, y, block) == pytest.approx(10 / 12)
    assert evaluate(METRICS["auc"], -pairs, y, block) == pytest.approx(2 / 12)
    assert evaluate(METRICS["auc"], pairs, 1 - y, block) == pytest.approx(2 / 12)
    alone = METRICS["auc"]
    assert isinstance(alone, Auc)
    for one in (score, score[:, None]):  # a single score is that of class 1
        assert alone.close(alone.count(one, y), 7) == pytest.approx(10 / 12)


def test_a_value_that_is_not_defined_is_nan() -> None:
    scores, y = torch.randn(4, 2), torch.ones(4).long()
    assert math.isnan(evaluate(METRICS["auc"], scores, y))  # type: ignore[arg-type]
    ignored = torch.full((2, 3), -100)
    assert math.isnan(evaluate(METRICS["f1"], torch.randn(2, 3, 4), ignored))  # type: ignore[arg-type]
    assert math.isnan(evaluate(METRICS["perplexity"], torch.randn(2, 3, 4), ignored))  # type: ignore[arg-type]
    assert math.isnan(evaluate(METRICS["auc"], torch.full((4, 2), math.nan), torch.tensor([0, 1, 0, 1])))  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_perplexity_by_hand(block: int) -> None:
    """Labels have the probabilities 1/2, 1/4 and 1/8: the perplexity is the third root of 2 * 4 * 8, which is 4."""
    p = torch.tensor([[1 / 2, 1 / 2], [3 / 4, 1 / 4], [1 / 8, 7 / 8]])
    assert evaluate(METRICS["perplexity"], p.log(), torch.tensor([0, 1, 0]), block) == pytest.approx(4)


def test_absolute_error_by_hand() -> None:
    scores, y = torch.tensor([[1.0], [5.0], [2.0]]), torch.tensor([2.0, 2.0, 2.0])
    problem = ModuleProblem(Echo(), loss=lambda s, y: (s[:, 0] - y) ** 2, metrics=(METRICS["absolute_error"],))
    assert evaluate_rows(problem, problem.init(), [(scores, y)]) == {
        "loss": pytest.approx((1 + 9 + 0) / 3),
        "absolute_error": pytest.approx((1 + 3 + 0) / 3),
    }


# sequences: y [B, T], where -100 does not count

SEQUENCE = torch.tensor([[0, 1, -100], [1, -100, -100]])
OF_PLACES = one_hot(torch.tensor([[0, 0, 1], [1, 0, 0]]), 2)  # right, wrong, -; right, -, -


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", (1 / 2 + 1) / 2),  # the mean over rows of the share of a row's places
        ("recall", (1 + 1 / 2) / 2),  # over places: class 0 once right, class 1 once right and once wrong
        ("precision", (1 / 2 + 1) / 2),
        ("f1", (2 / 3 + 2 / 3) / 2),
        ("confusion", [[1, 0], [1, 1]]),
        ("auc", 3 / 4),  # class 1 has the scores -1 and 1, class 0 has -1: one pair is right, one is a tie
    ],
)
def test_places_whose_label_does_not_count(name: str, value: float | Table, block: int) -> None:
    assert evaluate(METRICS[name], OF_PLACES, SEQUENCE, block) == (
        value if isinstance(value, list) else pytest.approx(value)
    )


def test_top5_and_perplexity_of_sequences() -> None:
    scores = torch.tensor([7.0, 6, 5, 4, 3, 2, 1]).expand(2, 3, 7)
    y = torch.tensor([[4, 5, -100], [0, -100, -100]])
    assert evaluate(METRICS["top5"], scores, y) == pytest.approx((1 / 2 + 1) / 2)
    scores = torch.tensor([[[1 / 2, 1 / 2], [3 / 4, 1 / 4], [0.9, 0.1]]]).log()
    assert evaluate(METRICS["perplexity"], scores, torch.tensor([[0, 1, -100]])) == pytest.approx(math.sqrt(8))


def test_a_functions_values_of_places_that_do_not_count_are_left_out() -> None:
    def right(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.argmax(-1) == y).float() + (y < 0) * 50

    assert evaluate(RowMetric("right", function=right), OF_PLACES, SEQUENCE) == pytest.approx((1 / 2 + 1) / 2)
    assert evaluate(RowMetric("right", function=right), OF_PLACES[:, :1], SEQUENCE[:, :1]) == pytest.approx(1)


# functions of the user's


def test_a_function_of_all_rows_sees_all_rows_whatever_the_blocks() -> None:
    def largest(scores: Tensor, y: Tensor) -> Tensor:
        return (scores[:, 0] - y).abs().max()

    scores, y = torch.tensor([[1.0], [5.0], [2.0], [9.0], [0.0]]), torch.tensor([0, 0, 0, 0, 0])
    for block in (1, 2, 5):
        assert evaluate(WholeMetric("largest", function=largest), scores, y, block) == 9


def test_the_blocks_do_not_change_a_problems_values() -> None:
    names = "accuracy,f1,balanced_accuracy,precision,recall,top5,perplexity,confusion"
    problem = model("mlp", (8,), 8, metric=names)
    assert [metric.name for metric in problem.metrics] == names.split(",")
    x, y = torch.randn(101, 8), torch.arange(101) % 8
    w = problem.init()
    whole = evaluate_rows(problem, w, [(x, y)])
    assert list(whole) == ["loss", *names.split(",")]
    for block in (1, 7, 100):
        parts = evaluate_rows(problem, w, zip(torch.split(x, block), torch.split(y, block), strict=True))
        assert parts.pop("confusion") == whole["confusion"]
        assert parts == {name: pytest.approx(whole[name], rel=1e-5) for name in parts}


def test_a_further_metric_does_not_change_the_loss_or_the_first_by_a_bit() -> None:
    x, y = torch.randn(1000, 8), torch.arange(1000) % 8
    found = []
    for names in ("accuracy", "accuracy,f1,top5,perplexity,confusion"):
        problem = model("mlp", (8,), 8, metric=names)
        found.append(evaluate_rows(problem, problem.init(), zip(x.split(13), y.split(13), strict=True)))
    assert (found[0]["loss"], found[0]["accuracy"]) == (found[1]["loss"], found[1]["accuracy"])


def test_sums_over_blocks_are_those_of_two_columns() -> None:
    """As version 0.1 added them up: a block's mean in float32, times its rows in float64, then over the blocks."""
    problem = model("mlp", (8,), 8)
    x, y = torch.randn(997, 8), torch.arange(997) % 8
    w, blocks = problem.init(), list(zip(x.split(13), y.split(13), strict=True))
    assert isinstance(problem, ModuleProblem)
    rows = []
    for a, b in blocks:
        scores = problem.scores(w, a)
        right = (scores.argmax(-1) == b).float().mean()
        rows.append(
            len(b) * torch.stack([nn.functional.cross_entropy(scores, b, reduction="none").mean(), right]).double()
        )
    loss, accuracy = (torch.stack(rows).sum(0) / len(y)).tolist()
    assert evaluate_rows(problem, w, blocks) == {"loss": loss, "accuracy": accuracy}


def test_no_rows_at_all() -> None:
    found = close_counts((METRICS["accuracy"], METRICS["absolute_error"]), [])
    assert math.isnan(found["loss"])  # type: ignore[arg-type]


def test_without_running_statistics_the_block_would_decide_the_accuracy() -> None:
    """So such a model is rejected, and the module that the sentence names gives the same values for any block."""
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    module = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 3))
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    with pytest.raises(UserError, match=r"^the model \(Sequential\): 1 has no running statistics .*to_group_norm$"):
        model("custom", (4,), 3, custom=module)
    problem = model("custom", (4,), 3, custom=to_group_norm(module))
    found = [evaluate_rows(problem, problem.init(), zip(x.split(n), y.split(n), strict=True)) for n in (1, 7, 60)]
    assert [each["accuracy"] for each in found] == pytest.approx([found[0]["accuracy"]] * 3)
    assert [each["loss"] for each in found] == pytest.approx([found[0]["loss"]] * 3, rel=1e-5)


# the SVM: even labels are class 0, odd ones class 1


def test_the_svms_classes_are_even_and_odd() -> None:
    names = "accuracy,f1,recall,precision,auc,confusion"
    problem = model("svm", (1,), 10, metric=names)
    assert isinstance(problem, SquaredSvm)
    x, y = torch.tensor([[2.0], [1.0], [-1.0], [-2.0], [0.0]]), torch.tensor([4, 3, 6, 9, 2])
    w = torch.ones(1)  # even, even, odd, odd, and a row on the boundary
    for targets in (y, problem.targets(y)):
        found = evaluate_rows(problem, w, [(x, targets)])
        assert found["accuracy"] == pytest.approx(2 / 5)  # rows 0 and 3; one on the boundary is wrong
        assert found["confusion"] == [[2, 1], [1, 1]]  # where a class is named, the boundary is even
        assert found["auc"] == pytest.approx(4 / 6)  # odd: scores -1 and 2; even: -2, 1 and 0
    assert float(count_block(problem, w, x, y).loss) == pytest.approx(5 * float(problem.losses(w, x, y)[0]))


# what is rejected


def test_a_metric_of_several_columns_is_rejected() -> None:
    def two(scores: Tensor, y: Tensor) -> Tensor:
        right = (scores.argmax(-1) == y).float()
        return torch.stack([right, 1 - right], 1)

    said = r"^metric \(two\) gives \[8, 2\] for 8 rows; it gives one number, or one per row; "
    with pytest.raises(UserError, match=said + r"give several metrics as a list, metric=\[f, g\]$"):
        model("mlp", (4,), 3, metric=two)


def test_one_number_per_target_of_a_row_is_a_metric() -> None:
    def error(scores: Tensor, y: Tensor) -> Tensor:
        return (scores - y).abs()

    y = torch.rand(8, 2)
    problem = model("mlp", (4,), 0, metric=error, sample=(torch.rand(8, 4), y))
    assert isinstance(problem.metrics[0], RowMetric)
    found = evaluate_rows(problem, problem.init(), [(torch.rand(8, 4), y)])
    assert isinstance(found["error"], float)


@pytest.mark.parametrize("form", [(), (1,)])
def test_one_number_for_all_rows_is_a_metric_of_all_rows(form: tuple[int, ...]) -> None:
    def share(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.argmax(-1) == y).float().mean().view(form)

    problem = model("mlp", (4,), 3, metric=share)
    assert isinstance(problem.metrics[0], WholeMetric)


@pytest.mark.parametrize(
    ("names", "classes", "said"),
    [
        ("auc", 3, "metric=auc needs 2 classes; there are 3"),
        ("accuracy,top5", 5, "metric=top5 needs at least 6 classes; there are 5"),
        ("accuracy,confusion", 101, "metric=confusion needs at most 100 classes; there are 101"),
    ],
)
def test_a_metric_that_needs_other_classes(names: str, classes: int, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}$"):
        model("mlp", (4,), classes, metric=names)


def test_metrics_of_labels_are_not_for_numbers() -> None:
    sample = torch.rand(8, 4), torch.rand(8)
    with pytest.raises(UserError, match=r"metric=f1 is for labels; y holds numbers: take absolute_error$"):
        model("mlp", (4,), 0, metric="absolute_error,f1", sample=sample)
    with pytest.raises(UserError, match=r"^metric=top5 needs at least 6 classes; there are 2$"):
        model("svm", (4,), 10, metric="accuracy,top5")
    with pytest.raises(UserError, match=r"^model=svm has its own loss"):
        model("svm", (4,), 10, metric="absolute_error")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("", "metric= is not a list of metrics; it is names with commas between, such as accuracy,f1"),
        ("accuracy,", "metric=accuracy,: '' is not known"),
        (
            "auto,acuracy",
            "metric=auto,acuracy: 'acuracy' is not known .did you mean accuracy.*; allowed: some of auto, ",
        ),
        ("f1,accuracy,f1", "metric=f1,accuracy,f1 names f1 twice; name each metric once"),
        ("confusion", "metric=confusion starts with a table; .*name a number before it, such as accuracy,confusion"),
    ],
)
def test_the_setting_is_checked(metric: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        Experiment(metric=metric)


def test_names_may_have_spaces_between() -> None:
    problem = model("mlp", (4,), 3, metric=Experiment(metric="accuracy, f1").metric)
    assert [metric.name for metric in problem.metrics] == ["accuracy", "f1"]
    problem = model("mlp", (4,), 3, metric="f1,auto")
    assert [metric.name for metric in problem.metrics] == ["f1", "accuracy"]


def test_functions_and_names_in_one_list() -> None:
    def right(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.argmax(-1) == y).float()

    problem = model("mlp", (4,), 3, metric=[right, "f1", "confusion"])
    assert [metric.name for metric in problem.metrics] == ["right", "f1", "confusion"]
    for wrong, said in (
        ([right, right], "^metric has two called right; give one function or several, each with a name of its own$"),
        ([], "^metric is an empty list; give one function or several"),
        (["confusion", right], "^metric starts with confusion, a table; the first one is what curves show"),
        ([right, "f3"], r"^metric=f3 is not known; allowed: accuracy \| .*, or a function of \(scores, y\)$"),
        ([right, 3], r"^metric is int; it is a function of \(scores, y\)$"),
    ):
        with pytest.raises(UserError, match=said):
            model("mlp", (4,), 3, metric=wrong)  # type: ignore[arg-type]


def test_metrics_are_values_that_can_be_compared() -> None:
    assert replace(METRICS["f1"], better="lower") != METRICS["f1"]
