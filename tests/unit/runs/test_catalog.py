"""The catalog: what settings can name is known without PyTorch, and is what the registries hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedveca import FedAvg, method
from fedveca.algorithms.registry import methods
from fedveca.runs import catalog
from fedveca.runs.catalog import CATALOG_FILE, collect_catalog, encode_catalog, known_methods, load_catalog
from fedveca.runs.experiment import Experiment


@pytest.fixture
def unread() -> Iterator[None]:
    """The file is read again, and once more after the test."""
    load_catalog.cache_clear()
    yield
    load_catalog.cache_clear()


def test_the_file_is_what_the_registries_hold() -> None:
    again = "run: python -m fedveca.runs.catalog"
    assert CATALOG_FILE.read_text("utf-8") == encode_catalog(collect_catalog()), again
    assert list(known_methods()) == list(methods())


def test_experiments_are_checked_without_pytorch() -> None:
    code = (
        "import sys\nfrom fedveca.runs.experiment import Experiment\n"
        "from fedveca.runs.folder import Run\nfrom fedveca import UserError\n"
        "Experiment(method='scaffold', data='mnist', faults='drop:0.1')\n"
        "try: Experiment(method='fedova')\nexcept UserError as error: print(error)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("method=fedova is not known (did you mean fednova?); allowed: fedveca | fedavg")


def test_a_source_file_that_the_catalog_does_not_know_asks_the_registries(
    unread: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load_catalog()["files"] == catalog._list_files()
    load_catalog.cache_clear()
    stale = (
        CATALOG_FILE.read_text("utf-8").replace("FedAvg (McMahan", "another (McMahan").replace("fedprox.py", "old.py")
    )
    (tmp_path / "catalog.json").write_text(stale, "utf-8")
    monkeypatch.setattr(catalog, "CATALOG_FILE", tmp_path / "catalog.json")
    assert load_catalog() == collect_catalog()
    for broken in ("", "{}"):
        (tmp_path / "catalog.json").write_text(broken, "utf-8")
        load_catalog.cache_clear()
        assert load_catalog() == collect_catalog()


def test_a_method_of_a_script_is_known_at_once() -> None:
    @method("halved", title="Halved")
    @dataclass(frozen=True)
    class Halved(FedAvg):
        """FedAvg with half of its step.

        More of it.
        """

    assert known_methods()["halved"] == {"title": "Halved", "text": "FedAvg with half of its step.", "paper": 0}
    assert Experiment(method="halved").method == "halved"
