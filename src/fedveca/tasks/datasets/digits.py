"""The digits that come with scikit-learn: no download."""

from __future__ import annotations

import importlib

import torch

from fedveca.tasks.datasets.dataset import Dataset, Recommended, Request, dataset


@dataset("digits", "1,797 digits of 8 x 8 pixels, inside scikit-learn", Recommended(rounds=80))
def load_digits(request: Request) -> Dataset:
    """1,797 images of 8 x 8 with values k/16; every fifth row is a test row."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x = torch.tensor(bunch.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(bunch.target, dtype=torch.int64)
    test = torch.arange(len(y)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, "as-is", None)
