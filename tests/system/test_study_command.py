"""`fedveca study`: runs, table, report, and that what is finished is not repeated."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from recorded import require_number

from fedveca.cli import main
from fedveca.runs.folder import Run
from fedveca.runs.study import read_study

ROOT = Path(__file__).parents[2]
TEXT = """
methods = ["fedveca", "fedavg"]
seeds = 2
settings = { rounds = 3, batch = 8, probe = 16, tau_max = 5 }
[[study]]
[[study]]
name = "half"
settings = { alpha = 0.5 }
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path


@pytest.mark.slow
def test_it_runs_and_resumes(study: Path, capsys: Capture) -> None:
    argv = ["study", "mine.toml", "--device", "cpu"]
    assert main(argv) == 0
    out, progress = capsys.readouterr()
    assert "run 4 of 4: fedavg seed 1  accuracy " in progress
    assert "half: 2 seeds, mean ± standard deviation" in out
    assert "minus FedVeca" in out
    assert out.endswith("report: runs/mine/report.html   table: runs/mine/study.json   runs: runs/mine\n")
    folder = study / "runs" / "mine"
    assert {path.name for path in folder.iterdir()} == {"digits-case3", "half", "report.html", "study.json"}
    tables = json.loads((folder / "study.json").read_text())["studies"]
    assert [(t["name"], t["methods"]) for t in tables] == [(n, ["fedveca", "fedavg"]) for n in ("digits-case3", "half")]
    for table in tables:
        for row in table["rows"]:
            runs = [Run.open(folder / table["name"] / f"{row['method']}-seed{seed}") for seed in (0, 1)]
            values = [require_number(run.summary["kept"], "test_accuracy") for run in runs]
            assert row["kept"]["test_accuracy"]["values"] == values
            assert row["kept"]["test_accuracy"]["std"] == pytest.approx(statistics.stdev(values))
            assert runs[0].experiment.alpha == (0.5 if table["name"] == "half" else 0.95)
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("rounds.jsonl")}
    before = (folder / "study.json").read_bytes()
    half = folder / "half" / "fedavg-seed1"
    (half / "summary.json").unlink()
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert {path for path in made if path.stat().st_mtime_ns != made[path]} == {half / "rounds.jsonl"}
    assert (folder / "study.json").read_bytes() == before


def test_seeds_and_out_and_json(study: Path, capsys: Capture) -> None:
    assert (
        main(["study", "mine.toml", "--seeds", "1", "--out", "here", "--device", "cpu", "--data-dir", ".", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == "here"
    assert Run.open(study / "here" / "half" / "fedavg-seed0").experiment.data_dir == "."
    assert told["studies"][0]["rows"][0]["seeds"] == [0]
    assert told["studies"] == json.loads((study / "here" / "study.json").read_text())["studies"]


def test_a_diverged_run_is_left_out_and_named(study: Path, capsys: Capture) -> None:
    (study / "mine.toml").write_text(TEXT.replace("rounds = 3", "rounds = 30, lr = 1e4, model = 'svm'"))
    assert main(["study", "mine.toml", "--seeds", "1", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert "fedveca seed 0 stopped: round" in err
    assert "left out, because the run diverged: FedVeca seed 0" in out
    rows = json.loads((study / "runs/mine/study.json").read_text())["studies"][0]["rows"]
    assert (rows[0]["seeds"], rows[0]["diverged"]) == ([], [0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("none.toml", "none.toml does not exist"),
        ("mine.toml --seeds 0", "--seeds 0 is out of range; allowed: >= 1"),
        ("mine.toml --workers 0", "--workers 0 is out of range; allowed: >= 1"),
        ("mine.toml --out mine.toml", "mine.toml is a file; name a folder"),
        ("bad.toml", "bad.toml: methods is missing; it is a list such as ['fedveca', 'fedavg'], of "),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(study: Path, capsys: Capture, words: str, said: str) -> None:
    (study / "bad.toml").write_text("seeds = 2")
    assert main(["study", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"fedveca: {said}")
    assert {path.name for path in study.iterdir()} == {"mine.toml", "bad.toml"}


def test_every_committed_study_can_be_read() -> None:
    """But for those of `public`, `rivals` and `wang`, which are not studies alone and have readers of their own."""
    files = [path for path in (ROOT / "studies").rglob("*.toml") if path.name != "preset.toml"]
    files = [path for path in files if path.parent.name not in ("public", "rivals", "wang")]
    assert len(files) >= 9
    assert all(read_study(path) for path in files)
