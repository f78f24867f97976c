"""Settings shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # small operations; tests of threads ask for them
settings.register_profile("fedveca", deadline=None, derandomize=True)
settings.load_profile("fedveca")
BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def mnist_dir() -> str:
    """A folder with MNIST: FEDVECA_DATA, the one beside the checkout, or what the package can fetch."""
    for folder in (os.environ.get("FEDVECA_DATA"), BESIDE):
        if folder and (Path(folder) / "mnist").is_dir():
            return str(folder)
    from fedveca.tasks.fetch import get

    return str(get("mnist").parent)
