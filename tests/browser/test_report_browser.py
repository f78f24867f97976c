"""Reports in a real browser, opened from disk with every way out closed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from accessibility import find_violations
from recorded import require_number

from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.sweep import sweep
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
LINES = "[id^=s0-curve] .scatterlayer .js-line:not([style*='stroke-width: 0px'])"  # bands have no line


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, three seeds: fewer have no interval to draw."""
    folder = tmp_path_factory.mktemp("runs")
    compare(Experiment(model="svm", rounds=8, batch=16), 3, folder, methods=("fedveca", "fedavg"))
    write_report(find_runs([folder])[0], folder / "report.html")
    return folder / "report.html"


def test_it_opens_from_disk_with_every_figure_drawn(report: Path, opened: Open) -> None:
    page = opened(report)
    assert page.locator("#s0 .sortable >> nth=0 >> tbody th[scope=row]").all_inner_texts() == ["FedVeca", "FedAvg"]
    assert page.locator(".plot:has(.main-svg)").count() == page.locator("figure").count() == 15
    assert page.locator(LINES).count() == 3 * 2  # loss, accuracy, training loss
    lines = [Run.open(report.parent / f"fedveca-seed{seed}").rounds for seed in (0, 1, 2)]
    drawn = page.evaluate("document.getElementById('s0-curve1').data.filter(t => t.name === 'FedVeca')[0]")
    assert drawn["x"] == list(range(1, 9))
    mean = [100 * fmean(line["test_accuracy"] for line in same) for same in zip(*lines, strict=True)]
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


def test_curves_stand_against_rounds_steps_rows_bytes_or_seconds(report: Path, opened: Open) -> None:
    page = opened(report)
    each = [Run.open(report.parent / f"fedavg-seed{seed}").rounds for seed in (0, 1, 2)]
    last = {
        "local steps": sum(sum(line["tau"]) for lines in each for line in lines) / 3,
        "gradient rows": sum(line["rows"] for lines in each for line in lines) / 3,
        "bytes": sum(line["bytes_up"] + line["bytes_down"] for lines in each for line in lines) / 3,
        "seconds": sum(line["seconds"] for lines in each for line in lines) / 3,
        "rounds": len(each[0]),
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


def test_the_toolbar_has_two_buttons_that_stand_above_the_data(report: Path, opened: Open) -> None:
    """No button sends a chart anywhere."""
    page = opened(report)
    bars = page.evaluate(
        "[...document.querySelectorAll('.modebar')].map(bar => [...bar.querySelectorAll('.modebar-btn')]"
        ".map(button => button.getAttribute('data-title')))"
    )
    assert bars == [["Save this chart as SVG", "First view"]] * 15
    config = page.evaluate("[...document.querySelectorAll('.plot')].map(div => div._context.plotlyServerURL)")
    assert set(config) == {""}
    for name in ("s0-curve0", "s0-inside-map0", "s0-part"):
        bar, plot = (page.locator(f"#{name} {what} >> nth=0").bounding_box() for what in (".modebar", ".nsewdrag"))
        assert bar["y"] + bar["height"] <= plot["y"] + 1
    assert "cloud.plotly" not in page.evaluate("document.body.innerHTML")
    phone = opened(report, 390, has_touch=True, is_mobile=True)
    assert phone.locator(".modebar-btn").count() == 0


def test_a_chart_can_be_saved_and_tables_are_files(report: Path, opened: Open) -> None:
    page = opened(report)
    with page.expect_download() as saved:
        page.locator("#s0-curve0 .modebar-btn").first.click()
    assert saved.value.suggested_filename == "s0-curve0.svg"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Table as CSV").click()
    rows = Path(saved.value.path()).read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["method", "FedVeca", "FedAvg"]
    with page.expect_download() as saved:
        page.get_by_role("button", name="Curves as CSV").click()
    head, *rows = Path(saved.value.path()).read_text().splitlines()
    assert head == "curve,quantity,round,local_steps,gradient_rows,bytes,seconds,mean,std,seeds"
    assert len(rows) == 2 * 3 * 8
    assert rows[8].startswith('"FedVeca","test_accuracy",1,')


def test_the_command_and_the_sentence_can_be_copied(report: Path, opened: Open) -> None:
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    for name, start in (("Copy the sentence", "FedVeca has the best test"), ("Copy", "fedveca compare digits-case3")):
        page.get_by_role("button", name=name, exact=True).click()
        page.wait_for_selector("button.copy:text('Copied')")
        assert page.evaluate("navigator.clipboard.readText()").startswith((start, start.replace("Veca", "Avg")))


def test_the_first_view_shows_all_and_the_house_leads_back_to_it(report: Path, opened: Open) -> None:
    page = opened(report)
    seen = "document.getElementById('s0-curve1').layout.yaxis.range"
    values = "document.getElementById('s0-curve1').data.filter(t => t.name).flatMap(t => t.y)"
    low, high = page.evaluate(f"[Math.min(...{values}), Math.max(...{values})]")
    first = page.evaluate(seen)
    assert first[0] <= low < high <= first[1]
    page.get_by_label("zoom to the end").check(force=True)
    assert page.evaluate(seen)[0] > low
    page.locator("#s0-curve1 .modebar-btn").nth(1).click()
    assert page.evaluate(seen) == pytest.approx(first)
    assert not page.get_by_label("zoom to the end").is_checked()
    box = page.locator("#s0-curve1 .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_function(f"{seen}[0] > {first[0]} + 1")
    page.locator("#s0-curve1 .modebar-btn").nth(1).click()
    page.wait_for_function(f"Math.abs({seen}[0] - {first[0]}) < 1e-6")


def test_curves_can_be_smoothed_logarithmic_and_single(report: Path, opened: Open) -> None:
    page = opened(report)
    trace = "document.getElementById('s0-curve1').data.filter(t => t.name === 'FedVeca')[0]"
    before = page.evaluate(f"{trace}.y")
    page.locator("select.smooth").select_option("3")
    assert page.evaluate(f"{trace}.y")[3] == pytest.approx(sum(before[2:5]) / 3)
    page.locator("select.smooth").select_option("1")
    page.get_by_label("log scale").check(force=True)
    assert page.evaluate("document.getElementById('s0-curve1').layout.yaxis.type") == "log"
    page.get_by_label("log scale").uncheck(force=True)
    page.get_by_label("every seed").check(force=True)
    thin = page.evaluate("document.getElementById('s0-curve1').data.filter(t => t.line.width === 1).map(t => t.y)")
    lines = Run.open(report.parent / "fedveca-seed1").rounds
    assert len(thin) == 6
    assert thin[1] == pytest.approx([100 * require_number(line, "test_accuracy") for line in lines], rel=1e-4)
    dashes = page.evaluate("document.getElementById('s0-curve1').data.filter(t => t.name).map(t => t.line.dash)")
    assert len(set(dashes)) == 2


def test_values_are_read_below_the_charts(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("#s0-curve1").scroll_into_view_if_needed()
    box = page.locator("#s0-curve1 .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    page.wait_for_selector(".readout.on")
    said = page.locator(".readout").inner_text()
    assert said.startswith("test accuracy, round ")
    k = int(said.split("round ")[1].split()[0])
    each = [Run.open(report.parent / f"fedveca-seed{seed}").rounds[k - 1] for seed in (0, 1, 2)]
    mean = 100 * fmean(require_number(line, "test_accuracy") for line in each)
    assert f"FedVeca {mean:.2f} ±" in said
    assert page.locator("#s0-curve1 .hoverlayer .hovertext").count() == 0
    page.mouse.move(2, 2)
    page.wait_for_selector(".readout:not(.on)")
    page.locator("fieldset label", has_text="local steps").click()
    page.locator(".legend button").nth(1).click()
    page.locator("#s0-curve1").scroll_into_view_if_needed()
    box = page.locator("#s0-curve1 .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    page.wait_for_selector(".readout.on")
    said = page.locator(".readout").inner_text()
    assert " local steps" in said  # of the drawing that is seen, not of the first one
    assert "FedAvg" not in said
    assert "(round 8)" not in said
    phone = opened(report, 390, has_touch=True, is_mobile=True)
    phone.locator("#s0-curve1").scroll_into_view_if_needed()
    phone.locator("#s0-curve1 .nsewdrag").tap()
    phone.wait_for_selector(".readout.on")
    assert phone.locator(".readout").inner_text().startswith("test accuracy, round ")


def test_a_heading_sorts_by_keyboard(report: Path, opened: Open) -> None:
    page = opened(report)
    names = page.locator("#s0 .sortable >> nth=0 >> tbody th[scope=row]")
    head = page.locator("#s0 .sortable >> nth=0 >> thead th", has_text="method")
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert (names.all_inner_texts(), head.get_attribute("aria-sort")) == (["FedAvg", "FedVeca"], "ascending")
    page.keyboard.press("Space")
    assert (names.all_inner_texts(), head.get_attribute("aria-sort")) == (["FedVeca", "FedAvg"], "descending")
    loss = page.locator("#s0 .sortable >> nth=0 >> thead button", has_text="test loss")
    loss.click()
    column = page.evaluate(
        "[...document.querySelector('.sortable').tBodies[0].rows].map(r => +r.cells[2].dataset.value)"
    )
    assert column == sorted(column)


def test_every_control_is_reached_by_tab_and_few_stops_are_charts(report: Path, opened: Open) -> None:
    page = opened(report)
    stops: list[tuple[str, str]] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "(() => { const e = document.activeElement, plot = e.closest('.plot');"
            "return [plot ? plot.id : '', e.textContent.trim() || e.value || e.className]; })()"
        )
        if stops and tuple(where) == stops[0]:
            break
        stops.append(tuple(where))
    charts = [plot for plot, _ in stops if plot]
    assert max(map(charts.count, charts)) == 2
    texts = [text for plot, text in stops if not plot]
    for text in ("Skip to the results", "Results", "Table as CSV", "rounds", "zoom", "log", "seeds", "Curves as CSV"):
        assert text in texts
    zoom = page.get_by_label("zoom to the end")
    zoom.focus()
    page.keyboard.press("Space")
    assert zoom.is_checked()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_axe_finds_nothing(look: str, report: Path, opened: Open) -> None:
    phone = {"width": 390, "has_touch": True, "is_mobile": True}
    page = opened(report, **(phone if look == "phone" else {"color_scheme": look}))
    for summary in page.locator("summary").all():
        summary.click()
    assert find_violations(page, ("minor", "moderate", "serious", "critical")) == []


def test_another_run_can_be_chosen(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("select.which-run").select_option(label="FedVeca, seed 1")
    lines = Run.open(report.parent / "fedveca-seed1").rounds
    tau_k = page.evaluate("document.getElementById('s0-inside-line0').data[0].y")
    assert tau_k == pytest.approx([line["tau_k"] for line in lines], rel=1e-5)
    tau = [t for line in lines for i, t in zip(line["ids"], line["tau"], strict=True) if i == 0]
    said = page.locator("#s0-inside-map0").get_attribute("aria-label")
    assert f"client 0 from {min(tau)} to {max(tau)};" in said
    bar = page.evaluate("[0, 1].map(i => document.getElementById(`s0-inside-map${i}`).data[0].colorbar.title.text)")
    assert bar == ["τ, local steps", "A (log scale)"]


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


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, of which one has a setting of its own."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    e = Experiment(model="svm", rounds=4, batch=16)
    sweep(e, {"lr": (0.01, 0.1, 0.3), "alpha": (0.9, 0.95)}, 2, out, methods=("fedveca", "fedavg"), device="cpu")
    write_report(find_runs([out])[0], out / "report.html")
    return out / "report.html"


def test_the_tables_of_a_report_fit_a_laptop(report: Path, swept: Path, opened: Open) -> None:
    for path in (report, swept):
        page = opened(path, 1280)
        boxes = page.evaluate(
            "[...document.querySelectorAll('.scroll')].map((box) => [box.scrollWidth, box.clientWidth])"
        )
        assert len(boxes) >= 3
        assert all(inner <= outer for inner, outer in boxes)


def test_a_sweep_has_maps_of_what_was_tried(swept: Path, opened: Open) -> None:
    page = opened(swept)
    content = json.loads((swept.parent / "sweep.json").read_text("utf-8"))
    assert page.locator("#t0 h2").inner_text().startswith("How the settings were chosen")
    assert page.locator("#t0 tbody th[scope=row]").all_inner_texts() == ["FedVeca", "FedAvg"]
    drawn = page.evaluate("[0, 1].map((i) => document.getElementById(`t0-map${i}`).data[0])")
    for data, entry in zip(drawn, content["methods"], strict=True):
        means = [100 * trial["mean"] for trial in entry["trials"]]
        assert data["type"] == "heatmap"
        cells = [v for column in zip(*data["z"], strict=True) for v in column]
        assert cells == pytest.approx(means)
        starred = [text for row in data["text"] for text in row if text.startswith("★")]
        assert starred == [f"★ {100 * max(trial['mean'] for trial in entry['trials']):.1f}"]
    assert page.locator("#t0 .heatmaplayer").count() == 2
    assert page.locator("nav a", has_text="How the settings were chosen").count() == 1
    assert page.locator("#s0 .sortable >> nth=0 >> tbody th[scope=row]").count() == 2  # runs that tuned are left out


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_section_of_a_sweep_is_accessible_and_fits_a_phone(swept: Path, opened: Open, scheme: str) -> None:
    page = opened(swept, 390, has_touch=True, is_mobile=True, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert find_violations(page, ("minor", "moderate", "serious", "critical")) == []
