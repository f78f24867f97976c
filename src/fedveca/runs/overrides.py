"""Objects of the user's own in place of what an experiment names, and what the record calls them."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import torch

from fedveca.algorithms import Algorithm
from fedveca.algorithms.hyper import to_python
from fedveca.algorithms.registry import load_method
from fedveca.algorithms.registry import methods as known_methods
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.errors import UserError, explain_error, show_value
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import Diverged, RunningStatistics, federate
from fedveca.runs.folder import Run
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS, MOST_SEEDS, MOST_WORKERS, range_of
from fedveca.tasks.augment import Augmentation
from fedveca.tasks.custom import check_dataset
from fedveca.tasks.datasets.dataset import DATASETS, Dataset
from fedveca.tasks.goal import Metrics, display_name
from fedveca.tasks.losses import Rows
from fedveca.tasks.models import Model
from fedveca.tasks.names import CUSTOM
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem

Partition = Sequence[Any] | Callable[[Dataset, int, int], Sequence[Any]]  # each client's rows; or of (data, N, seed)


class CustomObjects(TypedDict, total=False):
    """Objects of your own in place of what the settings name; the record calls them custom:NAME.

    Attributes:
        data: What from_arrays, from_torch, from_hugging_face or from_partitioner gives.
        model: A torch.nn.Module, which stays as it is, or a factory(shape, classes).
        loss: A function of (scores, y): one number per row.
        metric: A function of (scores, y): one number per row, or one for all rows; its name is in the record. Several
            are a list of such functions and of names of built-in ones; the first is what curves and tables show.
        partition: Each client's training rows, or a function of (data, clients, seed) that gives them.
        method: An object of a subclass of fedveca.algorithms.Algorithm.
        augment: A function of a batch x [B, ...] that gives x, changed at random; it draws with torch's functions.
    """

    data: Dataset | None
    model: Model | None
    loss: Rows | None
    metric: Metrics | None
    partition: Partition | None
    method: Algorithm | None
    augment: Augmentation | None


MOST_TRIED = 100  # clients of a trial round


def check_functions(**functions: Any) -> None:
    """ValueError where what is to be called cannot be."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UserError(f"{name}={show_value(function)} is not a function; it is one, or None")


def check_experiment(experiment: Any) -> None:
    """ValueError where the settings are not an Experiment."""
    if isinstance(experiment, Experiment):
        return
    way = "Experiment(rounds=10) makes one"
    if isinstance(experiment, str):
        way = "Experiment.preset('digits-case3') makes one of a preset"
        if experiment in presets():
            way = f"Experiment.preset({experiment!r}) makes one of this preset"
    elif isinstance(experiment, dict):
        way = "Experiment(**settings) makes one of a dict"
    elif isinstance(experiment, type):
        way = f"{experiment.__name__}() makes one"
    raise UserError(f"experiment={show_value(experiment)} is not an Experiment; {way}")


def check_folder(out: Any) -> None:
    """ValueError where a folder cannot have this path."""
    if not isinstance(out, str | os.PathLike) or isinstance(os.fspath(out), bytes):
        raise UserError(f"out={show_value(out)} is not a path; it is a folder's, text or a pathlib.Path")
    if not os.fspath(out):
        raise UserError("out='' is empty; name a folder")
    try:
        os.lstat(out)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"out={show_value(os.fspath(out))} cannot be a folder: {reason}") from error


def check_seeds_and_methods(seeds: Any, methods: Any, workers: Any) -> tuple[Any, ...]:
    """The methods to compare; ValueError where they, or the counts, are none."""
    for name, count, most in (("seeds", seeds, MOST_SEEDS), ("workers", workers, MOST_WORKERS)):
        if type(count) is not int or not 1 <= count <= most:
            raise UserError(f"{name}={show_value(count)} is out of range; it is a whole number from 1 to {most}")
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not methods:
        raise UserError(f"methods={show_value(methods)} are no methods; they are a tuple such as ('fedveca', 'fedavg')")
    for method in methods:
        if not isinstance(method, str):
            name_of("method", method)
        elif ":" in method and not method.startswith(CUSTOM):
            load_method(method)
        elif method not in known_methods():
            raise UserError(
                f"methods: {show_value(method)} is not known; it is one of {', '.join(known_methods())}, "
                "package.module:Class, or an object"
            )
    return tuple(methods)


def try_method(method: Algorithm, problem: Problem, data: Dataset, shares: Shares, e: Experiment, device: str) -> None:
    """ValueError where a method fails in two small rounds: every client with one row, one step and a copy of it."""
    clients = len(shares.sizes)
    if clients > MOST_TRIED:
        return
    said = f"method ({type(method).__name__})"
    try:
        method = copy.deepcopy(method).with_layout(problem.layout)
    except Exception:  # what cannot be copied is not tried
        return
    few = Shares(shares.rows[shares.start[:-1]], torch.arange(clients + 1))
    with torch.random.fork_rng(devices=[]):
        try:
            cohort = LocalCohort(
                method,
                problem,
                data.x,
                data.y,
                few,
                batch=2 if problem.statistics else 1,
                seed=e.seed,
                probe=1,
                want_loss=e.keep != "last",
                want_loss_after=e.keep == "rollback",
                pixels=data.pixels,
                device=device,
            )
            first = method.init(problem.init().to(device), torch.ones(clients, dtype=torch.int64))
            running = RunningStatistics(problem.initial_statistics().to(device)) if problem.statistics else None
            for state, record in federate(
                method, cohort, first, 2, participation=e.participation, seed=e.seed, statistics=running
            ):
                if state.w.shape != (problem.size,) or len(state.tau) != clients:
                    got = f"w {list(state.w.shape)} and tau {list(state.tau.shape)}"
                    raise UserError(f"update gives {got}, not [{problem.size}] and [{clients}]")
                json.dumps(record)
        except Diverged:
            return
        except Exception as error:
            raise UserError(
                f"{said} fails in a small trial round: {explain_error(error)}; see fedveca.testing.check_algorithm"
            ) from error


def check_runs(runs: Any) -> list[Run]:
    """The runs to show; ValueError where there are none, or something else."""
    found = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str | bytes) else [runs]
    if not found or not all(isinstance(run, Run) for run in found) or isinstance(runs, Run):
        odd = next((run for run in found if not isinstance(run, Run)), runs)
        raise UserError(
            f"runs: {show_value(odd)} is not a list of runs; they are what run, compare and Run.open return"
        )
    return found


def name_objects(experiment: Experiment, **given: Any) -> Experiment:
    """The settings with what was given in place of what they name; ValueError where something is missing or wrong."""
    check_experiment(experiment)
    names = {key: name_of(key, thing) for key, thing in given.items() if thing is not None}
    for key in given:
        if key not in names and getattr(experiment, key).startswith(CUSTOM):
            raise UserError(
                f"{key}={getattr(experiment, key)} is an object that was given from Python; give it again, {key}=..."
            )
    if "method" in names:
        lr: Any = to_python(getattr(given["method"], "lr", None))  # for the settings to check
        experiment = dataclasses.replace(experiment, lr=lr)
    named: Experiment = dataclasses.replace(experiment, **names)  # type: ignore[arg-type]
    return named


def name_of(key: str, thing: Any) -> str:
    """What the record calls an object; ValueError where it cannot be one."""
    if key == "data":
        if not isinstance(thing, Dataset):
            raise UserError(f"data is {type(thing).__name__}; from_arrays(x, y) and its like make a Dataset of it")
        if not isinstance(thing.name, str) or not (thing.name.startswith(CUSTOM) or thing.name in DATASETS):
            raise UserError(
                f"data is a Dataset called {show_value(thing.name)}; the name of your own starts with {CUSTOM}"
            )
        check_dataset(thing)
        return thing.name
    if key in ("loss", "metric") and isinstance(thing, str):
        raise UserError(
            f"{key}={thing!r} is a name, which goes into the settings: Experiment({key}=...), "
            f"{range_of(FIELDS[key])}; here it is a function of (scores, y)"
        )
    if key == "augment" and isinstance(thing, str):
        raise UserError(
            f"augment={thing!r} is text, which goes into the settings: Experiment(augment=...); "
            "here it is a function of a batch x [B, ...]"
        )
    if key == "method":
        if isinstance(thing, type):
            raise UserError(f"method is the class {thing.__name__}; give an object of it, {thing.__name__}(lr=...)")
        if not isinstance(thing, Algorithm):
            raise UserError(
                f"method is {type(thing).__name__}, which is not a subclass of fedveca.algorithms.Algorithm; "
                "subclass it and define update and finish"
            )
        return CUSTOM + (
            " ".join(repr(thing).splitlines()) if dataclasses.is_dataclass(thing) else type(thing).__name__
        )
    if key == "metric" and isinstance(thing, Sequence):
        if thing and all(isinstance(each, str) for each in thing):
            raise UserError(
                f"metric={show_value(thing)} holds names only, which go into the settings: "
                f"Experiment(metric={','.join(thing)!r}); here at least one is a function of (scores, y)"
            )
        return CUSTOM + ",".join(each if isinstance(each, str) else display_name(each) for each in thing)
    return CUSTOM + display_name(thing)
