"""Heart disease in four hospitals, inside the package: no download."""

from __future__ import annotations

import importlib
import math
from importlib import resources

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.tasks.datasets.dataset import Dataset, Recommended, Request, dataset

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (0, 1, 3, 4, 5, 7, 8, 9)  # numbers and yes or no; the last three of the 13 are missing too often
CATEGORICAL = {2: (2, 3, 4), 6: (1, 2)}  # chest pain and ECG at rest: a column for each but the first
TRAIN = 0.66
SPLIT_SEED = 43


@dataset(
    "heart",
    "740 patients of four hospitals, with or without heart disease",
    Recommended(model="logistic", partition="iid", rounds=15, batch=4),
)
def load_heart(request: Request) -> Dataset:
    """UCI's Heart Disease as FLamby's Fed-Heart-Disease has it: features, split and scale.

    Rows that lack one of the first ten features are left out. 13 features: eight as they are, and indicators of the
    kinds of chest pain and ECG. 66 % of each hospital's rows train, with the same share of each label as the rest. Each
    hospital subtracts the mean of its training rows and divides by their standard deviation; a feature that is constant
    in the training rows of a hospital is only shifted. The label is 0 (no disease) or 1.
    """
    parts: list[tuple[Tensor, Tensor, NDArray[np.bool_]]] = []
    for name in HOSPITALS:
        x, y = read_hospital(name)
        train = split_rows(y)
        mean, deviation = x[train].mean(0), x[train].std(0)
        parts.append(((x - mean) / torch.where(deviation > 0, deviation, 1.0), y, train))
    x, y, x_test, y_test = (
        torch.cat([part[column][part[2] == train] for part in parts]) for train in (True, False) for column in (0, 1)
    )
    sizes = torch.tensor([int(train.sum()) for _, _, train in parts])
    writer = torch.arange(len(HOSPITALS)).repeat_interleave(sizes)
    return Dataset("heart", x, y, x_test, y_test, 2, "as-is", writer)


def read_hospital(name: str) -> tuple[Tensor, Tensor]:
    """Features [n, 13] and labels [n] of the rows of a hospital that are complete."""
    folder = resources.files("fedveca") / "tasks" / "datasets" / "heart_disease"
    lines = (folder / f"processed.{name}.data").read_text("ascii").split()
    table = np.array([[float(v) if v not in ("", "?") else math.nan for v in line.split(",")] for line in lines])
    table = table[~np.isnan(table[:, :10]).any(1)]
    kinds = [table[:, column] == kind for column, known in CATEGORICAL.items() for kind in known]
    x = np.stack([*(table[:, column] for column in COLUMNS), *kinds], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(table[:, 13] > 0, dtype=torch.int64)


def split_rows(y: Tensor) -> NDArray[np.bool_]:
    """[n]: which rows train; each label in its share, where it has more than two rows."""
    counts = torch.bincount(y, minlength=2)
    split = importlib.import_module("sklearn.model_selection").train_test_split
    rows, _ = split(
        np.arange(len(y)),
        test_size=1.0 - TRAIN,
        train_size=TRAIN,
        random_state=SPLIT_SEED,
        stratify=y.numpy() if bool((counts > 2).all()) else None,
    )
    train = np.zeros(len(y), dtype=np.bool_)
    train[rows] = True
    return train
