"""Custom data, models, loss, metric, partition and method that some golden runs give from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from fedveca import Dataset, FedProx, from_arrays


class Objects(TypedDict, total=False):
    """What `fedveca.run` takes in place of a setting."""

    data: Dataset
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Tensor]
    partition: Callable[[Dataset, int, int], list[list[int]]]
    method: FedProx


def make_network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The factory that a setting names as `golden.custom:make_network`."""
    features = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 10), nn.Tanh(), nn.Linear(10, classes))


def focal_loss(scores: Tensor, y: Tensor) -> Tensor:
    right = torch.log_softmax(scores, -1).gather(-1, y[:, None])[:, 0]
    return -((1 - right.exp()) ** 2) * right


def margin(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(-1, y[:, None])[:, 0] - scores.mean(-1)


def deal_rows(data: Dataset, clients: int, seed: int) -> list[list[int]]:
    """Client i owns the rows whose number leaves i when divided by the clients, and the first owns more."""
    rows = range(len(data.y))
    return [[row for row in rows if max(0, row % (clients + 1) - 1) == i] for i in range(clients)]


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """[150, 4] inputs and [150] numbers that depend on them."""
    random = np.random.default_rng(7)
    x = random.normal(size=(150, 4))
    return x, x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * random.normal(size=150)


def make_objects(name: str) -> Objects:
    """The objects of the golden run `name`; most have none."""
    x, numbers = make_rows()
    if name == "custom-objects":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        labels = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
        return {
            "data": from_arrays(x, labels), "model": model, "loss": focal_loss, "metric": margin,
            "partition": deal_rows,
        }  # fmt: skip
    if name == "custom-method":
        return {"method": FedProx(lr=0.04, mu=0.3)}
    if name == "cnn-images":
        random = np.random.default_rng(8)
        labels = np.arange(90) % 3
        pictures = random.integers(0, 128, (90, 1, 8, 8)) + 40 * labels[:, None, None, None]
        return {"data": from_arrays(pictures.astype(np.uint8), labels)}
    return {"data": from_arrays(x, numbers)} if name == "regression" else {}
