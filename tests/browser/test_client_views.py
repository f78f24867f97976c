"""Clients' values in a real browser: the report's part and the board's charts of those that tested the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accessibility import find_violations
from board_page import Page, address_of, serve_board
from client_runs import count_rows, write_client_run

from fedveca.runs.folder import Run
from fedveca.views.clients import compute_distribution
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

pytestmark = pytest.mark.slow
EVERY = ("minor", "moderate", "serious", "critical")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, 12 clients that test the model and what local steps make of it."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "scaffold"):
        for seed in (0, 1):
            write_client_run(root / f"{method}-{seed}", method, seed, clients=12, rounds=6, tuned=True, confusion=True)
    return root


@pytest.fixture(scope="module")
def report(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(find_runs([root])[0], path)
    return path


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with serve_board(root) as found:
        yield found


def traces(page: Any, name: str) -> dict[str, Any]:
    found = page.evaluate(f"document.getElementById('s0-{name}').data.map(t => [t.name, t.x, t.y])")
    return {label: (x, y) for label, x, y in found if label}


def test_a_report_draws_the_clients(root: Path, report: Path, opened: Open) -> None:
    page = opened(report)
    assert page.locator(".plot:has(.main-svg)").count() == page.locator("figure").count()
    mine = [Run.open(root / f"fedavg-{seed}") for seed in (0, 1)]
    found = compute_distribution(mine, "test_accuracy")
    drawn = traces(page, "clients-band-clients")
    assert list(drawn) == ["best 10 %", "median", "mean", "worst 10 %"]
    assert drawn["worst 10 %"][1] == pytest.approx([100 * (v or 0) for v in found["worst"]], rel=1e-4)
    points = traces(page, "clients-dots-clients")
    assert list(points) == ["label 0", "label 1", "label 2"]
    assert points["label 1"][0] == [count_rows(12)[i] for i in (1, 4, 7, 10)]
    one_scale = "['clients', 'tuned'].map(s => document.getElementById(`s0-clients-dots-${s}`).layout.yaxis.range)"
    assert len({tuple(ends) for ends in page.evaluate(one_scale)}) == 1
    shares = page.evaluate("document.getElementById('s0-confusion-map').data[0].z")
    assert shares[2] == pytest.approx([0, 100 * 5 / 14, 100 * 9 / 14])  # kept: round 5
    bars = page.evaluate("document.getElementById('s0-part').data.filter(t => t.type === 'bar').map(t => t.x)")
    assert bars == [count_rows(12), [n // 4 for n in count_rows(12)]]  # training and test rows
    worst = page.evaluate("document.getElementById('s0-curve3').layout.yaxis.title.text")
    assert worst == "worst tenth of the clients: accuracy (%)"


def test_metric_method_model_and_colour_can_be_chosen(root: Path, report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("select.which-curve").select_option(label="SCAFFOLD")
    mine = [Run.open(root / f"scaffold-{seed}") for seed in (0, 1)]
    for metric, scale in (("test accuracy", 100), ("test loss", 1)):
        page.locator("select.which-metric").select_option(label=metric)
        found = compute_distribution(mine, metric.replace(" ", "_"), "tuned")
        mean = traces(page, "clients-band-tuned")["mean"][1]
        assert mean == pytest.approx([scale * v for v in found["mean"]], rel=1e-4)
    assert "SCAFFOLD, after local steps" in page.locator("#s0-clients-band-tuned").get_attribute("aria-label")
    page.locator("select.which-model").select_option(label="SCAFFOLD, seed 1, last model")
    page.locator("select.which-colour").select_option(label="number of labels")
    dots = page.evaluate("document.getElementById('s0-clients-dots-clients').data.map(t => [t.y, t.marker.color])")
    last: Any = mine[1].summary["last"]
    assert dots == [[pytest.approx(last["client_test_loss"], rel=1e-4), [2] * 12]]
    page.locator("select.which-confusion").select_option(label="FedAvg, seed 0, last model")
    counts = page.evaluate("document.getElementById('s0-confusion-map').data[0].customdata")
    assert counts == [[15, 2, 1], [3, 13, 0], [0, 5, 10]]


@pytest.mark.parametrize("look", ["light", "phone"])
def test_axe_finds_nothing_in_a_report(look: str, report: Path, opened: Open) -> None:
    phone = {"width": 390, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    page = opened(report, **(phone if look == "phone" else {"color_scheme": look}))
    for summary in page.locator("summary").all():
        summary.click()
    assert find_violations(page, EVERY) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if look == "phone" else 1200)


def test_the_board_draws_the_clients_that_tested(browser: Any, root: Path, address: str) -> None:
    size = {"width": 1280, "height": 3000}
    page = Page(browser, address_of(address, "fedavg-0", "scaffold-1"), viewport=size)
    view = page.page
    page.until(lambda: page.chart("clients_accuracy_worst", "plot.data.length"))
    page.until(lambda: page.chart("spread 1 scaffold-1", "plot.data.length"))
    found = compute_distribution([Run.open(root / "scaffold-1")], "test_accuracy")
    drawn = page.chart("spread 1 scaffold-1", "plot.data.filter(t => t.name).map(t => [t.name, t.y])")
    assert [name for name, _ in drawn] == ["best 10 %", "median", "mean", "worst 10 %"]
    assert drawn[3][1] == pytest.approx(found["worst"], rel=1e-5)
    ranges = [page.chart(f"spread {i}", "plot.layout.yaxis.range") for i in ("0 fedavg-0", "1 scaffold-1")]
    assert ranges[0] == ranges[1]
    view.locator("#spread-name").select_option("client_tuned_loss")
    tuned = compute_distribution([Run.open(root / "scaffold-1")], "test_loss", "tuned")
    page.until(
        lambda: (
            page.chart("spread 1 scaffold-1", "plot.data.filter(t => t.name === 'mean')[0].y")
            == pytest.approx(tuned["mean"], rel=1e-5)
        )
    )
    assert "spread=client_tuned_loss" in view.url
    view.get_by_role("tab", name="Settings").click()
    page.until(lambda: "worst tenth" in view.inner_text("#settings"))
    kept: Any = Run.open(root / "fedavg-0").summary["kept"]
    assert f"worst tenth {100 * kept['clients_accuracy_worst']:.2f} %" in view.inner_text("#settings")
    page.end(address)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_axe_finds_nothing_on_the_board(browser: Any, address: str, width: int, scheme: str) -> None:
    size = {"width": width, "height": 3500}
    page = Page(browser, address_of(address, "fedavg-0"), viewport=size, color_scheme=scheme)
    view = page.page
    page.until(lambda: page.chart("spread 0 fedavg-0", "plot.data.length"))
    assert find_violations(view, EVERY) == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    view.get_by_role("tab", name="Settings").click()
    page.until(lambda: "worst tenth" in view.inner_text("#settings"))
    assert find_violations(view, EVERY) == []
    page.end(address)
