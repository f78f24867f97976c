"""Settings shared by all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; where there is none, tests that open pages are skipped and say so."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
