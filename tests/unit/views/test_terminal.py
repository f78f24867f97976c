"""What the terminal shows: the package's log, warnings, progress, and the end of runs in other processes."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedveca.runs.compare import compare, make_table
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import ComparisonObserver
from fedveca.runs.run import run
from fedveca.runs.schema import Round
from fedveca.trackers.tracking import TrackerFailed
from fedveca.views.terminal.lines import Pace, describe_end, describe_round, describe_start, format_seconds
from fedveca.views.terminal.screen import Screen
from fedveca.views.terminal.tables import make_method_table

E = Experiment(model="svm", rounds=20, batch=16)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def clean_log() -> Iterator[None]:
    before = (logging.getLogger("fedveca").level, list(logging.getLogger("fedveca").handlers))
    yield
    assert (logging.getLogger("fedveca").level, list(logging.getLogger("fedveca").handlers)) == before


def record(k: int, **more: Any) -> Any:
    return {"round": k, "ids": [0, 1], "left_out": [], "tau": [3, 4], "test_loss": 0.5, "test_accuracy": 0.75} | more


@pytest.mark.parametrize(("quiet", "shown"), [(False, ["a note", "a warning"]), (True, ["a warning"])])
def test_the_log_is_shown_while_the_screen_is_there(quiet: bool, shown: list[str], capsys: Capture) -> None:
    log = logging.getLogger("fedveca.runs.anything")
    with Screen(quiet):
        log.debug("a detail")
        log.info("a %s", "note")
        log.warning("a warning")
    log.info("after")
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", shown)


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_the_package_are_one_line(quiet: bool, capsys: Capture) -> None:
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *all: shown.append(str(all[0]))
        with Screen(quiet):
            warnings.warn(TrackerFailed("mlflow: no server"), stacklevel=1)
            warnings.warn("another's", stacklevel=1)
    assert capsys.readouterr().err == "mlflow: no server\n"
    assert shown == ["another's"]


def test_in_a_file_every_tenth_of_the_rounds_is_a_line(capsys: Capture) -> None:
    with Screen() as screen:
        screen.start(E, None)
        for k in range(20):
            screen.round(record(k, **({"epsilon": 1.5} if k == 19 else {})))
        screen.end(Run(E, [], {}))
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == "FedVeca, svm on digits, 5 clients, case3, 20 rounds, batch 16, lr 0.01, seed 0, on CPU"
    assert [line.split("  ")[1] for line in lines] == [f"round {k}/20" for k in range(2, 21, 2)]
    assert lines[0].split("  ")[-1] == "tau [3, 4]"  # two rounds say too little about the time left
    last = ["fedveca seed 0", "round 20/20", "accuracy 75.00 %", "loss 0.5000", "tau [3, 4]", "epsilon 1.5", "0 s left"]
    assert lines[-1].split("  ") == last


def test_faults_are_news_unless_they_were_asked_for(capsys: Capture) -> None:
    faulty = record(0, faults=[{"client": 1, "what": "did not answer"}], left_out=[1, 4])
    for e in (E, replace(E, faults="drop:0.5")):
        with Screen(quiet=True) as screen:
            screen.start(e, None)
            screen.round(faulty)
    asked, news = "fedveca seed 0: round 1: left out, not finite: client 4", "client 1 did not answer"
    assert capsys.readouterr().err.splitlines() == [f"fedveca seed 0: round 1: {news}", asked, asked]


def test_runs_of_worker_processes_get_a_line_at_their_end(tmp_path: Path, capsys: Capture) -> None:
    class Seen(ComparisonObserver):
        calls: ClassVar[list[tuple[str, str]]] = []

        def begin_in_worker(self, experiment: Experiment, folder: Path) -> None:
            self.calls.append(("begin", folder.name))

        def see_round_in_worker(self, folder: Path, record: Round) -> None:
            self.calls.append(("round", folder.name))

        def end(self, run: Run) -> None:
            assert run.folder
            self.calls.append(("end", run.folder.name))

    with Screen(device="CPU") as screen:
        runs = compare(replace(E, rounds=2), 2, tmp_path, methods=("fedavg",), workers=2, observers=[screen, Seen()])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("preparing")]
    assert lines[0].startswith("1 method x 2 seeds = 2 runs, svm on digits, 5 clients, case3, 2 rounds, batch 16, ")
    assert lines[0].endswith("on CPU, 2 workers")
    assert lines[1] == str(tmp_path)
    ends = {line.partition(": ")[2].rpartition("  ")[0] for line in lines[2:]}
    assert ends == {describe_end(done).rpartition("  ")[0] for done in runs}
    assert [line.partition(":")[0] for line in lines[2:]] == ["run 1 of 2", "run 2 of 2"]
    for done in runs:
        assert done.folder
        mine = [what for what, name in Seen.calls if name == done.folder.name]
        assert mine[0] == "begin"
        assert mine[-1] == "end"
        assert mine.count("end") == 1
    again = Screen(quiet=True)
    with again:
        compare(replace(E, rounds=2), 2, tmp_path, methods=("fedavg",), workers=2, observers=[again])
    assert again._done == again._total == 2  # what is there is counted, not repeated


@pytest.mark.parametrize("width", [200, 89, 60, 40, 12])
def test_a_line_of_progress_is_never_wider_than_the_terminal(width: int) -> None:
    full = record(27, tau=[10, 20, 30, 40, 50], epsilon=1.5, faults=[{"client": 1, "what": "late"}])
    line = describe_round(E, full, 3725.0, width)
    assert len(line) <= width
    parts = {200: "12 s left", 89: "tau 10..50", 60: "12 s left", 40: "round 28/20", 12: "fedveca seed"}
    assert parts[width] in describe_round(E, record(27, tau=[10, 20, 30, 40, 50]), 12.0, width)
    assert ("[10, 20" in line) == (width == 200)


def test_the_time_left_is_that_of_the_last_rounds() -> None:
    pace = Pace()
    left = []
    for now in (100.0, 101.0, 102.0, *(102.0 + 2 * k for k in range(1, 20))):
        pace.add(now)
        left.append(pace.left(5))
    assert left[:4] == [None, None, 5.0, pytest.approx(5 * 4 / 3)]
    assert left[-1] == 10.0  # the first rounds are forgotten
    assert [format_seconds(s) for s in (0.4, 59, 125, 12000)] == ["0 s", "59 s", "2 min 5 s", "3 h 20 min"]


def test_lines_of_the_head_fit() -> None:
    lines = describe_start(E, "NVIDIA H200", 60)
    assert ", ".join(line.rstrip(",") for line in lines) == describe_start(E, "NVIDIA H200")[0]
    assert max(map(len, lines)) <= 60 < len(" ".join(lines))


def test_clients_left_out_in_every_round_do_not_flood_the_screen(capsys: Capture) -> None:
    with Screen(quiet=True) as screen:
        screen.start(E, None)
        for k in range(20):
            screen.round(record(k, left_out=[4]))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[2] == "fedveca seed 0: round 3: left out, not finite: client 4; later rounds are not reported here"


def test_a_command_shows_life_before_pytorch_is_loaded() -> None:
    """In a process of its own, whose imports take as long as this test wants."""
    code = (
        "import sys, time; from fedveca.views.terminal.loading import show_loading\n"
        "with show_loading(True): pass\n"
        "with show_loading(): time.sleep(2.7)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "loading ...\nloading ... 3 s\n"


@pytest.mark.parametrize("folder", [None, "run"])
def test_progress_from_python(folder: str | None, tmp_path: Path, capsys: Capture) -> None:
    done = run(replace(E, rounds=4), tmp_path / folder if folder else None, device="cpu", progress=True)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("FedVeca, svm on digits, 5 clients, case3, 4 rounds")
    assert lines[-2].startswith("fedveca seed 0  round 4/4  ")
    assert lines[-1] == describe_end(done)


@pytest.mark.parametrize(("better", "bold"), [(None, []), ("higher", ["fedveca"]), ("lower", ["fedavg"])])
def test_the_best_of_a_custom_metric_is_bold_where_its_direction_is_known(better: Any, bold: list[str]) -> None:
    def made(method: str, value: float) -> Run:
        end: Any = {"round": 1, "test_loss": 1.0, "test_hits": value}
        return Run(Experiment(method=method), [], {"tau_all": 7, "kept": end, "last": end})

    directions = {"test_hits": better} if better else {}
    table = make_method_table(make_table([made("fedveca", 0.7), made("fedavg", 0.5)]), "a", directions)
    methods, cells = ([str(c) for c in table.columns[0].cells], list(table.columns[2].cells))
    assert [m for m, cell in zip(methods, cells, strict=True) if cell.style == "bold"] == bold  # type: ignore[union-attr]
