"""The digits that come with scikit-learn: no download."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedveca.tasks.datasets.dataset import Dataset, Recommended, Request, dataset


@functools.cache
def _read_rows() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The images and the labels, from scikit-learn's file: importing the package takes longer than many a short run."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    return bunch.images, bunch.target


@dataset("digits", "1,797 digits of 8 x 8 pixels, inside scikit-learn", Recommended(rounds=80))
def load_digits(request: Request) -> Dataset:
    """1,797 images of 8 x 8 with values k/16; every fifth row is a test row."""
    images, labels = _read_rows()
    x = torch.tensor(images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(labels, dtype=torch.int64)
    test = torch.arange(len(y)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, "as-is", None)
