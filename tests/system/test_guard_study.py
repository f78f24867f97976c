"""The study of the guard: what docs/guard.md says is what docs/results/guard.json holds, and its runs become rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shrunken_studies import Shrink, shrink  # noqa: F401 (a fixture)

from studies.guard.run import COMMAND, RATES, TASKS, GuardContent, GuardPair, main, make_table

DOCS = Path(__file__).parents[2] / "docs"


def read_pairs(content: GuardContent, task: str) -> list[GuardPair]:
    methods = content["results"][task].values()
    return [pair for rates in methods for pairs in rates.values() for pair in pairs.values()]


def test_the_page_shows_the_results() -> None:
    content: GuardContent = json.loads((DOCS / "results" / "guard.json").read_text("utf-8"))
    page = (DOCS / "guard.md").read_text("utf-8")
    rows = [line for line in make_table(content).splitlines() if line.startswith("|")]
    assert all(line in page for line in rows)
    svm, digits = (read_pairs(content, task) for task in ("svm", "digits"))
    pairs = [*svm, *digits]
    assert f"Without the guard {sum(p['off']['diverged'] for p in pairs)} of the {len(pairs)} runs diverge, six" in page
    assert sum(pair["on"]["diverged"] for pair in pairs) == 0
    near = [pair["on"]["best"] - pair["on"]["last"] <= 0.01 for pair in pairs]
    assert all(near[: len(svm)])
    assert f"Of all {len(pairs)}, {sum(near)} do. The other eight" in page
    assert all(pair["on"]["returns"] == 0 for pair, close in zip(pairs, near, strict=True) if not close)
    still = [pair for pair in pairs if pair["on"]["returns"] == 0]
    assert f"In each of the {len(still)} runs in which the guard did nothing" in page
    assert all(pair["same"] == pair["rounds"] for pair in still)
    assert COMMAND in page


@pytest.mark.slow
def test_runs_become_rows(shrink: Shrink, tmp_path: Path) -> None:
    shrink(rounds=3)
    main(["digits", "--out", "guard.json", "--seeds", "1"])
    content: GuardContent = json.loads((tmp_path / "guard.json").read_text())
    assert set(content["results"]["digits"]) == set(TASKS["digits"].methods)
    assert len(read_pairs(content, "digits")) == 4 * len(RATES)
    assert all(pair["rounds"] == 3 for pair in read_pairs(content, "digits"))
