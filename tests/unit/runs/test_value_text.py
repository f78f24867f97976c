"""Recorded values for people."""

from __future__ import annotations

import math

from fedveca.runs.value_text import format_spread, format_value, short_label


def test_values_for_people() -> None:
    assert format_value("test_accuracy", 0.98765) == "98.77 %"
    assert format_value("test_loss", 0.98765) == "0.9877"
    assert format_value("test_worst", 0.98765, digits=2) == "0.99"
    assert [format_value("test_accuracy", odd) for odd in (None, math.nan, "1", True)] == ["-"] * 4


def test_a_spread_for_people() -> None:
    assert format_spread("test_accuracy", 0.98765, 0.01234) == "98.77 ±1.23"
    assert format_spread("test_loss", 0.98765, 0.01234) == "0.9877 ±0.0123"
    assert format_spread("test_loss", None, 0.0) == "-"
    assert format_spread("test_loss", 0.5, None) == "-"


def test_a_number_too_large_for_its_decimals_is_short() -> None:
    assert format_value("test_loss", -1234567.8) == "-1.235e+06"
    assert format_value("test_loss", 999999.0, digits=1) == "999999.0"


def test_a_metric_within_a_line() -> None:
    assert [short_label(name) for name in ("test_absolute_error", "beta")] == ["absolute error", "beta"]
