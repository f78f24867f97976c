"""The board's views in a real browser: states, groups, columns, comparisons, files, use by keyboard."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accessibility import find_violations
from board_page import Page, address_of, serve_board

from fedveca import Experiment
from fedveca.runs.folder_writer import STOP_MARK
from fedveca.views.series import find_look

pytestmark = pytest.mark.slow
WIDE = {"width": 1280, "height": 900}
TALL = {"width": 1280, "height": 2600}
METHODS = ("fedveca", "fedavg", "scaffold")
FOLDER = "20261116-101500-digits-case3-compare"


def record(k: int, rate: float, swing: int) -> dict[str, Any]:
    tau = [3 + (k + i) % 5 for i in range(3)]
    loss = 2 * math.exp(-k * rate) + 0.2
    each = {"A": [0.001 * t for t in tau], "tau": tau}
    numbers = {"tau_k": 20 + swing * (k % 2), "premise": 0.5, "test_accuracy": 0.9 - 0.3 * loss, "test_loss": loss}
    return {"round": k, "ids": [0, 1, 2], "left_out": [], "seconds": 0.5, "train_loss": loss} | each | numbers


def write_run(folder: Path, done: int, ended: bool = True, rate: float = 0.05, swing: int = 0, **more: Any) -> Path:
    """A run folder in the form that a run leaves."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(Experiment(clients=3, **{"rounds": 40, "lr": 0.01} | more).toml())
    lines = [record(k, rate, swing) for k in range(done)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / ".lock").write_text("1")
    if ended:
        kept = {name: lines[-1][name] for name in ("test_accuracy", "test_loss")} | {"round": done}
        summary = {"tau_all": 9 * done, "seconds": 1.5, "rounds": done, "last": kept, "kept": kept}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A board of 3 methods x 2 rates x 3 seeds, and one run in every other state."""
    root = tmp_path_factory.mktemp("runs")
    for i, method in enumerate(METHODS):
        for lr in (0.01, 0.05):
            for seed in range(3):
                rate = 0.04 + 0.02 * i + 0.2 * lr + 0.003 * seed
                write_run(root / f"{FOLDER}-lr{lr}/{method}-{seed}", 40, rate=rate, method=method, lr=lr, seed=seed)
    paused = write_run(root / "paused", 20, ended=False, method="fedavg")
    (paused / STOP_MARK).write_text('{"rounds": 20, "of": 40, "time": 1.0}')
    write_run(root / "killed", 10, ended=False)
    (write_run(root / "damaged", 40) / "rounds.jsonl").write_text("")
    write_run(root / "long", 2000, swing=30, rounds=2000)
    with serve_board(root) as found:
        yield found


def one(method: str, seed: int = 0, lr: float = 0.05) -> str:
    return f"{FOLDER}-lr{lr}/{method}-{seed}"


def lines(page: Page, name: str, what: str) -> Any:
    """Something of each line of a chart, without its bands."""
    return page.chart(name, f"plot.data.filter((t) => t.meta).map((t) => {what})")


def coloured(page: Page) -> None:
    """Waits until the methods' looks are known: the server's first answer about them takes a while."""
    page.until(lambda: page.page.evaluate("(localStorage['fedveca-looks'] ?? '').includes('SCAFFOLD')"))


def test_a_method_has_the_report_s_colour_and_dash_and_its_runs_differ(browser: Any, address: str) -> None:
    runs = [*(one(method) for method in METHODS), one("fedavg", 1)]
    page = Page(browser, address_of(address, *runs), viewport=TALL)
    coloured(page)
    colours = [find_look(method)[1].lower() for method in METHODS]
    page.until(lambda: (lines(page, "test_loss", "t.line.color") or [])[:3] == colours)
    dashes = lines(page, "test_loss", "t.line.dash")
    assert len(set(dashes[:3])) == 3  # not by colour alone
    assert dashes[0] == "solid"
    second, first = (lines(page, "test_loss", f"t.{what}")[3] for what in ("line.color", "line.dash"))
    assert (second != colours[1], first == dashes[1]) == (True, True)
    assert lines(page, "test_loss", "t.mode") == ["lines", "lines", "lines", "lines+markers"]
    page.until(lambda: page.chart("heat 0 " + runs[0], "plot.data[0].colorscale") == "Cividis")  # as in reports
    page.page.get_by_role("button", name="auto colours").click()
    page.page.get_by_role("button", name="light colours").click()
    page.until(lambda: lines(page, "test_loss", "t.line.color")[0] != colours[0])  # brighter on dark paper
    page.end(address)


def test_groups_have_means_and_bands(browser: Any, address: str) -> None:
    runs = [one(method, seed) for method in METHODS[:2] for seed in range(3)]
    page = Page(browser, address_of(address, *runs, group="seeds"), viewport=TALL)
    view = page.page
    coloured(page)
    page.until(lambda: (lines(page, "test_loss", "t.name") or []) == ["FedVeca", "FedAvg"])
    losses = [2 * math.exp(-39 * (0.04 + 0.2 * 0.05 + 0.003 * seed)) + 0.2 for seed in range(3)]
    mean = sum(losses) / 3
    std = math.sqrt(sum((loss - mean) ** 2 for loss in losses) / 2)
    assert lines(page, "test_loss", "t.y.at(-1)")[0] == pytest.approx(mean, rel=1e-4)
    assert lines(page, "test_loss", "t.customdata.at(-1)")[0] == [pytest.approx(std, rel=1e-4), 3]
    band = page.chart("test_loss", "plot.data.find((t) => t.part === 'band').y[39]")
    assert band == pytest.approx(mean + std, rel=1e-4)
    assert "bands are ± one standard deviation" in view.inner_text("#notes")
    assert "more than the seed" not in view.inner_text("#notes")
    # a group is a row of the list: its mean, its runs, all of them by one box
    row = view.locator("tr.group", has_text="SCAFFOLD lr=0.05")
    assert re.search(r"SCAFFOLD lr=0.05 3 runs .*±.*%", row.inner_text().replace("\n", " ").replace("\t", " "))
    row.get_by_role("checkbox").check()
    page.until(lambda: (lines(page, "test_loss", "t.name") or []) == ["FedVeca", "FedAvg", "SCAFFOLD"])
    assert view.locator("tr[data-id]").count() == 0
    row.get_by_role("button").press("Enter")
    assert view.locator("tr[data-id]").count() == 3
    # by a setting, by folder
    view.locator("#group").select_option("lr")
    page.until(lambda: "FedVeca lr=0.05" in (lines(page, "test_loss", "t.name") or []))
    view.locator("#group").select_option("folder")
    page.until(lambda: f"FedVeca in {FOLDER}-lr0.05" in (lines(page, "test_loss", "t.name") or []))
    view.locator("#group").select_option("")
    page.until(lambda: len(lines(page, "test_loss", "t.name") or []) == 9)
    page.end(address)


def test_comparisons_in_the_search(browser: Any, address: str) -> None:
    page = Page(browser, address, viewport=WIDE)
    view = page.page
    page.until(lambda: view.inner_text("#count").startswith("22 runs"))
    for words, many in (
        ("fedavg", 7),
        ("method=fedavg", 7),
        ("method=fed", 16),  # the start of a word while nothing is exactly that
        ("lr<0.05 method!=fedavg", 9),
        ("lr >= 0.05", 9),
        ("seed=1", 6),
        ("seed>0 seed<=2", 12),
        ("state=paused", 1),
        ("rounds>100", 1),
        ("test_loss<0.25", 2),
        ("accuracy>90%", 0),
        ("accuracy>80%", 10),
        (f"folder={FOLDER}-lr0.01", 9),
        ("seed>x", 0),
    ):
        view.locator("#search").fill(words)
        shown = view.locator("#list tbody tr").count()
        assert (words, shown) == (words, many)
    view.locator("#search").fill("colour=red")
    none = view.inner_text("#none")
    assert none == "No matching runs. No run has a setting or a recorded quantity “colour”."
    page.end(address)


def test_columns_choices_and_the_view_survive_a_reload(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, one("fedavg")), viewport=WIDE)
    view = page.page
    page.until(lambda: view.locator("#list tbody tr").count() == 22)
    view.locator("#columns summary").click()
    box = view.locator("#columns")
    box.get_by_role("checkbox", name="lr", exact=True).check()
    box.get_by_role("checkbox", name="Mean local steps τ_k").check()
    box.get_by_role("checkbox", name="partition", exact=True).uncheck()
    view.keyboard.press("Escape")
    assert not box.evaluate("(e) => e.open")
    heads = view.locator("#list thead th button").all_inner_texts()
    assert heads[-2:] == ["lr", "Mean local steps τ_k"]
    assert "partition" not in heads
    view.get_by_role("button", name="lr", exact=True).click()
    view.locator("#search").fill("seed=0")
    view.get_by_label("choose all shown runs").check()
    page.until(lambda: view.locator("#chips .chip").count() == view.locator("#list tbody tr").count() == 10)
    view.locator("#axis").select_option("steps")
    view.locator("#smooth").fill("0.5")
    view.locator("#log-scale").check()
    view.locator("#chips .chip").first.get_by_role("button").first.click()
    view.reload()
    page.until(lambda: view.locator("#list tbody tr").count() == 10)
    assert view.locator("#list thead th button").all_inner_texts() == heads
    assert view.locator("th[aria-sort=ascending]").inner_text().startswith("lr")
    page.until(lambda: view.locator("#chips .chip").count() == 10)
    assert view.locator("#chips [aria-pressed=false]").count() == 1
    assert (view.input_value("#axis"), view.input_value("#smooth")) == ("steps", "0.5")
    assert view.locator("#log-scale").is_checked()
    view.get_by_label("choose all shown runs").uncheck()
    page.until(lambda: view.locator("#view").is_hidden())
    page.end(address)


def test_names_are_short_and_cut_in_their_middle_and_no_column_is_out_of_sight(browser: Any, address: str) -> None:
    runs = [one(method, seed) for method in METHODS for seed in range(3)]
    page = Page(browser, address_of(address, *runs), viewport=WIDE)
    view = page.page
    page.until(lambda: view.locator("#chips .chip").count() == 9)
    assert view.locator("#chips .cut").all_inner_texts()[:4] == ["fedveca-0", "fedveca-1", "fedveca-2", "fedavg-0"]
    for name in ("seed", "age"):
        assert view.locator(f"th[data-name={name}]").bounding_box()["x"] + 40 <= 1260
    assert (
        view.evaluate(
            "(() => { const e = document.querySelector('.scroll'); return e.scrollWidth - e.clientWidth; })()"
        )
        <= 0
    )
    row = view.locator(f"tr[data-id='{one('scaffold', 2)}']")
    start, end = row.locator(".start"), row.locator(".end")
    assert start.evaluate("(e) => e.scrollWidth > e.clientWidth")  # it is the start that gives way
    assert end.inner_text().endswith("/scaffold-2")
    assert end.evaluate("(e) => e.getBoundingClientRect().right <= e.closest('td').getBoundingClientRect().right")
    high = view.locator(".scroll").bounding_box()["height"]
    view.set_viewport_size({"width": 1280, "height": 1600})
    assert view.locator(".scroll").bounding_box()["height"] > high + 100  # the box grows with the page
    page.end(address)


def test_every_column_of_groups_with_long_names_fits_a_laptop(browser: Any, tmp_path: Path) -> None:
    long: dict[str, Any] = {
        "data": "fashion-mnist",
        "partition": "dirichlet_balanced",
        "method": "fedveca_time",
        "model": "resnet18",
    }
    for seed in range(2):
        write_run(tmp_path / f"a/run-{seed}", 40, seed=seed, **long)
        write_run(tmp_path / f"b/run-{seed}", 40, seed=seed, **long | {"method": "centralised"})
    with serve_board(tmp_path) as own:
        page = Page(browser, f"{own}#group=method", viewport=WIDE)
        page.until(lambda: page.page.locator("#list tr.group").count() == 2)
        assert (
            page.page.evaluate(
                "(() => { const e = document.querySelector('.scroll'); return e.scrollWidth - e.clientWidth; })()"
            )
            <= 0
        )
        page.end(own)


def test_every_state_is_a_word_and_says_what_to_do(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, "paused", "killed", "damaged"), viewport=WIDE)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view = page.page
    page.until(lambda: view.locator("#notes p").count() >= 3)
    for run, state in (("paused", "paused"), ("killed", "inactive"), ("damaged", "damaged"), ("long", "finished")):
        assert view.locator(f"tr[data-id={run}] .state").inner_text() == state
    notes = view.locator("#notes p").all_inner_texts()
    assert re.search(
        r"paused is paused at round 20 of 40: .*saved. To resume it: fedveca run --resume \S+/paused", notes[0]
    )
    assert "killed is inactive at round 10 of 40" in notes[1]
    damage = "damaged is damaged: rounds.jsonl ends at round 0, but summary.json records 40 rounds."
    assert notes[2] == damage
    view.get_by_role("button", name="Copy the command that resumes paused").click()
    page.until(lambda: view.inner_text("#said") == "copied")
    assert re.fullmatch(r"fedveca run --resume \S+/paused", view.evaluate("navigator.clipboard.readText()"))
    view.get_by_role("tab", name="Settings").click()
    page.until(lambda: "resume with" in view.inner_text("#settings"))
    view.get_by_role("button", name="Copy the folder of killed").click()
    page.until(lambda: view.evaluate("navigator.clipboard.readText()").endswith("/killed"))
    # alone, the damage is where the charts would be
    view.locator("tr[data-id=damaged] td.name button").click()
    view.get_by_role("tab", name="Charts").click()
    page.until(lambda: view.locator("#charts-grid figure").count() == 0)
    assert view.inner_text("#notes") == damage
    assert view.locator("#make-report").is_hidden()
    assert view.locator("#no-charts").is_hidden()
    page.end(address)


def test_a_long_run_that_swings_is_a_line_in_a_band(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, "long"), viewport=TALL)
    view = page.page
    page.until(lambda: lines(page, "tau_k", "t.x.at(-1)") == [2000])
    means = lines(page, "tau_k", "t.y.slice(1, -1)")[0]
    assert max(means) - min(means) < 5  # of numbers that jump by 30
    band = page.chart("tau_k", "plot.data.find((t) => t.part === 'band').y")
    assert (min(band), max(band)) == (20, 50)
    assert "its band reaches from the lowest to the highest" in view.inner_text("#notes")
    view.locator("#from").fill("101")
    view.locator("#to").fill("120")
    view.locator("#to").press("Tab")
    page.until(lambda: page.chart("tau_k", "plot.data.length") == 1)  # every round
    assert set(lines(page, "tau_k", "t.y")[0]) == {20, 50}
    page.end(address)


def test_smoothing_and_one_crosshair_for_all_charts(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, one("fedveca"), one("fedavg")), viewport=TALL)
    view = page.page
    page.until(lambda: lines(page, "test_loss", "t.y") and lines(page, "L", "1") is None)
    y = lines(page, "test_loss", "t.y")[0]
    view.locator("#smooth").fill("0.9")
    page.until(lambda: lines(page, "test_loss", "t.y")[0] != y)
    smooth = lines(page, "test_loss", "t.y")[0]
    assert smooth[0] == pytest.approx(y[0])  # not drawn towards zero
    assert smooth[-1] > y[-1]  # it lags
    assert page.chart("test_loss", "plot.data.filter((t) => t.part === 'raw').length") == 2
    box = view.locator("figure[data-name=test_loss] .nsewdrag").bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    view.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + 40)
    page.until(lambda: view.locator(".cross:visible").count() >= 5)
    places = view.locator("#charts-grid .cross:visible").evaluate_all(
        "(all) => all.map((e) => { const p = e.previousElementSibling, a = p._fullLayout.xaxis;"
        " return a.p2l(parseFloat(e.style.left) - a._offset); })"
    )
    assert max(places) - min(places) < 1  # the same round everywhere
    said = view.locator("figure[data-name=test_loss] .hoverlayer").text_content()
    assert "fedveca-0" in said
    assert "fedavg-0" in said
    view.mouse.move(5, 5)
    page.until(lambda: view.locator(".cross:visible").count() == 0)
    page.end(address)


def test_charts_as_files_and_a_report(browser: Any, address: str, tmp_path: Path) -> None:
    page = Page(browser, address_of(address, one("fedveca"), one("fedavg"), "damaged"), viewport=TALL)
    view = page.page
    page.until(lambda: lines(page, "test_loss", "t.y"))

    def save(chart: str, kind: str) -> Path:
        view.locator(f"figure[data-name='{chart}'] .save summary").click()
        with view.expect_download() as started:
            view.locator(f"figure[data-name='{chart}'] .save").get_by_role("button", name=kind).click()
        path = tmp_path / str(started.value.suggested_filename)
        started.value.save_as(path)
        return path

    rows = list(csv.reader(save("test_loss", "CSV").read_text().splitlines()))
    assert (rows[0], len(rows), rows[-1][0]) == (["run", "round", "test_loss"], 81, one("fedavg"))
    rows = list(csv.reader(save(f"heat 0 {one('fedveca')}", "CSV").read_text().splitlines()))
    assert (rows[0], len(rows)) == (["run", "round", "client", "tau"], 121)
    picture = save("test_loss", "PNG")
    assert picture.name == "Test-loss.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    with page.context.expect_page() as opened:
        view.get_by_role("link", name="Make report").click()
    report, wrong = opened.value, list[str]()
    report.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    report.on("pageerror", lambda error: wrong.append(str(error)))
    page.until(lambda: report.evaluate("document.querySelectorAll('.js-plotly-plot').length > 2"))
    assert report.inner_text("h1").endswith("2 methods compared")
    assert report.evaluate("origin") == "null"  # what it runs cannot ask the board
    assert report.evaluate("fetch('/api/runs').then(() => 'read', () => 'forbidden')") == "forbidden"
    assert [text for text in wrong if "/api/runs" not in text] == []
    with view.expect_download() as started:
        view.get_by_role("link", name="Download report").click()
    assert started.value.suggested_filename == "fedveca-report.html"
    page.asked = [url for url in page.asked if not url.endswith("favicon.ico")]
    page.end(address)


def test_a_setting_against_the_score(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, one("fedveca"), tab="scatter"), viewport=TALL)
    view = page.page
    page.until(lambda: page.chart("scatter", "plot.data.length") == 3)
    assert view.input_value("#scatter-x") == "lr"
    assert page.chart("scatter", "plot.data.reduce((n, t) => n + t.x.length, 0)") == 22
    view.locator("#search").fill("method=fedavg lr=0.05")
    page.until(lambda: page.chart("scatter", "plot.data.reduce((n, t) => n + t.x.length, 0)") == 3)
    view.locator("#scatter-x").select_option("seed")
    page.until(lambda: page.chart("scatter", "[...plot.data[0].x].sort().join()") == "0,1,2")
    view.locator("#scatter-y").select_option("test_loss")
    page.until(lambda: "Test loss by seed" in view.inner_text("#scatter-place figcaption"))
    assert view.locator("#scatter-place .plot").get_attribute("aria-label").startswith("Test loss by seed, 3 runs.")
    page.end(address)


def test_all_that_the_mouse_does_the_keyboard_does(browser: Any, address: str) -> None:
    page = Page(browser, address_of(address, one("fedveca")), viewport=WIDE)
    view = page.page
    page.until(lambda: lines(page, "test_loss", "1"))
    view.locator("#tab-charts").focus()
    for key, tab in (
        ("ArrowRight", "scatter"),
        ("End", "faults"),
        ("ArrowRight", "charts"),
        ("ArrowLeft", "faults"),
        ("Home", "charts"),
    ):
        view.keyboard.press(key)
        assert view.evaluate("document.activeElement.id") == f"tab-{tab}"
        assert view.locator(f"#{tab}").is_visible()
    view.locator("#names summary").focus()
    view.keyboard.press("Enter")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.closest('#names') !== null")
    view.keyboard.press("Escape")
    assert view.evaluate("document.activeElement === document.querySelector('#names summary')")
    view.locator("#chips button").first.focus()
    view.keyboard.press("Space")
    assert view.locator("#chips [aria-pressed=false]").count() == 1
    assert view.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"  # the focus stays
    view.locator(f"tr[data-id='{one('fedavg')}'] input").focus()
    view.keyboard.press("Space")
    page.until(lambda: view.locator("#chips .chip").count() == 2)
    order = view.evaluate(
        "[...document.querySelectorAll('#view button, #view a, #view input, #view select, #view summary')]"
        ".filter((e) => e.tabIndex > 0).length"
    )
    assert order == 0  # the order of the page
    assert view.locator("[role=img] button, [role=img] a, [role=img] [tabindex]").count() == 0
    page.end(address)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_axe_finds_nothing(browser: Any, address: str, width: int, scheme: str) -> None:
    every = ("minor", "moderate", "serious", "critical")
    runs = [one("fedveca"), one("fedavg"), "paused", "damaged", "killed"]
    size = {"width": width, "height": 900}
    page = Page(browser, address_of(address, *runs), viewport=size, color_scheme=scheme, has_touch=width < 500)
    view = page.page
    page.until(lambda: view.locator("figure[data-name=test_accuracy]").count())
    view.locator("figure[data-name=test_accuracy]").scroll_into_view_if_needed()
    page.until(lambda: lines(page, "test_accuracy", "1"))
    coloured(page)
    assert find_violations(view, every) == []
    for tab in ("Scatter", "Settings", "Log", "Faults"):
        view.get_by_role("tab", name=tab).click()
        page.until(lambda tab=tab: view.inner_text(f"#{tab.lower()}").strip())  # type: ignore[misc]
        assert (tab, find_violations(view, every)) == (tab, [])
    view.get_by_role("tab", name="Charts").click()
    view.locator("#group").select_option("seeds")
    page.until(lambda: view.locator("tr.group").count() > 5)
    view.locator("#columns summary").click()
    assert find_violations(view, every) == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    page.end(address)
