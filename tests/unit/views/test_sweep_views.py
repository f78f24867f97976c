"""What terminal and report say of a sweep; its runs are told from those that are compared by where they lie."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from same_runs import SMALL

from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.sweep import Sweep, sweep
from fedveca.runs.sweep_file import SweepContent
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report
from fedveca.views.report.sweep import make_sweep_data
from fedveca.views.sweep import explain_sweep, find_sweeps, list_chosen
from fedveca.views.terminal.sweep import make_sweep_table

CONTENT: SweepContent = {
    "state": "finished",
    "quantity": "val_accuracy",
    "better": "higher",
    "val": 0.1,
    "space": {"lr": "0.1,0.2,0.3", "alpha": "0.9,0.95"},
    "seeds": [0, 1],
    "tuning_seeds": [10_000, 10_001],
    "methods": [
        {
            "method": "fedveca",
            "chosen": {"lr": 0.2, "alpha": 0.95},
            "trials": [
                {
                    "settings": {"lr": lr, "alpha": alpha},
                    "values": [mean, mean] if mean else [None, 0.5],
                    "losses": [1.0, 1.0],
                    "mean": mean,
                    "loss": 1.0,
                }
                for lr, by_alpha in ((0.1, (0.5, 0.6)), (0.2, (0.7, 0.8)), (0.3, (None, 0.4)))
                for alpha, mean in zip((0.9, 0.95), by_alpha, strict=True)
            ],
        },
        {
            "method": "fedavg",
            "chosen": {"lr": 0.3},
            "trials": [
                {"settings": {"lr": lr}, "values": [a, b], "losses": [1.0, 1.0], "mean": (a + b) / 2, "loss": 1.0}
                for lr, a, b in ((0.1, 0.2, 0.4), (0.2, 0.4, 0.6), (0.3, 0.6, 0.8))
            ],
        },
    ],
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    e = Experiment(**(SMALL | {"rounds": 2}))
    out = tmp_path_factory.mktemp("sweep") / "out"
    return sweep(e, {"lr": (0.01, 0.1)}, 1, out, methods=("fedveca", "fedavg"), device="cpu")


def test_the_chosen_settings_with_their_validation_values() -> None:
    assert list_chosen(CONTENT) == [
        ("FedVeca", "lr=0.2 alpha=0.95", "80.00 ±0.00 %", "6"),
        ("FedAvg", "lr=0.3", "70.00 ±14.14 %", "3"),
    ]
    said = " ".join(explain_sweep(CONTENT))
    assert "validation accuracy of the kept models on 10 % of each client's rows, with seeds 10000 to 10001" in said
    assert "a value beyond it may be better: FedAvg lr=0.3." in said  # of FedVeca's alphas, only two were tried
    assert "1 of the settings diverged on at least one seed" in said
    assert explain_sweep({**CONTENT, "state": "tuning"})[0].startswith("The sweep is not finished")


def test_the_maps_have_the_means_and_mark_what_was_chosen() -> None:
    data = make_sweep_data(CONTENT)
    fedveca, fedavg = data["figures"]
    assert (fedveca["x"], fedveca["y"]) == ([0.1, 0.2, 0.3], [0.9, 0.95])
    assert fedveca["z"] == [[50.0, 70.0, None], [60.0, 80.0, 40.0]]
    assert fedveca["best"] == [(1, 1)]
    assert fedveca["texts"][0][2] == ""
    assert fedveca["about"].endswith("An empty cell diverged on at least one seed.")
    assert (fedavg["y"], fedavg["z"][0]) == (["FedAvg"], pytest.approx([30.0, 50.0, 70.0]))
    assert (data["low"], data["high"], data["rising"], data["percent"]) == (pytest.approx(30), 80.0, True, True)
    ranges: SweepContent = {**CONTENT, "space": {"lr": "0.1..0.3", "alpha": "0.9,0.95"}}
    points, alone = make_sweep_data(ranges)["figures"]
    assert (points["kind"], points["log_x"], points["log_y"]) == ("points", True, False)
    assert (points["x"], points["y"]) == ([0.1, 0.1, 0.2, 0.2, 0.3], [0.9, 0.95, 0.9, 0.95, 0.95])
    assert (alone["y"], alone["y_title"]) == (alone["z"][0], "validation accuracy")


def test_a_report_of_the_whole_folder_compares_only_reported_runs(swept: Sweep, tmp_path: Path) -> None:
    runs, _ = find_runs([swept.folder])
    assert len(runs) == 4 + 2
    left, sweeps = find_sweeps(runs)
    assert sorted(str(run.folder) for run in left) == sorted(str(run.folder) for run in swept.runs)
    assert sweeps == [(swept.folder, swept.content)]
    tuning = [run for run in runs if run not in left]
    assert find_sweeps(tuning) == (tuning, [])  # alone they can be looked at
    done = write_report(runs, tmp_path / "report.html")
    assert done["runs"] == 2
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "How the settings were chosen" in page
    assert 'id="t0-map0"' in page
    places = [page.index(part) for part in ('class="question"', 'class="answer', 'id="s0-results"', 'id="t0"')]
    assert places == sorted(places)  # what was compared, and the answer, come before how settings were chosen
    shutil.copytree(swept.folder, tmp_path / "copy")
    (tmp_path / "copy" / "sweep.json").write_text(json.dumps({"state": "<script>"}))
    assert find_sweeps(find_runs([tmp_path / "copy"])[0])[1] == []


@pytest.mark.parametrize("width", [110, 60, 40])
def test_the_terminal_cuts_no_digit(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(make_sweep_table(CONTENT, "digits", width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    joined = " ".join(out.getvalue().split())
    for text in ("lr=0.3", "80.00", "70.00", "FedAvg"):
        assert text in joined
    assert ("settings tried" in joined.partition("Not shown at this width")[0]) == (width == 110)
    assert ("Not shown at this width: settings tried" in joined) == (width < 110)


def test_the_command_line(swept: Sweep, tmp_path: Path, capsys: Any) -> None:
    words = [f"{key}={value}" for key, value in (SMALL | {"rounds": 2}).items() if key != "lr"]
    line = ["sweep", *words, "lr=0.01,0.1", "--methods", "fedveca,fedavg", "--seeds", "1", "--workers", "1"]
    assert main([*line, "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == swept.settings
    assert found["sweep"] == swept.content
    assert [row["method"] for row in found["table"]] == ["fedveca", "fedavg"]
    assert {entry["cost"] for entry in found["targets"]} <= {"rounds", "steps", "rows", "bytes", "seconds"}
    assert Run.open(tmp_path / "out" / "reported" / "fedavg-seed0").summary
    assert (tmp_path / "out" / "report.html").exists()
    assert main([*line, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0  # nothing is repeated
    said = capsys.readouterr()
    assert "settings chosen on validation rows" in said.out
    assert "each method with its chosen settings" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a sweep needs a setting with several values, such as lr=0.01,0.1 or lr=0.001..0.1"),
        (["lr=0.1,0.2", "--trials", "0"], "--trials 0 is out of range"),
        (["lr=0.1,0.2", "--seeds", "0"], "--seeds 0 is out of range"),
        (["lr=0.1,x"], "lr=x is not a number"),
        (["clients=3,4"], "clients=3,4 cannot be swept"),
        (["lr=0.1,0.2", "--methods", "nobody"], "method=nobody is not known"),
    ],
)
def test_misuse_of_the_command(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
