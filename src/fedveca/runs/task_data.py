"""The rows of an experiment: the data set, who owns which rows, and which of them are held back."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
from torch import Tensor

from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.holdout import Holdout, hold_out
from fedveca.errors import UserError, explain_error
from fedveca.runs.experiment import Experiment, find_default
from fedveca.runs.folder_types import RowForm
from fedveca.runs.overrides import Partition
from fedveca.tasks.datasets import dataset as datasets
from fedveca.tasks.datasets.dataset import CHANNELS, Dataset, Inputs, measure_channels, prepare
from fedveca.tasks.datasets.lazy import LazyRows, take_first
from fedveca.tasks.models import Sample
from fedveca.tasks.noise import add_noise
from fedveca.tasks.partition import Shares, from_lists, partition


def choose_sample(x: Tensor | LazyRows, y: Tensor, classes: int, pixels: str, inputs: Inputs) -> Sample | None:
    """Real rows to try a model on, where random numbers and one label per row would not do."""
    usual = classes and x.dtype != torch.int64 and y.dim() == 1 and not inputs
    if usual:
        return None
    some = take_first(x)
    return prepare(some, pixels), y[: len(some)]


def describe_rows(data: Dataset) -> RowForm:
    """What a model of these data takes."""
    return {
        "shape": list(data.x_test.shape[1:]),
        "tokens": data.x_test.dtype == torch.int64,
        "targets": list(data.y_test.shape[1:]),
        "classes": data.classes,
        "pixels": data.pixels,
    }


def holds_back(e: Experiment) -> bool:
    """Whether clients hold rows back, to be evaluated only."""
    return e.val > 0 or e.test_by != "server"


def hold_back(e: Experiment, owned: Shares) -> Holdout:
    """Each client's rows in parts; the one client of a pooled method trains on what all clients would.

    The simulator and a node, which has its own rows only, ask here.
    """
    held = hold_out(owned, e.seed, val=e.val, test=e.test_share if e.test_by != "server" else 0.0)
    if is_pooled(e.method) and holds_back(e):
        rows = torch.unique(held.train.rows)
        return held._replace(train=Shares(rows, torch.tensor([0, len(rows)])))
    return held


def check_held(e: Experiment, val: Tensor, test: Tensor) -> None:
    """UserError where no client has a row to evaluate; `val` and `test` [N] are the rows that each holds back."""
    for name, wanted, sizes in (("val", e.val > 0, val), ("test_share", e.test_by != "server", test)):
        if wanted and int(sizes.sum()) == 0:
            raise UserError(f"{name}={getattr(e, name)} leaves no client a row to hold back; take a larger share")


def load_data(
    e: Experiment,
    data: Dataset | None = None,
    custom: Partition | None = None,
    *,
    pool: bool = True,
) -> tuple[Dataset, Shares]:
    """The data set and which client owns which of its rows; one client owns all for a pooled method, with `pool`."""
    if data is None:
        data = datasets.load(e.data, e.data_dir, clients=e.clients, heterogeneity=e.heterogeneity, seed=e.seed)
    if e.pixels in ("unit", "standardised", CHANNELS) and e.pixels != data.pixels and data.x.dim() != 4:
        raise UserError(f"pixels={e.pixels} needs images; rows of {e.data} have the shape {list(data.x.shape[1:])}")
    if e.pixels == CHANNELS:
        moments = data.channels or measure_channels(data.x)
        data = dataclasses.replace(data, pixels=moments.describe())
    elif e.pixels != "auto":
        data = dataclasses.replace(data, pixels=e.pixels)
    if e.batch > len(data.y):
        raise UserError(f"batch={e.batch} is more than the {len(data.y)} training rows; take a smaller one")
    pooled = pool and is_pooled(e.method)
    shares = _deal_rows(e, data, custom, alone=pooled and not e.feature_noise)
    if e.feature_noise:  # noise is the owner's: a client's rows are copies of its own, in its order
        clients = len(shares.sizes)
        x = add_noise(data.x, shares, clients, e.feature_noise, e.seed, pixels=data.pixels, inputs=data.inputs)
        writer = None if data.writer is None else data.writer[shares.rows]
        data = dataclasses.replace(data, x=cast(Tensor, x), y=data.y[shares.rows], writer=writer)
        rows = torch.arange(len(shares.rows))
        shares = Shares(rows, torch.tensor([0, len(rows)]) if pooled else shares.start)
    return data, shares


def _deal_rows(e: Experiment, data: Dataset, custom: Partition | None, alone: bool) -> Shares:
    """Which client owns which rows; with `alone`, one client owns all."""
    if custom is None:
        try:
            return partition(
                "case1" if alone else e.partition,
                data.y,
                data.classes,
                1 if alone else e.clients,
                seed=e.seed,
                concentration=e.concentration,
                shards=e.shards,
                labels_per_client=e.labels_per_client,
                exponent=e.exponent,
                writer=data.writer,
            )
        except UserError as error:
            if alone or e.partition != find_default("partition", e):
                raise
            raise UserError(f"{error} (partition={e.partition} is the default with data={e.data})") from error
    if callable(custom):
        try:
            custom = custom(data, e.clients, e.seed)
        except Exception as error:
            raise UserError(f"partition ({e.partition}) fails: {explain_error(error)}") from error
    shares = from_lists(custom, len(data.y))
    return from_lists([torch.unique(shares.rows)], len(data.y)) if alone else shares
