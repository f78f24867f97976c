"""Settings shared by all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all tests are collected
torch.set_num_threads(1)  # small operations; tests of threads ask for them
settings.register_profile("fedveca", deadline=None, derandomize=True)
settings.load_profile("fedveca")
FEDERATIONS = ("test_flower", "test_intruders", "test_flower_evaluation")  # each test starts Flower's processes
ON_RAY = (  # outside of test_ray
    "test_local_debug_and_ray_give_the_same_model",
    "test_ray_takes_the_same_rows",
    "test_rays_workers_compute_the_same",
)
LONGEST = (
    *FEDERATIONS,
    "test_docs_pages",
    "test_ray",
    "test_sweep_kill",
    "test_docs",
    "test_pages",
    "test_wheel",
    "test_kill",
    "test_hostile_folders",
    "test_stop",
    "test_fuzz",
)
BESIDE = Path(__file__).parents[2] / "shared" / "data"


def find_group(nodeid: str) -> str:
    """Tests of one group run on one worker, one after another: a file, all federations, or all that share a Ray."""
    file, _, name = nodeid.partition("::")
    if Path(file).stem in FEDERATIONS or name.endswith("[flower]"):
        return "federations"
    if Path(file).stem == "test_ray" or name.endswith("[ray]") or name.partition("[")[0] in ON_RAY:
        return "ray"
    return file


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not walk through it during the tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with groups in place of files."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_group(nodeid)

    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker ends alone with one of them."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ray ends with the last test in a row that uses it."""
    ray = sys.modules.get("ray")
    if ray and find_group(item.nodeid) == "ray" and (nextitem is None or find_group(nextitem.nodeid) != "ray"):
        ray.shutdown()


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


@pytest.fixture
def local_ray() -> None:
    """A Ray of this machine alone, the one that `engine=ray` starts by itself; tests in a row share it."""
    pytest.importorskip("ray")
    from fedveca.cohorts.ray.cohort import connect

    helpers = str(Path(__file__).parent / "helpers")  # where workers find the networks of real_models
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_raylet_start_wait_time_s", "120")  # a machine may be busy
        environment.setenv("PYTHONPATH", os.pathsep.join((helpers, os.environ.get("PYTHONPATH", ""))))
        connect("", 0)


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
