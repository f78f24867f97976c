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
from fedveca.runs.folder_types import ModelResult
from fedveca.runs.run import run
from fedveca.views.notebook import NotebookProgress, is_notebook
from fedveca.views.terminal.lines import describe_end


@pytest.fixture(scope="module")
def done() -> Run:
    return run(Experiment(model="svm", rounds=5, batch=16))


def test_a_run_shows_its_table_and_curves(done: Run) -> None:
    former: ModelResult = {"round": 4, "test_loss": 0.5, "test_accuracy": 0.75}
    done = Run(done.experiment, done.rounds, {**done.summary, "kept": former})
    shown = done._repr_html_()
    tree = xml.fromstring(shown)  # whole: every tag is closed
    assert "FedVeca: svm on digits, case3, 5 clients" in shown
    steps = [tau for record in done.rounds for tau in record["tau"]]
    assert f"5 of 5 rounds, seed 0, τ from {min(steps)} to {max(steps)}" in shown
    rows = [[cell.text for cell in row] for row in tree.iter("tr")]
    assert rows[0] == ["model", "of round", "test loss", "test accuracy"]
    ends = {"kept": done.summary["kept"], "last": done.summary["last"]}
    for row, (which, end) in zip(rows[1:], ends.items(), strict=True):
        accuracy = f"{100 * require_number(end, 'test_accuracy'):.2f} %"
        assert row == [which, str(end["round"]), f"{end['test_loss']:.4f}", accuracy]
    curves = list(tree.iter("polyline"))
    assert [len(curve.attrib["points"].split()) for curve in curves] == [5, 5, 5]
    for curve, name in zip(curves, ("test_loss", "test_accuracy", "tau_k"), strict=True):
        heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
        values = cast("list[float]", done.column(name))
        assert heights.index(min(heights)) == values.index(max(values))  # the highest value stands at the top
    assert all(svg.attrib["aria-label"] for svg in tree.iter("svg"))
    assert "<script" not in shown
    assert "http" not in shown
    assert len(shown) < 12000


def test_the_card_links_to_the_folder_and_does_not_repeat_itself(done: Run, tmp_path: Path) -> None:
    same: ModelResult = {"round": 5, "test_loss": 0.5, "test_accuracy": 0.75}
    kept = Run(done.experiment, done.rounds, {"tau_all": 7, "kept": same, "last": same}, folder=tmp_path / "a run")
    tree = xml.fromstring(kept._repr_html_())
    assert [[cell.text for cell in row] for row in tree.iter("tr")][1:] == [["kept = last", "5", "0.5000", "75.00 %"]]
    (link,) = tree.iter("a")
    assert (link.text, link.attrib["href"]) == (str(tmp_path / "a run"), (tmp_path / "a run").as_uri())


def test_progress_in_a_notebook_is_one_line_that_is_replaced(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns where it names another environment
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    progress = NotebookProgress()
    with capture_output() as shown:
        progress.start(done.experiment, None)
        for record in done.rounds:
            progress.round(record)
        progress.end(done)
    InteractiveShell.clear_instance()
    texts = [output.data["text/plain"] for output in shown.outputs]
    assert len({output.transient["display_id"] for output in shown.outputs}) == 1
    assert [output.update for output in shown.outputs] == [False] + 6 * [True]
    assert texts[0].startswith("FedVeca, svm on digits, 5 clients, case3, 5 rounds")
    assert texts[3].startswith("fedveca seed 0  round 3/5  accuracy ")
    assert texts[-1] == describe_end(done)
    assert not is_notebook()


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
    assert unescape(shown).count(evil) == 3  # the link has it in code


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
