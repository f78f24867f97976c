"""The board in a real browser, against a run that is being written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from board_page import COMMAND, Page, serve_board
from torch import Tensor

from fedveca import Experiment, from_arrays, run

ODD = "<img src=x onerror=alert(1)>&amp;%{y}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """A board of `root`, as the command starts it."""
    with serve_board(root) as found:
        yield found


@pytest.mark.slow
def test_a_run_that_is_being_written(browser: Any, root: Path, address: str) -> None:
    page = Page(browser, address, viewport={"width": 1200, "height": 1500})
    view = page.page
    page.until(lambda: "There are no runs yet" in view.inner_text("#runs"))
    assert "`" not in view.inner_text("body")
    page.until(lambda: view.inner_text("#status") == "no active runs")
    words = ["digits-case3", "rounds=4000", "model=mlp", "--out", str(root / "live"), "--quiet", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    gently = ["nice", "-n", "5"] if shutil.which("nice") else []  # the browser comes first
    going = subprocess.Popen([*gently, *COMMAND, "run", *words], stderr=subprocess.DEVNULL, env=environment)
    try:
        # it appears, is chosen by itself, and its progress is shown
        page.until(lambda: view.locator("#list tbody tr").count() == 1)
        page.until(lambda: "running" in view.inner_text("#list tbody tr"))
        before = page.until(lambda: page.chart("test_accuracy", "plot.data.at(-1).x.at(-1)"))
        last = page.until(lambda: page.chart("heat 0 live", "plot.data[0].x.at(-1)"))
        assert page.chart("heat 0 live", "plot.data[0].z.length") == 5
        # curve and heat map grow without a touch
        page.until(lambda: page.chart("test_accuracy", "plot.data.at(-1).x.at(-1)") > before)
        page.until(lambda: page.chart("heat 0 live", "plot.data[0].x.at(-1)") > last)
        page.until(lambda: re.search(r"\d+ / 4000, .* left", view.inner_text(".progress")))
        assert "1 running" in view.inner_text("#status")
        assert int(re.findall(r"round +(\d+)/4000", log(page))[0]) >= before
        # a second run over it, and what differs between them
        run(Experiment(rounds=30, method="fedavg", lr=0.02), root / "deep" / "other", device="cpu")
        page.until(lambda: view.locator("#list tbody tr").count() == 2)
        view.get_by_label("compare deep/other with the others").check()
        view.get_by_role("tab", name="Charts").click()
        page.until(lambda: page.chart("test_accuracy", "plot.data.filter((t) => t.meta).length") == 2)
        view.get_by_role("tab", name="Settings").click()
        page.until(lambda: "settings differ" in view.inner_text("#settings"))
        keys = view.locator("#settings tbody th").all_inner_texts()
        assert {"method", "lr", "rounds"} <= set(keys)
        assert "clients" not in keys
        assert page.wrong == []
    finally:
        going.terminate()
        going.wait(240)
    page.end(address)


def log(page: Page) -> str:
    page.page.get_by_role("tab", name="Log").click()
    page.until(lambda: "round" in page.page.inner_text("#log"))
    return str(page.page.inner_text("#log pre"))


@pytest.fixture(scope="module")
def filled(root: Path) -> None:
    """Finished runs next to the one of the first test, one with a name that wants to be a tag."""
    run(Experiment(rounds=40, model="svm", seed=1), root / "filled-a", device="cpu")
    run(Experiment(rounds=40, model="svm", seed=2, alpha=0.5), root / "filled-b", device="cpu")
    run(Experiment(rounds=3, model="svm", lr=1e30), root / ODD, device="cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_hide_zoom_and_axes(browser: Any, address: str) -> None:
    page = Page(browser, f"{address}#run=filled-a&run=filled-b", viewport={"width": 1200, "height": 1500})
    view = page.page
    page.until(lambda: page.chart("premise", "plot.data.length") == 2 and page.chart("heat 1 filled-b", "1"))
    assert view.locator("[role=img]:not([aria-label])").count() == 0  # those that are not drawn yet, too
    # hide in all pictures at once
    view.locator("#chips .chip").nth(0).get_by_role("button").first.click()
    page.until(lambda: page.chart("test_loss", "plot.data.map((t) => t.visible).join()") == "false,true")
    page.until(lambda: page.chart("heat 0 filled-a", "1") is None)
    view.locator("#chips .chip").nth(0).get_by_role("button").first.click()
    page.until(lambda: page.chart("test_loss", "plot.data[0].visible"))
    # zoom by dragging: every picture follows; double-click goes back
    page.until(lambda: page.chart("heat 0 filled-a", "plot.data[0].x.length") == 40)
    box = view.locator("figure[data-name=test_loss] .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    view.mouse.move(box["x"] + box["width"] * 0.25, middle)
    view.mouse.down()
    view.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    view.mouse.up()
    page.until(lambda: page.chart("test_accuracy", "plot.data[0].x.length") < 20)
    low, high = page.chart("test_accuracy", "plot._fullLayout.xaxis.range")
    assert 5 < low < 15 < high < 25
    assert [low, high] == [int(view.input_value("#from")), int(view.input_value("#to"))]  # whole rounds
    page.until(lambda: page.chart("heat 0 filled-a", "plot.data[0].x.length") < 20)
    view.locator("figure[data-name=test_loss] .nsewdrag").dblclick()
    page.until(lambda: page.chart("test_accuracy", "plot.data[0].x.length") == 40)
    # zoom by numbers, for those without a mouse
    view.locator("#from").fill("30")
    view.locator("#from").press("Tab")
    page.until(lambda: page.chart("test_loss", "plot.data[0].x[0]") == 29)
    view.get_by_role("button", name="Whole run").click()
    page.until(lambda: page.chart("test_loss", "plot.data[0].x[0]") == 1)
    # other axes, other names
    view.locator("#axis").select_option("steps")
    page.until(lambda: page.chart("test_loss", "plot.data[0].x.at(-1)") > 40)
    view.locator("#heat-name").select_option("beta")
    page.until(lambda: "β" in view.locator("figure[data-name='heat 0 filled-a'] .plot").get_attribute("aria-label"))
    view.locator("#names summary").click()
    view.get_by_role("checkbox", name="Bytes up").check()
    page.until(lambda: page.chart("bytes_up", "plot.data.length") == 2)
    # the bounds of the theory's conditions
    assert page.chart("premise", "plot.layout.shapes.map((shape) => shape.y0).join()") == "1"
    view.get_by_role("checkbox", name="Theorem 1's bracket").check()
    page.until(lambda: page.chart("condition_step", "plot.layout.shapes.map((shape) => shape.y0).join()") == "0")
    page.end(address)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_list_by_keyboard_and_names_that_are_tags(browser: Any, address: str) -> None:
    page = Page(browser, address, viewport={"width": 1200, "height": 900})
    view = page.page
    page.until(lambda: view.locator("#list tbody tr").count() >= 3)
    view.keyboard.press("/")
    view.keyboard.type("seed=2 svm")
    page.until(lambda: view.locator("#list tbody tr").count() == 1)
    assert "filled-b" in view.inner_text("#list tbody")
    view.keyboard.press("Escape")
    view.get_by_role("button", name="accuracy", exact=True).press("Enter")
    scores = view.locator("td.score").all_inner_texts()
    known = [float(score.split()[0]) for score in scores if "%" in score]
    assert known == sorted(known, reverse=True)
    assert view.locator("th[aria-sort=descending]").inner_text().startswith("accuracy")
    view.locator("td.name button").first.focus()
    view.keyboard.press("ArrowDown")
    second = view.locator("td.name button").nth(1).inner_text()
    assert view.evaluate("document.activeElement.textContent") == second
    view.keyboard.press("Enter")
    page.until(lambda: view.locator("#chips .cut").all_inner_texts() == [second])
    view.locator("#states").get_by_role("button", name="diverged").click()
    view.get_by_role("button", name=ODD, exact=True).first.click()
    page.until(lambda: view.locator("#chips .cut").text_content() == ODD)
    view.get_by_role("tab", name="Faults").click()
    page.until(lambda: "diverged: round" in view.inner_text("#faults"))
    assert view.locator("img:not([src='icon.svg'])").count() == 0
    nameless = view.evaluate(
        "[...document.querySelectorAll('button, input, select, [role=img]')].filter((e) => !e.hidden && !(e.ariaLabel"
        " || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []
    page.end(address)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_a_hostile_run_takes_no_tab_from_the_others(browser: Any, root: Path, address: str) -> None:
    bad = root / "hostile"
    bad.mkdir()
    (bad / "experiment.toml").write_text(f"clients = {10**18}\n[x]\ntoString = 1\n")
    (bad / "environment.json").write_text('{"x": {"toString": 1, "valueOf": 1}}')
    (bad / "summary.json").write_text('{"stopped": {"toString": 1}, "kept": 7}')
    (bad / "rounds.jsonl").write_text('{"round": 0, "left_out": "abc", "test_loss": "x", "tau": {"length": 3}}\n')
    page = Page(browser, f"{address}#run=hostile&run=filled-a", viewport={"width": 1200, "height": 1500})
    view = page.page
    page.until(lambda: page.chart("test_loss", "plot.data[1].x.length") == 40)
    row = view.locator("tr[data-id=hostile] .state")
    page.until(lambda: row.inner_text() == "damaged")
    assert f"clients = {10**18} is not allowed" in str(row.get_attribute("title"))
    view.get_by_role("tab", name="Settings").click()
    page.until(lambda: "made with" not in view.inner_text("#settings") and "alpha" in view.inner_text("#settings"))
    view.locator("#settings input").check()
    page.until(lambda: "made with" in view.inner_text("#settings"))
    view.get_by_role("tab", name="Log").click()
    page.until(lambda: "round 40/40" in view.inner_text("#log"))
    assert "round 1  invalid" in view.inner_text("#log")
    view.get_by_role("tab", name="Faults").click()
    page.until(lambda: "hostile diverged: invalid" in view.inner_text("#faults"))
    page.end(address)
    shutil.rmtree(bad)


def within_half(scores: Tensor, targets: Tensor) -> Tensor:
    return ((scores.squeeze(-1) - targets).abs() < 0.5).double()


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_every_run_shows_its_own_metric(browser: Any, root: Path, address: str) -> None:
    page = Page(browser, address, viewport={"width": 1200, "height": 1500})
    view = page.page
    heading = view.locator("th[data-name=score] button")
    page.until(lambda: heading.inner_text() == "accuracy")  # all runs so far
    assert not view.locator("tr[data-id=filled-a] td.score small").is_visible()
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    data = from_arrays(x, x @ torch.tensor([1.0, -2.0, 0.5]))
    for rounds in (2, 5, 9):
        settings = Experiment(clients=3, rounds=rounds, batch=8, partition="iid", method="fedavg", lr=0.02)
        model = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(model.weight)
        run(settings, root / f"metric-error-{rounds}", device="cpu", data=data, model=model)
        run(settings, root / f"metric-half-{rounds}", device="cpu", data=data, model=model, metric=within_half)
        about = root / f"metric-half-{rounds}/environment.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"better": {"test_within_half": "higher"}}))
    page.until(lambda: view.locator("tr[data-id^=metric]").count() == 6 and heading.inner_text() == "score")
    score = view.locator("tr[data-id=metric-error-5] td.score")
    page.until(lambda: re.fullmatch(r"[\d.]+ absolute error", score.inner_text()))
    assert re.fullmatch(r"[\d.]+ within half", view.locator("tr[data-id=metric-half-5] td.score").inner_text())
    assert re.fullmatch(r"[\d.]+ % accuracy", view.locator("tr[data-id=filled-a] td.score").inner_text())
    # the best first within each metric: an error from the lowest, the custom one as it states
    view.locator("#search").fill("metric-")
    heading.click()
    scores = [text.split(" ", 1) for text in view.locator("td.score").all_inner_texts()]
    errors = [float(value) for value, label in scores if label == "absolute error"]
    shares = [float(value) for value, label in scores if label == "within half"]
    assert [label for _, label in scores] == ["absolute error"] * 3 + ["within half"] * 3
    assert errors == sorted(errors)
    assert len(set(errors)) == 3
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 3
    # its curve, its log, and where the schema does not know it, its label
    view.get_by_role("button", name="metric-error-5", exact=True).first.click()
    page.until(lambda: page.chart("test_absolute_error", "plot.data[0].y.length") == 5)
    assert view.locator("figure[data-name=test_absolute_error] .title").inner_text() == "Test absolute error"
    assert view.locator("figure[data-name=test_accuracy]").count() == 0
    assert "absolute error" in view.inner_text("#chips em")
    assert re.search(r"round 5/5  absolute error [\d.]+  loss", log(page))
    view.get_by_role("tab", name="Charts").click()
    view.get_by_role("button", name="metric-half-9", exact=True).first.click()
    page.until(lambda: page.chart("test_within_half", "plot.data[0].y.length") == 9)
    assert view.locator("figure[data-name=test_within_half] .title").inner_text() == "Test within half"
    caption = view.locator("figure[data-name=train_loss] figcaption > span").all_inner_texts()
    assert caption == ["Training loss", "F(w_k) = Σ p_i F_i(w_k), at the start of the round"]
    page.end(address)
    for path in root.glob("metric-*"):
        shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_overflows(browser: Any, address: str, scheme: str) -> None:
    phone = {"width": 390, "height": 844}
    page = Page(browser, f"{address}#run=filled-a&run=filled-b", viewport=phone, color_scheme=scheme, has_touch=True)
    view = page.page
    page.until(lambda: page.chart("test_accuracy", "plot.data.filter((t) => t.meta).length") == 2)
    assert view.evaluate("document.documentElement.dataset.theme") == scheme
    for tab in ("Charts", "Scatter", "Settings", "Log", "Faults"):
        view.get_by_role("tab", name=tab).click()
        page.until(lambda tab=tab: view.inner_text(f"#{tab.lower()}").strip())  # type: ignore[misc]
        view.evaluate("scrollTo(0, document.body.scrollHeight)")
        view.wait_for_timeout(200)
        assert view.evaluate("document.documentElement.scrollWidth") <= 390
        wide = "[...document.querySelectorAll('header *, .tools > *, .chip, figure, figcaption')].filter((e) =>"
        assert view.evaluate(f"{wide} e.getBoundingClientRect().right > 390.5).map((e) => e.outerHTML)") == []
    page.end(address)
