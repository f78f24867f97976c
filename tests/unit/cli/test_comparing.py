"""What compare, sweep and study say before they start, and where nothing is left to compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedveca.cli import main

Capture = pytest.CaptureFixture[str]
FAST = ["model=svm", "rounds=1", "batch=8"]


def test_what_is_wrong_is_said_before_pytorch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("my thesis")
    (tmp_path / "s.toml").write_text("methods = ['fedavg']")
    swept = ["sweep", "lr=0.01,0.1"]
    commands = [
        [*command, *wrong]
        for command in (["compare"], swept, ["compare", "--tune", "lr"], ["study", "s.toml"])
        for wrong in (
            ["--seeds", "0"],
            ["--workers", "0"],
            ["--seeds", "99999"],
            ["--out", "mine"],
            ["--out", "s.toml"],
        )
    ]
    commands += [["compare", "--methods", ""], [*swept, "--methods", ""], [*swept, "--trials", "0"]]
    code = (
        "import sys\nfrom fedveca.cli import main\n"
        f"for words in {commands}:\n"
        "    assert main(words) == 2, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loading" not in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "report.html", "s.toml"]


@pytest.mark.parametrize("command", [["compare"], ["compare", "--tune", "lr"], ["sweep", "lr=0.01,0.1"]])
def test_an_empty_list_of_methods_is_rejected(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--methods", ""]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "fedveca: --methods '' names no method; name some, such as fedveca,fedavg, or leave --methods out for those of "
        "the paper\n",
    )


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ("1", "The run diverged, so that there is no model to compare; a smaller lr usually helps (now lr=1e+30)."),
        ("2", "All 2 runs diverged, so that there is no model to compare; a smaller lr usually helps (now lr=1e+30)."),
    ],
)
def test_a_comparison_without_a_model_says_what_to_do(
    seeds: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "lr=1e30", "batch=8", "rounds=2", "--methods", "fedavg", "--seeds", seeds, "--workers", "1"]
    assert main([*words, "--out", "c"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "c" / "report.html").read_text("utf-8")


def test_one_run_that_diverged_does_not_hide_the_others(tmp_path: Path, capsys: Capture) -> None:
    from fedveca import Experiment, compare
    from fedveca.views.comparison import compare_curves
    from fedveca.views.comparison_text import give_answer
    from fedveca.views.series import group_curves

    e = Experiment(model="svm", rounds=1, batch=8)
    runs = compare(e, 1, tmp_path / "a", methods=("fedavg", "fednova"), device="cpu", settings={"fedavg": {"lr": 1e30}})
    assert [run.diverged for run in runs] == [True, False]
    assert "FedNova" in give_answer(compare_curves(group_curves(runs)))


def test_a_report_of_damaged_files_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *FAST, "--quiet", "--out", "k"]) == 0
    lines = Path("k/rounds.jsonl").read_bytes()
    for name, content, said in (
        ("experiment.toml", b"\x92", "experiment.toml is not UTF-8 text: byte 0x92 at position 0"),
        ("summary.json", b"{\xff", "summary.json is not UTF-8 text: byte 0xff at position 1"),
        ("rounds.jsonl", lines + b"\x92\n", "line 2 of rounds.jsonl is not UTF-8 text: byte 0x92 at position 0"),
        ("experiment.toml", b"lr = -3", "experiment.toml: lr=-3.0 is out of range; allowed: > 0"),
        ("experiment.toml", b"bogus = 1", "experiment.toml: bogus is not a setting; `fedveca list` shows all"),
    ):
        before = Path("k", name).read_bytes()
        Path("k", name).write_bytes(content)
        assert main(["show", "k"]) == 2
        assert capsys.readouterr().err == f"fedveca: k is not a run folder: {said}\n"
        if name != "rounds.jsonl":  # of which the list reads the end alone
            assert main(["runs", ".", "--json"]) == 0
            (row,) = json.loads(capsys.readouterr().out)["runs"]
            assert (row["state"], row["why"]) == ("damaged", said)
        Path("k", name).write_bytes(before)
    assert main(["runs", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "finished"
