"""Whether a table of results adds up."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from fedveca.runs.statistics import paired_difference
from studies.paper.reported import METHODS, REPORTED


def check_table1(content: dict[str, Any], seeds: int) -> None:
    """Every aggregate is what its own values give."""
    for entry in content["results"]:
        rows = {row["method"]: row for row in entry["rows"]}
        assert list(rows) == list(METHODS)
        for method, row in rows.items():
            assert row["paper"] == REPORTED[entry["task"]][method]
            for which in ("last", "kept"):
                for name in ("test_loss", "test_accuracy"):
                    cell, ours = row[which][name], rows["fedveca"][which][name]
                    assert len(cell["values"]) == seeds == len(row["seeds"])
                    assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"]), rel=1e-6)
                    assert cell["std"] == pytest.approx(statistics.stdev(cell["values"]), rel=1e-6)
                    if method != "fedveca":
                        lead = row["fedveca_minus_this"][which][name]
                        again = paired_difference(ours["values"], cell["values"])
                        assert lead["mean"] == pytest.approx(again.mean, rel=1e-4, abs=1e-9)
                        assert lead["interval"] == pytest.approx(list(again.interval or ()), rel=1e-4, abs=1e-9)
