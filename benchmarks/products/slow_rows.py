"""Devices that are slow on purpose: a node's rows of digits, of which every single one takes its time to read.

Name it as a node's data: FEDVECA_NODE_DATA='benchmarks.products.slow_rows:load_{client}'. Client 0 reads a row in
SLOW_ROW_MS milliseconds, client 1 takes five times and client 2 twice as long. Rows are read one after another, as by a
device with one slow core, so that the work of a round takes its rows times a constant.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedveca.runs.experiment import Experiment
from fedveca.runs.task_data import load_data
from fedveca.tasks.datasets.dataset import Dataset
from fedveca.tasks.datasets.lazy import LazyRows

FACTORS = (1.0, 5.0, 2.0)  # by client
SLOW_ROW_MS = "SLOW_ROW_MS"
NODE_DATA = "benchmarks.products.slow_rows:load_{client}"


class SlowReader:
    """Rows in memory, each of which takes so many seconds to read."""

    fixed = True

    def __init__(self, rows: Tensor, seconds: float) -> None:
        self.rows, self.seconds, self.lock = rows, seconds, threading.Lock()
        self.shape, self.dtype = tuple(rows.shape), rows.dtype

    def read(self, index: Tensor) -> Tensor:
        with self.lock:  # rows that are read ahead wait for their turn, too
            time.sleep(self.seconds * len(index))
        return self.rows[index]


def load(client: int) -> Dataset:
    """The rows that client has of digits with three clients, as a simulation gives them to it."""
    data, shares = load_data(Experiment(clients=len(FACTORS)))
    mine = shares.rows[shares.start[client] : shares.start[client + 1]]
    seconds = FACTORS[client] * float(os.environ[SLOW_ROW_MS]) / 1000
    assert isinstance(data.x, Tensor)
    rows = LazyRows(SlowReader(data.x[mine], seconds), data.x.dtype, "slow rows")
    empty = torch.empty(0, dtype=torch.int64)
    x: Any = rows  # a data set takes both
    return dataclasses.replace(
        data, x=x, y=data.y[mine], x_test=data.x_test[empty], y_test=data.y_test[empty], writer=None
    )


load_0, load_1, load_2 = (partial(load, client) for client in range(len(FACTORS)))
