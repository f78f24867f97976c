"""What the terminal shows: the package's log, warnings, progress, and the end of runs in other processes."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import ComparisonObserver
from fedveca.runs.run import run
from fedveca.runs.schema import Round
from fedveca.trackers.tracking import TrackerFailed
from fedveca.views.terminal.comparison import make_method_table
from fedveca.views.terminal.lines import Pace, describe_end, describe_round, describe_start, format_seconds
from fedveca.views.terminal.screen import Screen
from fedveca.views.terminal.tables import make_partition_table

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
    assert head == "FedVeca, svm on digits, 5 clients, case3, 20 rounds, batch 16, probe 32, lr 0.01, seed 0, on CPU"
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def made(method: str, seed: int, value: float, last: float | None = None, metric: str = "test_accuracy") -> Run:
    """A run of 4 rounds that ends with this value, and a loss of 1 minus it."""
    rounds: list[Any] = [
        {"round": k, "ids": [0], "left_out": [], "tau": [5], "bytes_up": 10**6, "bytes_down": 10**6, "seconds": 0.5}
        | {"test_loss": 1 - value, metric: value * (k + 1) / 4}
        for k in range(4)
    ]
    ends: dict[str, Any] = {
        which: {"round": 4, "test_loss": 1 - v, metric: v} for which, v in (("kept", value), ("last", last or value))
    }
    directions: Any = {} if metric == "test_accuracy" else {metric: "higher"}
    summary: Any = {"tau_all": 20, **ends}
    return Run(Experiment(method=method, seed=seed, rounds=4), rounds, summary, directions=directions)


def shown(runs: list[Run], width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="standard").print(
        make_method_table(runs, "name", width), markup=False
    )
    return re.sub(r"\x1b\[(?!1m)[0-9;]*m", "|", out.getvalue())


def plain(runs: list[Run], width: int = 200) -> list[str]:
    return [re.sub(r"\x1b\[1m|\|", "", text).rstrip() for text in shown(runs, width).splitlines()]


SURE = [made(m, s, v + 0.01 * s) for m, v in (("fedveca", 0.8), ("fedavg", 0.6), ("fedprox", 0.5)) for s in (0, 1, 2)]
UNSURE = [made("fedveca", s, v) for s, v in enumerate((0.8, 0.7, 0.81))] + [
    made("fedavg", s, v) for s, v in enumerate((0.7, 0.8, 0.8))
]


def test_only_what_is_better_by_more_than_chance_is_bold() -> None:
    bold = r"\x1b\[1m(\d[^|]*)"
    assert re.findall(bold, shown(SURE)) == ["81.00 ±1.00", "0.1900 ±0.0100"]
    assert re.findall(bold, shown(UNSURE)) == []  # the paired interval includes 0
    assert re.findall(bold, shown([run for run in SURE if run.experiment.seed == 0])) == []  # one seed decides nothing


def test_the_difference_to_the_best_is_paired_and_the_sentence_says_so() -> None:
    text = "\n".join(plain(SURE))
    assert re.search(r"FedVeca +81\.00 ±1\.00 +best +20 ", text)
    assert re.search(r"FedAvg +61\.00 ±1\.00 +-20\.00 \[-20\.00, -20\.00\]", text)
    said = " ".join(text.split())
    assert (
        "FedVeca has the best test accuracy of the kept models, 81.00 ±1.00 % (mean of 3 seeds); next is FedAvg with "
        "61.00 ±1.00 %, 20.00 points behind (95 % interval 20.00 to 20.00, paired over 3 seeds): more than chance."
    ) in said
    assert "± is one standard deviation over seeds." in said
    assert "within chance." in " ".join(plain(UNSURE))


def test_one_seed_has_no_spread_and_models_that_agree_one_column() -> None:
    one = [run for run in SURE if run.experiment.seed == 0]
    text = "\n".join(plain(one))
    assert "±" not in text
    assert "kept = last" in text
    assert re.search(r"FedAvg +60\.00 +-20\.00 +20 +0\.4000", text)
    other = "\n".join(plain([made("fedveca", 0, 0.8, last=0.7), made("fedavg", 0, 0.6)]))
    assert "kept = last" not in other
    assert re.search(r"FedVeca +80\.00 +best +20 +0\.2000 +70\.00 +0\.3000", other)


def test_costs_until_targets_are_of_the_first_round_that_reaches_them() -> None:
    """FedVeca has 20, 40, 60 and 80 %, FedAvg 15, 30, 45 and 60 %: 5 steps, 2 MB and half a second per round."""
    text = plain([made("fedveca", 0, 0.8), made("fedavg", 0, 0.6)])
    at = text.index("until test accuracy is at least")
    assert text[at + 1].split() == ["60", "%", "70", "%", "80", "%", *["60", "%"] * 4]
    rows = [f"{steps * Experiment().batch:,}" for steps in (15, 20)]
    assert [line.split() for line in text[at + 3 : at + 5]] == [
        ["FedVeca", "3", "4", "4", "15", rows[0], "6", "1.5"],
        ["FedAvg", "4", "never", "never", "20", rows[1], "8", "2"],
    ]


@pytest.mark.parametrize("width", [110, 80, 60, 40, 24])
def test_digits_are_never_cut(width: int) -> None:
    lines = plain(SURE + [made("corrected", s, 0.4 + 0.01 * s) for s in (0, 1, 2)], width)
    assert max(map(len, lines)) <= width
    assert not any("…" in text for text in lines)
    joined = " ".join(lines)
    for value in ("81.00", "61.00", "51.00", "41.00"):
        assert value in joined
    if width >= 60:
        assert "-20.00 [-20.00, -20.00]" in joined


@pytest.mark.parametrize("width", [200, 80, 60, 24])
def test_columns_that_are_left_out_are_named_and_have_no_footnote(width: int) -> None:
    text = " ".join(" ".join(plain(SURE, width)).split())
    named = text.partition("Not shown at this width: ")[2].partition("; the report has them.")[0]
    assert bool(named) == (width in (80, 60))
    rows = [column for column in ("gradient rows", "gradient rows until 60 %") if column in named.split(", ")]
    assert ("Rows are those of which gradients were computed" in text) == (len(rows) < 2) == (width != 60)
    assert ("A difference to the best is paired" in text) == ("minus the best" not in named)
    assert "A value is marked as the best only if" in text


@pytest.mark.parametrize(("columns", "whole"), [("", True), ("60", False)])
def test_in_a_file_a_table_has_all_of_its_columns(
    columns: str, whole: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    screen = Screen()
    screen.print(make_method_table(SURE, "name", screen.out.width))
    out = capsys.readouterr().out
    assert not any(line.endswith(" ") for line in out.splitlines())
    assert ("Not shown at this width" not in out) == whole
    assert (max(map(len, out.splitlines())) > 90) == whole
    assert len(out.splitlines()) > 10  # sentences are not a line each, however long
    screen.print("a" * 300)
    assert capsys.readouterr().out == "a" * 300 + "\n"


@pytest.mark.parametrize(("width", "tables"), [(80, 1), (60, 2), (30, 5), (10, 10)])
def test_a_partition_in_a_narrow_terminal_has_fewer_labels_per_line(width: int, tables: int) -> None:
    counts = torch.arange(1000, 1120).reshape(12, 10)
    counts[3, 4] = 0
    out = io.StringIO()
    Console(file=out, width=max(width, 20)).print(make_partition_table(counts, width))
    lines = [line.split() for line in out.getvalue().splitlines()]
    heads = [line for line in lines if line[:1] == ["client"]]
    assert len(heads) == tables
    assert [label for line in heads for label in line if label.isdigit()] == list("0123456789")
    cells = [cell for line in lines if line and line[0] == "3" for cell in line[1:]]
    assert cells == ["1030", "1031", "1032", "1033", "·", *(str(n) for n in range(1035, 1040)), "9311"]
    assert max(map(len, out.getvalue().splitlines())) <= max(width, 20)


def test_a_custom_metric_and_a_run_that_diverged() -> None:
    runs = [made("fedveca", s, 0.5 + 0.01 * s, metric="test_hits") for s in (0, 1)]
    runs += [made("fedavg", s, 0.7 + 0.01 * s, metric="test_hits") for s in (0, 1)]
    runs[1].summary["stopped"] = "why"
    text = "\n".join(plain(runs))
    assert re.search(r"FedVeca \(1 diverged\) +0\.5000 ", text)
    assert "Runs that diverged are left out." in " ".join(text.split())
    assert "FedAvg has the best test hits" in text


def test_a_line_of_names_ends_between_two_names() -> None:
    screen, out = Screen(), io.StringIO()
    names = ["corrected", "fedadagrad", "fedavgm", "scaffnew"]
    for terminal, lines in ((True, 3), (False, 1)):
        screen.out = Console(file=out, width=30, force_terminal=terminal, color_system=None)
        screen.print_names("not shown", names, "(add with all)")
        shown = out.getvalue().splitlines()
        assert len(shown) == lines
        assert all(len(line) <= 30 for line in shown) or not terminal
        assert " ".join(shown) == "not shown: corrected, fedadagrad, fedavgm, scaffnew (add with all)"
        out.seek(0)
        out.truncate()
