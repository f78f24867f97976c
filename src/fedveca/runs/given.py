"""Objects of the user's own in place of what an experiment names, and what the record calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from fedveca.algorithms import Algorithm
from fedveca.runs.experiment import Experiment
from fedveca.tasks.data import Dataset
from fedveca.tasks.losses import Rows
from fedveca.tasks.models import Model
from fedveca.tasks.own import OWN
from fedveca.tasks.trial import Metric, called

Partition = Sequence[Any] | Callable[[Dataset, int, int], Sequence[Any]]  # each client's rows; or of (data, N, seed)


class Own(TypedDict, total=False):
    """Objects of your own in place of what the settings name; the record calls them own:NAME.

    Attributes:
        data: What from_arrays, from_torch, from_hugging_face or from_partitioner gives.
        model: A torch.nn.Module, which stays as it is, or a factory(shape, classes).
        loss: A function of (scores, y): one number a row.
        metric: A function of (scores, y): one number a row, or one of all; its name stands in the record.
        partition: Each client's training rows, or a function of (data, clients, seed) that gives them.
        method: An object with the contract of algorithms/contract.py.
    """

    data: Dataset | None
    model: Model | None
    loss: Rows | None
    metric: Metric | None
    partition: Partition | None
    method: Algorithm | None


CONTRACT = ("lr", "needs_gradient", "init", "order", "update", "memory", "start", "step", "finish")


def named(experiment: Experiment, **given: Any) -> Experiment:
    """The settings with what was given in place of what they name; ValueError where something is missing or wrong."""
    names = {key: name_of(key, thing) for key, thing in given.items() if thing is not None}
    for key in given:
        if key not in names and getattr(experiment, key).startswith(OWN):
            raise ValueError(
                f"{key}={getattr(experiment, key)} is an object that was given from Python; give it again, {key}=..."
            )
    if "method" in names:
        experiment = dataclasses.replace(experiment, lr=float(given["method"].lr))
    named: Experiment = dataclasses.replace(experiment, **names)  # type: ignore[arg-type]
    return named


def name_of(key: str, thing: Any) -> str:
    """What the record calls an object; ValueError where it cannot be one."""
    if key == "data":
        if not isinstance(thing, Dataset):
            raise ValueError(f"data is {type(thing).__name__}; from_arrays(x, y) and its like make a Dataset of it")
        return thing.name
    if key == "method":
        if isinstance(thing, type):
            raise ValueError(f"method is the class {thing.__name__}; give an object of it, {thing.__name__}(lr=...)")
        lacks = [word for word in CONTRACT if not hasattr(thing, word)]
        if lacks:
            raise ValueError(
                f"method is {type(thing).__name__}, which lacks {', '.join(lacks)}; "
                "fedveca.testing.check_algorithm tells all that a method needs"
            )
        return OWN + (" ".join(repr(thing).splitlines()) if dataclasses.is_dataclass(thing) else type(thing).__name__)
    return OWN + called(thing)
