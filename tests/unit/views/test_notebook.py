"""A run in a notebook."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as xml
from html import unescape
from pathlib import Path
from typing import cast

import pytest
from recorded import require_number

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run


@pytest.fixture(scope="module")
def done() -> Run:
    return run(Experiment(model="svm", rounds=5, batch=16))


def test_a_run_shows_its_table_and_curves(done: Run) -> None:
    shown = done._repr_html_()
    tree = xml.fromstring(shown)  # whole: every tag is closed
    assert "FedVeca: svm on digits, case3, 5 clients" in shown
    assert "5 of 5 rounds, seed 0" in shown
    rows = [[cell.text for cell in row] for row in tree.iter("tr")]
    assert rows[0] == ["model", "of round", "test loss", "test accuracy"]
    ends = {"kept": done.summary["kept"], "last": done.summary["last"]}
    for row, (which, end) in zip(rows[1:], ends.items(), strict=True):
        accuracy = f"{100 * require_number(end, 'test_accuracy'):.2f} %"
        assert row == [which, str(end["round"]), f"{end['test_loss']:.4f}", accuracy]
    curves = list(tree.iter("polyline"))
    assert [len(curve.attrib["points"].split()) for curve in curves] == [5, 5]
    for curve, name in zip(curves, ("test_loss", "test_accuracy"), strict=True):
        heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
        values = cast("list[float]", done.column(name))
        assert heights.index(min(heights)) == values.index(max(values))  # the highest value stands at the top
    assert all(svg.attrib["aria-label"] for svg in tree.iter("svg"))
    assert "<script" not in shown
    assert "http" not in shown
    assert len(shown) < 8000


def test_a_run_that_has_not_ended_or_not_begun_shows_itself_too(done: Run) -> None:
    half = Run(done.experiment, done.rounds[:2], {})
    assert "2 of 5 rounds" in half._repr_html_()
    assert f"{100 * require_number(done.rounds[1], 'test_accuracy'):.2f} %" in half._repr_html_()
    none = Run(done.experiment, [], {})._repr_html_()
    assert "0 of 5 rounds" in none
    assert "<svg" not in none


def test_words_stay_words(done: Run) -> None:
    evil = "<script>alert(1)</script>"
    strange = Run(Experiment(model=f"custom:{evil}"), done.rounds, done.summary | {"stopped": evil}, folder=Path(evil))
    shown = strange._repr_html_()
    assert evil not in shown
    assert unescape(shown).count(evil) == 3


def test_frame_has_a_row_a_round(done: Run) -> None:
    frame = done.frame()
    assert len(frame) == 5
    assert set(frame.columns) == {name for line in done.rounds for name in line}
    assert frame["test_loss"].tolist() == done.column("test_loss")
    assert frame["tau"].tolist() == [line["tau"] for line in done.rounds]
    assert math.isnan(frame["premise"][0])


def test_frame_without_pandas_says_what_to_install(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^run\.frame\(\) needs pandas: pip install pandas$"):
        done.frame()
