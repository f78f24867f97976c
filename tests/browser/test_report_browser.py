"""Reports in a real browser, opened from disk with every way out closed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
LINES = "[id^=s0-curve] .scatterlayer .js-line:not([style*='stroke-width: 0px'])"  # bands have no line


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds of one of them."""
    folder = tmp_path_factory.mktemp("runs")
    for method, seed in (("fedveca", 0), ("fedveca", 1), ("fedavg", 0)):
        run(Experiment(method=method, seed=seed, model="svm", rounds=8, batch=16), folder / f"{method}-seed{seed}")
    write_report(find_runs([folder])[0], folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a file; at the end nothing was asked of a network and nothing complained."""
    complaints: list[str] = []
    contexts = []

    def open_(path: Path, width: int = 1200, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        at_home = ("file:", "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(at_home) else complaints.append(r.url))
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def test_it_opens_from_disk_with_every_figure_drawn(report: Path, opened: Open) -> None:
    page = opened(report)
    assert page.locator("tbody th[scope=row]").all_inner_texts() == ["FedVeca", "FedAvg"]
    assert page.locator(".plot:has(.main-svg)").count() == page.locator("figure").count() == 11
    assert page.locator(LINES).count() == 3 * 2  # loss, accuracy, training loss
    lines = [Run.open(report.parent / f"fedveca-seed{seed}").rounds for seed in (0, 1)]
    drawn = page.evaluate("document.getElementById('s0-curve1').data.filter(t => t.name === 'FedVeca')[0]")
    assert drawn["x"] == list(range(1, 9))
    mean = [50 * (a["test_accuracy"] + b["test_accuracy"]) for a, b in zip(*lines, strict=True)]
    assert drawn["y"] == pytest.approx(mean, rel=1e-5)
    heat = page.evaluate("document.getElementById('s0-inside-map0').data.map(t => [t.type, t.z])")
    assert [kind for kind, _ in heat] == ["heatmap", "heatmap"]
    assert heat[0][1] == [[line["tau"][i] for line in lines[0]] for i in range(5)]
    assert heat[1][1][3][6] + heat[1][1][3][8] == pytest.approx(100)  # client 3 has labels 6 and 8 alone
    assert page.locator("#s0-inside-map0 .heatmaplayer image").count() == 2
    assert page.locator("#s0-part .scatterlayer .point").count() == 20
    assert page.locator("#s0-part .barlayer .point").count() == 5


def test_a_name_hides_its_curve_and_a_double_click_leaves_it_alone(report: Path, opened: Open) -> None:
    page = opened(report)
    first, second = page.locator(".legend button").all()
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert page.locator(LINES).count() == 3
    assert page.evaluate("document.getElementById('s0-curve0').data.map(t => t.name).at(-1)") == "FedAvg"
    first.click()
    assert page.locator(LINES).count() == 6
    second.dblclick()
    assert [b.get_attribute("aria-pressed") for b in (first, second)] == ["false", "true"]
    assert page.locator(LINES).count() == 3


def test_curves_stand_against_rounds_steps_bytes_or_seconds(report: Path, opened: Open) -> None:
    page = opened(report)
    lines = Run.open(report.parent / "fedavg-seed0").rounds
    last = {
        "local steps": sum(sum(line["tau"]) for line in lines),
        "bytes": sum(line["bytes_up"] + line["bytes_down"] for line in lines),
        "seconds": sum(line["seconds"] for line in lines),
        "rounds": len(lines),
    }
    for name, value in last.items():
        page.locator("fieldset label", has_text=name).click()
        x = page.evaluate("document.getElementById('s0-curve0').data.filter(t => t.name === 'FedAvg')[0].x")
        assert x[-1] == pytest.approx(value, rel=1e-4)
    assert page.locator("#s0-curve0 .xtitle").text_content() == "round"


def test_dragging_zooms_and_a_double_click_shows_all(report: Path, opened: Open) -> None:
    page = opened(report)
    plot = page.locator("#s0-curve0")
    plot.scroll_into_view_if_needed()
    seen = "document.getElementById('s0-curve0').layout.xaxis.range"
    before = page.evaluate(seen)
    box = page.locator("#s0-curve0 .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_function(f"{seen}[0] > 1 && {seen}[1] < 7.5")
    assert page.evaluate(seen) != before
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.wait_for_function(f"{seen}[1] >= 8")


def test_hovering_tells_the_numbers(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("#s0-inside-map0").scroll_into_view_if_needed()
    box = page.locator("#s0-inside-map0 .nsewdrag >> nth=0").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.1 * box["height"], steps=3)
    page.wait_for_selector("#s0-inside-map0 .hoverlayer text")
    assert "client 0, round " in page.locator("#s0-inside-map0 .hoverlayer").text_content()


def test_another_run_can_be_chosen(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("select.which-run").select_option(label="FedVeca, seed 1")
    lines = Run.open(report.parent / "fedveca-seed1").rounds
    tau_k = page.evaluate("document.getElementById('s0-inside-line0').data[0].y")
    assert tau_k == pytest.approx([line["tau_k"] for line in lines], rel=1e-5)


def test_light_and_dark(report: Path, opened: Open) -> None:
    page = opened(report, color_scheme="dark")
    ink = "document.getElementById('s0-curve0').layout.font.color"
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(f"[{ink}, {paper}]")
    page.get_by_role("button", name="Change between light and dark").click()
    light = page.evaluate(f"[{ink}, {paper}]")
    assert dark == ["#e8e6e1", "rgb(20, 22, 26)"]
    assert light == ["#1d2024", "rgb(251, 250, 248)"]
    page.locator("#theme").click()
    assert page.evaluate(f"[{ink}, {paper}]") == dark


def test_nothing_overflows_on_a_phone_or_on_paper(report: Path, opened: Open) -> None:
    page = opened(report, 390, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("[...document.querySelectorAll('.plot .main-svg')].every(s => s.clientWidth <= 370)")
    paper = opened(report)
    paper.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert paper.evaluate("[...document.querySelectorAll('.plot .main-svg')].every(s => s.clientWidth <= 700)")
    assert paper.evaluate("document.getElementById('s0-curve0').layout.font.color") == "#1d2024"
    assert paper.pdf().startswith(b"%PDF")


def test_words_from_a_folder_stay_words(report: Path, tmp_path: Path, opened: Open) -> None:
    """A folder of someone else's: every text in it tries to be a script."""
    evil = "</script><script>window.taken=1</script><img src=x onerror=window.taken=1>"
    folder = tmp_path / "<img src=x onerror=window.taken=1>"
    shutil.copytree(report.parent / "fedveca-seed0", folder)
    settings = Experiment(model=f"custom:{evil}\"'", data_dir=evil, rounds=8)
    (folder / "experiment.toml").write_text(settings.toml())
    lines = [line | {f"test_{evil}": 0.5, "test_<b>bold</b>%{x}": 0.1} for line in Run.open(folder).rounds]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((folder / "summary.json").read_text()) | {"stopped": evil}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text(json.dumps({evil: evil}))
    write_report([Run.open(folder)], tmp_path / "r.html")
    assert evil not in (tmp_path / "r.html").read_text("utf-8")
    page = opened(tmp_path / "r.html")
    page.mouse.move(400, 700)
    assert page.evaluate("window.taken === undefined && !document.querySelector('img')")
    assert evil in page.locator("h1").inner_text()
    assert "test <b>bold</b>%{x}" in page.locator("thead").inner_text()
