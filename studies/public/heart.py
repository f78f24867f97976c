"""FLamby's Fed-Heart-Disease as its benchmark has it: a model with one score, and test rows on two scales.

FLamby trains on rows that each hospital scales by its own statistics. Its "pooled test" scales the same test rows by
the statistics of all training rows together, whichever way the model was trained; the published table has that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedveca import Dataset, from_arrays
from fedveca.tasks.datasets.heart import HOSPITALS, read_hospital, split_rows


class Rows(NamedTuple):
    """The rows of one hospital, on two scales."""

    own: Tensor  # [n, 13] by the hospital's training rows
    pooled: Tensor  # [n, 13] by the training rows of all hospitals
    y: Tensor  # [n]
    train: Tensor  # [n] bool


class OneScore(nn.Module):
    """Logistic regression with one score; the other label's is 0, so that cross-entropy is that of a sigmoid."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        score = self.linear(x)
        return torch.cat((torch.zeros_like(score), score), -1)


def make_model(shape: tuple[int, ...], classes: int) -> OneScore:
    """For `model = "studies.public.heart:make_model"`."""
    return OneScore(shape[0])


def read_rows() -> list[Rows]:
    """Of the four hospitals."""
    parts = []
    for name in HOSPITALS:
        x, y = read_hospital(name)
        parts.append((x, y, torch.from_numpy(split_rows(y))))
    every = torch.cat([x[train] for x, _, train in parts])
    return [Rows(_scale(x, x[train]), _scale(x, every), y, train) for x, y, train in parts]


def _scale(x: Tensor, known: Tensor) -> Tensor:
    deviation = known.std(0)
    return (x - known.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def load_rows(method: str) -> Dataset:
    """What a method trains on, and the pooled test: the pooled training has the pooled scale in both."""
    rows = read_rows()
    x = torch.cat([(part.pooled if method == "centralised" else part.own)[part.train] for part in rows])
    y = torch.cat([part.y[part.train] for part in rows])
    test = torch.cat([part.pooled[~part.train] for part in rows]), torch.cat([part.y[~part.train] for part in rows])
    writer = torch.arange(len(rows)).repeat_interleave(torch.tensor([int(part.train.sum()) for part in rows]))
    return from_arrays(x, y, test=test, writer=writer, name="heart")


def rate_hospitals(model: Mapping[str, Tensor]) -> list[float]:
    """The accuracy of a model on each hospital's test rows, on the hospital's scale."""
    module = OneScore(13)
    module.load_state_dict(dict(model))
    with torch.no_grad():
        right = [module(part.own[~part.train]).argmax(1) == part.y[~part.train] for part in read_rows()]
    return [round(float(part.float().mean()), 6) for part in right]
