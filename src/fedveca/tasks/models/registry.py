"""What a model is built for, and the registry of those that can be named: one file of this package per family."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from fedveca.errors import UserError
from fedveca.tasks.svm import SquaredSvm

Shape = tuple[int, ...]
NORMS = ("auto", "none", "group", "batch")
INITS = ("paper", "torch")


class Task(NamedTuple):
    """What a model is built for."""

    shape: Shape  # of a row
    outputs: int  # scores per row: classes, or numbers to predict
    y: Tensor  # a few targets
    tokens: bool  # whether rows are whole numbers for an Embedding
    init: str
    hidden: int
    standard: bool  # whether the loss is the one that the targets want, and every metric is one of labels
    layers: int = 2
    norm: str = "auto"
    dropout: float = 0.0


class ModelEntry(NamedTuple):
    """A model that can be named."""

    build: Callable[[Task], nn.Module | SquaredSvm]
    text: str
    tokens: bool = False  # whether its rows are whole numbers for an Embedding
    lr: float = 0.01  # the learning rate of an experiment that names none


MODELS: dict[str, ModelEntry] = {}
Build = TypeVar("Build", bound=Callable[[Task], nn.Module | SquaredSvm])


def named_model(name: str, text: str, *, tokens: bool = False, lr: float = 0.01) -> Callable[[Build], Build]:
    """Registers the function below it as the model `name`."""

    def register(build: Build) -> Build:
        MODELS[name] = ModelEntry(build, text, tokens, lr)
        return build

    return register


def require_images(name: str, task: Task, least: int) -> None:
    """UserError where the rows are not images of `least` x `least` pixels or more."""
    if len(task.shape) != 3 or min(task.shape[1:]) < least or task.tokens:
        raise UserError(
            f"model={name} needs images [channels, height, width] of {least} x {least} or more, not {list(task.shape)}"
        )


def require_numbers(name: str, task: Task) -> None:
    """UserError where the rows are tokens."""
    if task.tokens:
        raise UserError(f"model={name} takes numbers, and x holds tokens; take lstm, gpt or a model with an Embedding")


def require_sequences(name: str, task: Task) -> None:
    """UserError where the rows are not tokens with a target for each of them."""
    if not task.tokens or len(task.shape) != 1 or task.y.shape[1:] != task.shape or task.y.is_floating_point():
        kind = "tokens" if task.tokens else "numbers"
        raise UserError(
            f"model={name} needs rows of tokens [T] and a target for each of them, y [T], "
            f"not {kind} {list(task.shape)} with y {list(task.y.shape[1:])}"
        )
