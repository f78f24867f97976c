"""Figures: one style, one look per method, names at the lines, text as text; the docs show what the code draws."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from fedveca.algorithms.registry import DASHES, methods, paper_methods
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run
from fedveca.views.figures.run import draw_figure
from fedveca.views.figures.style import (
    CATEGORIES,
    FRAME,
    GRID,
    INK,
    QUIET,
    READABLE,
    STYLE,
    compute_contrast,
    darken,
    draw_band,
    label_lines,
    save_figure,
)
from fedveca.views.series import find_look

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FIGURES = sorted([*(DOCS / "images").glob("*.svg"), *(DOCS / "results").glob("*.svg")])
SVG = "{http://www.w3.org/2000/svg}"
LOOKS = {name: find_look(name) for name in methods()}
MEANT = {*CATEGORIES, *(colour for _, colour, _ in LOOKS.values())}
FEDVECA = LOOKS["fedveca"][1]
PALETTE = {
    colour.lower()
    for colour in (
        *("#FFFFFF", "#000000", INK, QUIET, FRAME, GRID),
        *MEANT,
        *(darken(colour) for colour in MEANT),
        *(darken(FEDVECA, contrast) for contrast in (13, 7)),  # FedVeca with fewer clients
    )
}


def parse(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_bytes())


def texts(root: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Each text of a figure and its colour."""
    for node in root.iter(f"{SVG}text"):
        style = node.get("style", "")
        for part in node.iter(f"{SVG}tspan"):
            style += part.get("style", "")
        found = re.search(r"fill: (#[0-9a-f]{6})", style)
        yield "".join(node.itertext()).strip(), found[1] if found else "#000000"


def colours(path: Path) -> set[str]:
    return set(re.findall(r"(?:fill|stroke): (#[0-9a-fA-F]{6})", path.read_text("utf-8")))


def load_pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_figures() -> None:
    assert {"first.svg", "drift.svg", "table1.svg", "speed.svg"} <= {path.name for path in FIGURES}


@pytest.mark.slow
@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_committed_figure_can_be_read_by_everyone(path: Path) -> None:
    root = parse(path)
    assert root.get("role") == "img"
    assert [child.tag for child in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert all(len((child.text or "").split()) > 4 for child in root[:2])
    found = list(texts(root))
    assert len(found) > 5
    assert 'id="DejaVu' not in path.read_text("utf-8")  # outlines of letters
    assert not [(text, colour) for text, colour in found if compute_contrast(colour) < READABLE]


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_committed_figure_has_the_colours_of_the_registry(path: Path) -> None:
    used = {colour.lower() for colour in colours(path)}
    assert used <= PALETTE
    for text, colour in texts(parse(path)):
        for title, of_method, _ in sorted(LOOKS.values(), key=lambda look: -len(look[0])):
            if re.fullmatch(rf"{title}(  ?[\d.]+ ±[\d.]+)?", text) and colour not in (QUIET, INK):
                assert colour == darken(of_method).lower(), text
                assert of_method.lower() in used
                break


def test_the_palette_can_be_read_and_names_one_thing_per_colour() -> None:
    assert all(compute_contrast(colour) >= READABLE for colour in (INK, QUIET, *CATEGORIES))
    looks = [(colour, dash) for _, colour, dash in LOOKS.values()]
    assert len({colour for colour, _ in looks} | {*CATEGORIES}) == len(looks) + len(CATEGORIES)
    assert len({LOOKS[name][2] for name in paper_methods()}) == len(paper_methods())


@pytest.mark.parametrize("colour", ["#FFFFFF", "#E69F00", "#56B4E9", "#000000"])
def test_text_of_any_colour_becomes_readable(colour: str) -> None:
    assert compute_contrast(darken(colour)) >= READABLE
    assert compute_contrast("#777777") == pytest.approx(4.48, abs=0.01)  # WCAG's own example of almost enough


def test_names_stand_at_the_ends_of_their_lines_and_apart(tmp_path: Path) -> None:
    """Four lines, three of which end at nearly the same place."""
    ends = {"low": 0.0, "middle": 50.0, "near": 50.1, "nearer": 50.2}
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(layout="constrained")
        for (name, end), colour in zip(ends.items(), CATEGORIES, strict=False):
            draw_band(axis, [0, 1], [10.0, end], None, (name, colour, "-"))
        axis.axhline(90, color=INK, label="across")
        axis.set_ylim(0, 100)
        label_lines(axis)
        figure.draw_without_rendering()
        places = {text.get_text(): Text.get_window_extent(text) for text in axis.texts}  # without its line
        panel, scale = axis.get_window_extent(), figure.dpi / 72
        whole = figure.bbox
        save_figure(figure, tmp_path / "a.svg", "a")
    middles = {name: (box.y0 + box.y1) / 2 for name, box in places.items()}
    assert list(dict(sorted(middles.items(), key=lambda item: item[1]))) == [*ends, "across"]
    for name, end in {"low": 0.0, "near": 50.1, "across": 90.0}.items():
        assert middles[name] == pytest.approx(panel.y0 + panel.height * end / 100, abs=3 * scale)
    assert middles["nearer"] - middles["near"] == pytest.approx(12.5 * scale, rel=0.1)
    assert all(panel.x1 < box.x0 < box.x1 <= whole.x1 + 1 for box in places.values())


def test_a_line_has_the_dash_of_its_name(tmp_path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots()
        for i, dash in enumerate(DASHES):
            draw_band(axis, [0, 1], [i, i], [1, 1], (dash, "#123456", dash), width=2)
        save_figure(figure, tmp_path / "a.svg", "dashes")
    drawn = re.findall(r"stroke-dasharray: ([\d.,]+)", (tmp_path / "a.svg").read_text())
    assert [[float(v) for v in part.split(",")] for part in drawn] == [
        pytest.approx([2 * v for v in parts]) for parts in DASHES.values() if parts
    ]


def test_the_title_is_text_whatever_it_holds(tmp_path: Path) -> None:
    figure, _ = plt.subplots()
    save_figure(figure, tmp_path / "a.svg", '<script>"&\n\udcff', "</desc><script>")
    root = parse(tmp_path / "a.svg")
    assert [child.text for child in root[:2]] == ['<script>"&\\n\\udcff', "</desc><script>"]
    assert not list(root.iter(f"{SVG}script"))


@pytest.mark.slow
def test_clients_that_took_part_only_before_the_estimates_are_in_the_map_alone(tmp_path: Path) -> None:
    """Round 0 estimates nothing: a client that is drawn only then has local steps and no A."""
    e = Experiment(data="digits", model="svm", clients=5, participation=0.4, rounds=3, batch=8, lr=0.05)
    done = run(e, device="cpu")
    drawn = [set(record["ids"]) for record in done.rounds]
    assert drawn[0] - drawn[1] - drawn[2]
    draw_figure("instant", [done], tmp_path / "a.svg")
    draw_figure("instant", [done], tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    found = [text for text, _ in texts(parse(tmp_path / "a.svg"))]
    assert found.count("bound") == 1
    for client in range(5):
        named = client in drawn[1] | drawn[2]
        assert found.count(f"client {client}") == 3 * named  # beta, delta and A


def test_the_first_picture_shows_what_the_study_found() -> None:
    rows = json.loads((DOCS / "results" / "corrected.json").read_text())["rows"]
    text = " ".join(text for text, _ in texts(parse(DOCS / "images" / "first.svg")))
    for row in rows:
        if (row["study"], row["task"]) == ("main", "cnn-mnist") and row["method"] in LOOKS:
            last = row["last_test_accuracy"]
            shown = f"{LOOKS[row['method']][0]} {100 * last['mean']:.1f} ±{100 * last['std']:.1f}"
            there = shown in re.sub(r"\s+", " ", text)
            assert there == (row["method"] in ("corrected", "fedveca", "scaffold", "fedavg")), shown


@pytest.mark.slow
def test_the_committed_figures_are_what_the_code_draws(tmp_path: Path) -> None:
    pictures = load_pictures()
    for folder in ("images", "results"):
        (tmp_path / folder).mkdir()
    pictures.draw_all(tmp_path)
    drawn = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.svg"))
    others = {Path("images/terminal.svg")}  # a recording: docs/terminal.py
    assert drawn == sorted({path.relative_to(DOCS) for path in FIGURES} - others)
    version = f"Matplotlib v{matplotlib.__version__},".encode()
    for name in drawn:
        old, new = DOCS / name, tmp_path / name
        assert [(node.tag, node.text) for node in parse(old)[:2]] == [(node.tag, node.text) for node in parse(new)[:2]]
        assert list(texts(parse(old))) == list(texts(parse(new))), name
        assert colours(old) == colours(new), name
        if version in old.read_bytes():  # another version places things elsewhere
            assert old.read_bytes() == new.read_bytes(), name
