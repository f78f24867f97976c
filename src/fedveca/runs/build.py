"""An experiment's parts: data, partition, problem, method and cohort, made to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, FedAvg, FedNova, FedProx, FedVeca, Scaffold
from fedveca.cohorts.draws import per_round
from fedveca.cohorts.local import Local
from fedveca.runs.experiment import Experiment
from fedveca.runs.given import Partition, named
from fedveca.tasks import data as datasets
from fedveca.tasks import models
from fedveca.tasks.data import Dataset, prepare
from fedveca.tasks.fetch import silent
from fedveca.tasks.losses import Rows
from fedveca.tasks.models import Model
from fedveca.tasks.own import OWN
from fedveca.tasks.partition import Shares, given, partition
from fedveca.tasks.problem import Problem
from fedveca.tasks.trial import Metric, why


class Built(NamedTuple):
    """An experiment's parts, ready for `federate`."""

    data: Dataset
    shares: Shares
    problem: Problem
    algorithm: Algorithm
    cohort: Local
    state: Any
    experiment: Experiment  # with the names of the objects that were given


def build(
    experiment: Experiment,
    device: str = "cpu",
    data: Dataset | None = None,
    say: Callable[[str], None] | None = silent,
    *,
    model: Model | None = None,
    loss: Rows | None = None,
    metric: Metric | None = None,
    partition: Partition | None = None,
    method: Algorithm | None = None,
) -> Built:
    """Data, partition, problem, method and cohort; ValueError with one sentence where they do not fit."""
    e = named(experiment, data=data, model=model, loss=loss, metric=metric, partition=partition, method=method)
    if data is None:
        data = datasets.load(
            e.data, e.data_dir, clients=e.clients, heterogeneity=e.heterogeneity, seed=e.seed, say=say
        )
    if e.pixels in ("unit", "standardised") and data.x.dim() != 4:
        raise ValueError(f"pixels={e.pixels} needs images; rows of {e.data} have the shape {list(data.x.shape[1:])}")
    if e.pixels != "auto":
        data = dataclasses.replace(data, pixels=e.pixels)
    if e.batch > len(data.y):
        raise ValueError(f"batch={e.batch} is more than the {len(data.y)} training rows; take a smaller one")
    shares = _shares(e, data, partition)
    if partition is not None and e.method != "centralised":
        e = dataclasses.replace(e, clients=len(shares.sizes))
    sample = (prepare(data.x_test, data.pixels), data.y_test) if e.data.startswith(OWN) or loss or metric else None
    problem = models.model(
        e.model, tuple(data.x.shape[1:]), data.classes, init=e.init, hidden=e.hidden, precision=e.precision,
        seed=e.seed, own=model, loss=loss or e.loss, metric=metric or e.metric, sample=sample,
    )
    algorithm = _algorithm(e, method)
    cohort = Local(
        algorithm, problem, data.x, data.y, shares, batch=e.batch, seed=e.seed, probe=e.probe,
        loss=e.keep != "last", after=e.keep == "rollback", pixels=data.pixels, device=device,
    )
    state = algorithm.init(problem.init().to(device), steps(e, shares.sizes))
    return Built(data, shares, problem, algorithm, cohort, state, e)


def _algorithm(e: Experiment, own: Algorithm | None) -> Algorithm:
    return method(e) if own is None else own


def _shares(e: Experiment, data: Dataset, own: Partition | None) -> Shares:
    alone = e.method == "centralised"  # FedAvg with one client
    if own is None:
        return partition(
            "case1" if alone else e.partition, data.y, data.classes, 1 if alone else e.clients, seed=e.seed,
            concentration=e.concentration, shards=e.shards, writer=data.writer,
        )
    if callable(own):
        try:
            own = own(data, e.clients, e.seed)
        except Exception as error:
            raise ValueError(f"partition ({e.partition}) fails: {why(error)}") from error
    shares = given(own, len(data.y))
    return given([torch.unique(shares.rows)], len(data.y)) if alone else shares


def method(e: Experiment) -> Algorithm:
    if e.method == "fedveca":
        return FedVeca(e.lr, e.alpha, e.tau_max)
    if e.method == "fedprox":
        return FedProx(e.lr, e.mu)
    if e.method == "fednova":
        return FedNova(e.lr)
    if e.method == "scaffold":
        return Scaffold(e.lr)
    return FedAvg(e.lr)


def steps(e: Experiment, sizes: Tensor) -> Tensor:
    """[N] tau_(0,i): the paper's fair share floor(tau_all / K * D_i / D) where tau_all is given, else tau_0.

    Where only a share of the clients takes part in a round, each takes so many more.
    """
    if e.method == "fedveca" or not e.tau_all:
        return torch.full_like(sizes, e.tau_0)
    rows = e.rounds * int(sizes.sum()) * per_round(len(sizes), e.participation)
    return (e.tau_all * sizes * len(sizes) // rows).clamp(min=1)
