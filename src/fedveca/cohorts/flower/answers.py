"""What a node is asked for and what it answers: its task, its rows, and the form of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Order
from fedveca.algorithms.layout import NO_LAYOUT, Layout
from fedveca.cohorts.answer_form import find_answer
from fedveca.cohorts.flower.messages import Value


class NodeTask(NamedTuple):
    """What the clients' model and loss are, as far as orders and answers depend on them."""

    note: Mapping[str, Value]  # what every node must know besides the order: classes, pixels
    statistics: int = 0  # numbers of the model's running statistics S
    scores: Mapping[str, tuple[float, float]] = {}  # what an evaluation gives, by name, and its range
    layout: Layout = NO_LAYOUT  # of the model
    variances: Tensor | None = None  # which running statistics are variances, [S] of bool: none may become negative


class NodeRows(NamedTuple):
    """How many rows a client has."""

    train: int  # D_i
    val: int = 0  # held back
    test: int = 0


class PendingOrder(NamedTuple):
    """An order on its way."""

    message: str  # its id
    round: int
    until: float  # when Flower drops it


class AnswerForm(NamedTuple):
    """What a client sends that has taken its steps."""

    numbers: set[str]
    vectors: dict[str, int]  # the length of each

    @staticmethod
    def find(algorithm: Algorithm, order: Order, want_loss: bool, want_loss_after: bool, statistics: int) -> AnswerForm:
        """As a client that takes no step finds it."""
        vectors, numbers = find_answer(algorithm, order)
        losses = {"loss"} if want_loss or algorithm.needs_loss or algorithm.needs_gradient else set()
        lengths = vectors | ({STATISTICS: statistics} if statistics else {})
        return AnswerForm(numbers | losses | ({"after"} if want_loss_after else set()), lengths)
