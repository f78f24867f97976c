"""The committed page on robustness shows the committed numbers, and they bear its words out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("robustness", ROOT / "benchmarks" / "robustness.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "docs/results/robustness.json").read_text("utf-8"))
    assert {len(values["accuracy"]) for values in content["results"].values()} == {content["seeds"]}
    return content["results"]  # type: ignore[no-any-return]


def test_the_tables_are_those_of_the_results(benchmark: Any, results: dict[str, Any]) -> None:
    assert results.keys() == benchmark.jobs().keys()
    assert benchmark.table(results).strip() in (ROOT / "docs/robustness.md").read_text("utf-8")


def test_privacy_page_shows_its_numbers() -> None:
    page = (ROOT / "docs/privacy.md").read_text("utf-8")
    for row in json.loads((ROOT / "docs/results/privacy.json").read_text("utf-8"))["rows"]:
        assert row["epsilon"] is None or f" {row['epsilon']:.3g} " in page or f" {row['epsilon']:.2f} " in page
        assert "accuracy" not in row or f" {100 * row['accuracy']:.0f} % |" in page
