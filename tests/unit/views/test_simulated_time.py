"""Runs on simulated devices wherever curves are: figures, report, board, terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fedveca import Experiment, Run
from fedveca.cli import main
from fedveca.errors import UserError
from fedveca.runs.compare import compare
from fedveca.views.board.tail import RunTail
from fedveca.views.figures.run import draw_figure
from fedveca.views.report.report import write_report
from fedveca.views.terminal.comparison import make_method_table

SMALL = Experiment(model="svm", rounds=5, batch=16, devices="phones", clients=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    compare(SMALL, 1, folder, methods=("fedveca", "fedavg"))
    return folder


@pytest.fixture
def runs(folder: Path) -> list[Run]:
    return [Run.open(folder / f"{name}-seed0") for name in ("fedveca", "fedavg")]


def test_a_figure_against_simulated_seconds(runs: list[Run], folder: Path, tmp_path: Path) -> None:
    assert main(["figure", str(folder), "--against", "clock", "-o", str(tmp_path / "a.svg")]) == 0
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert "over device seconds" in text
    draw_figure("curves", runs, tmp_path / "b.svg", "joules")
    assert "over joules" in (tmp_path / "b.svg").read_text("utf-8")
    draw_figure("curves", runs, tmp_path / "c.svg")
    assert "over rounds" in (tmp_path / "c.svg").read_text("utf-8")


def test_figures_that_cannot_be_drawn_so(runs: list[Run], tmp_path: Path) -> None:
    plain = [Run(SMALL.replace(devices=""), [{**r} for r in run.rounds], run.summary) for run in runs]
    for run in plain:
        for record in run.rounds:
            del record["clock"]
    with pytest.raises(UserError, match="these runs have no clock to draw against; they have rounds, steps, rows"):
        draw_figure("curves", plain, tmp_path / "a.svg", "clock")
    with pytest.raises(UserError, match="the figure tau is drawn against rounds, not clock; only curves is"):
        draw_figure("tau", runs, tmp_path / "a.svg", "clock")
    assert not (tmp_path / "a.svg").exists()


def test_a_report_offers_both_axes(runs: list[Run], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    for axis in ("clock", "joules"):
        assert f'value="{axis}"' in text
    assert "<th" in text
    assert "device s" in text


def test_a_board_reads_the_clock_as_it_was_recorded(runs: list[Run]) -> None:
    assert runs[0].folder
    tail = RunTail(runs[0].folder / "rounds.jsonl", 4, 5)
    tail.read()
    _, clock, _ = tail.read_points("test_loss", "clock", 0, 1e9)
    assert clock.tolist() == pytest.approx([record["clock"] for record in runs[0].rounds])
    _, joules, _ = tail.read_points("test_loss", "joules", 0, 1e9)
    assert joules[-1] == pytest.approx(sum(record["joules"] for record in runs[0].rounds))


def test_a_terminal_names_what_a_run_took(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert runs[0].folder
    assert main(["show", str(runs[0].folder)]) == 0
    took = runs[0].summary["clock"]
    assert f"on phones: {took:,.1f} simulated s, " in capsys.readouterr().out
    console = Console(width=200)
    with console.capture() as seen:
        console.print(make_method_table(runs, "x", 200))
    assert "device s" in seen.get()
    assert "joules" in seen.get()
