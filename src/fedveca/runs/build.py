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
from fedveca.tasks import data as datasets
from fedveca.tasks.data import Dataset
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares, partition
from fedveca.tasks.problem import Problem


class Built(NamedTuple):
    """An experiment's parts, ready for `federate`."""

    data: Dataset
    shares: Shares
    problem: Problem
    algorithm: Algorithm
    cohort: Any  # a Cohort with the clients' memory
    state: Any


def build(
    experiment: Experiment,
    device: str = "cpu",
    data: Dataset | None = None,
    say: Callable[[str], None] | None = None,
    cohort: Any = None,
) -> Built:
    """Data, partition, problem, method and cohort; ValueError with one sentence where they do not fit.

    Where the clients are elsewhere `cohort` is given; their rows are then theirs, and need not be here.
    """
    e = experiment
    if cohort is None:
        data, shares = deal(e, data, say)
    else:
        assert data is not None
        shares = Shares(torch.empty(0, dtype=torch.int64), torch.cat([torch.zeros(1).long(), cohort.sizes.cumsum(0)]))
    problem = model(
        e.model, tuple(data.x_test.shape[1:]), data.classes,
        init=e.init, hidden=e.hidden, precision=e.precision, seed=e.seed,
    )
    algorithm = method(e)
    cohort = cohort or Local(
        algorithm, problem, data.x, data.y, shares, batch=e.batch, seed=e.seed, probe=e.probe,
        loss=e.keep != "last", after=e.keep == "rollback", pixels=data.pixels, device=device,
    )
    state = algorithm.init(problem.init().to(device), steps(e, cohort.sizes))
    return Built(data, shares, problem, algorithm, cohort, state)


def deal(
    experiment: Experiment, data: Dataset | None = None, say: Callable[[str], None] | None = None
) -> tuple[Dataset, Shares]:
    """The data set and which client owns which of its rows."""
    e = experiment
    if data is None:
        data = datasets.load(
            e.data, e.data_dir, clients=e.clients, heterogeneity=e.heterogeneity, seed=e.seed, say=say
        )
    if e.pixels in ("unit", "standardised") and data.x.dim() != 4:
        raise ValueError(f"pixels={e.pixels} needs images; rows of {e.data} have the shape {list(data.x.shape[1:])}")
    if e.pixels != "auto":
        data = dataclasses.replace(data, pixels=e.pixels)
    if e.batch > len(data.y):
        raise ValueError(f"batch={e.batch} is more than the {len(data.y)} training rows")
    alone = e.method == "centralised"  # FedAvg with one client
    shares = partition(
        "case1" if alone else e.partition, data.y, data.classes, 1 if alone else e.clients, seed=e.seed,
        concentration=e.concentration, shards=e.shards, writer=data.writer,
    )
    return data, shares


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
