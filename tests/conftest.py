"""Settings shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # small operations; tests of threads ask for them
settings.register_profile("fedveca", deadline=None, derandomize=True)
settings.load_profile("fedveca")
LONGEST = (
    "test_flower",
    "test_intruders",
    "test_flower_evaluation",
    "test_sweep_kill",
    "test_docs_pages",
    "test_ray",
    "test_docs",
    "test_pages",
    "test_wheel",
    "test_kill",
    "test_hostile_folders",
    "test_stop",
    "test_fuzz",
)
BESIDE = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker ends alone with one of them."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(autouse=True)
def _registered_methods() -> Iterator[None]:
    """A method that a test registers is gone after it."""
    from fedveca.algorithms import registry

    registry.methods()
    entries, imported = dict(registry._entries), set(registry._imported)
    yield
    registry._entries.clear()
    registry._entries.update(entries)
    registry._imported.intersection_update(imported)


@pytest.fixture(scope="session")
def mnist_dir() -> str:
    """A folder with MNIST: FEDVECA_DATA, the one beside the checkout, or what the package can fetch."""
    for folder in (os.environ.get("FEDVECA_DATA"), BESIDE):
        if folder and (Path(folder) / "mnist").is_dir():
            return str(folder)
    from fedveca.tasks.datasets.download import get

    return str(get("mnist").parent)


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """A Ray of this file alone, whose workers find the modules in tests/helpers."""
    ray = pytest.importorskip("ray")
    helpers = str(Path(__file__).parent / "helpers")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("PYTHONPATH", os.pathsep.join((helpers, os.environ.get("PYTHONPATH", ""))))
        ray.shutdown()  # another file of the same process may have left one
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, one for all tests of a file: while it is open, its own event loop holds the thread."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: `make browser` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()
