"""What the terminal shows: the package's log, warnings, progress, and the end of runs in other processes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import require_number

from fedveca.runs.compare import compare, make_table
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.trackers.tracking import TrackerFailed
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
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[1] for line in lines] == [f"round {k}/20" for k in range(2, 21, 2)]
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
    with Screen() as screen:
        runs = compare(replace(E, rounds=2), 2, tmp_path, methods=("fedavg",), workers=2, observers=[screen])
    names = ("test_accuracy", "test_loss")
    values = [(done.experiment.seed, *(require_number(done.summary["kept"], name) for name in names)) for done in runs]
    assert capsys.readouterr().err.splitlines() == [
        f"fedavg seed {seed}  accuracy {100 * accuracy:.2f} %  loss {loss:.4f}" for seed, accuracy, loss in values
    ]


@pytest.mark.parametrize(("better", "bold"), [(None, []), ("higher", ["fedveca"]), ("lower", ["fedavg"])])
def test_the_best_of_a_custom_metric_is_bold_where_its_direction_is_known(better: Any, bold: list[str]) -> None:
    def made(method: str, value: float) -> Run:
        end: Any = {"round": 1, "test_loss": 1.0, "test_hits": value}
        return Run(Experiment(method=method), [], {"tau_all": 7, "kept": end, "last": end})

    directions = {"test_hits": better} if better else {}
    table = make_method_table(make_table([made("fedveca", 0.7), made("fedavg", 0.5)]), "a", directions)
    methods, cells = ([str(c) for c in table.columns[0].cells], list(table.columns[2].cells))
    assert [m for m, cell in zip(methods, cells, strict=True) if cell.style == "bold"] == bold  # type: ignore[union-attr]
