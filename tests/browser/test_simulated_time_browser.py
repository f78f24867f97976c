"""Curves against simulated seconds and joules, in the report and on the board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_board_page import Page, address, root  # noqa: F401 - fixtures

from fedveca import Experiment, Run, run
from fedveca.views.report.report import write_report

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
SMALL = Experiment(model="svm", rounds=6, batch=16, devices="phones")


@pytest.fixture(scope="module")
def done(root: Path) -> Run:
    """A run on phones, and one without devices next to it."""
    run(SMALL.replace(devices=""), root / "plain", device="cpu")
    return run(SMALL, root / "timed", device="cpu")


def test_a_report_draws_against_them(done: Run, opened: Open, tmp_path: Path) -> None:
    write_report([done], tmp_path / "report.html")
    page = opened(tmp_path / "report.html")
    wanted = {"clock": done.rounds[-1]["clock"], "joules": sum(record["joules"] for record in done.rounds)}
    for axis, last in wanted.items():
        page.locator(f"label:has(input[value={axis}])").click()
        assert page.evaluate("document.getElementById('s0-curve0').data.at(-1).x.at(-1)") == pytest.approx(
            last, rel=1e-4
        )
        title = page.evaluate("document.getElementById('s0-curve0').layout.xaxis.title.text")
        assert title == {"clock": "device seconds"}.get(axis, axis)


def test_a_board_offers_them_where_all_runs_have_them(browser: Any, done: Run, address: str) -> None:
    page = Page(browser, f"{address}#run=timed", viewport={"width": 1280, "height": 1200})
    view = page.page
    page.until(lambda: page.chart("test_loss", "plot.data[0].x.length") == 6, 60)
    view.locator("#axis").select_option("clock")
    last = pytest.approx(done.rounds[-1]["clock"], rel=1e-4)
    page.until(lambda: page.chart("test_loss", "plot.data[0].x.at(-1)") == last, 60)
    assert page.chart("test_loss", "plot.layout.xaxis.title.text") == "device seconds"
    page.end(address)
    page = Page(browser, f"{address}#run=timed&run=plain&axis=clock", viewport={"width": 1280, "height": 1200})
    page.until(lambda: page.chart("test_loss", "plot.data[0].x.at(-1)") == 6, 60)  # the other run has no clock
    assert page.page.input_value("#axis") == "round"
    assert page.page.locator("#axis option[value=clock]").is_disabled()
    page.end(address)
