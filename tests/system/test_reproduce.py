"""The paper's evaluation from one command: what it leaves, and that it resumes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from committed import check_table1
from shrunken_studies import Shrink, shrink  # noqa: F401 (a fixture)

from fedveca.cli import main, study
from studies.paper.reported import TASKS
from studies.paper.reproduce import read_studies

ROOT = Path(__file__).parents[2]
STUDIES = read_studies()
SVM = [study.name for study in {s.name: s for of in STUDIES.values() for s in of}.values() if "svm" in study.name]
Capture = pytest.CaptureFixture[str]


def standing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_all_of_it(shrink: Shrink, tmp_path: Path, capsys: Capture) -> None:
    argv = ["reproduce", "--seeds", "2", "--device", "cpu"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    results = tmp_path / "reproduction" / "results"
    assert printed.endswith("report: reproduction/report.html   results: reproduction/results   runs: reproduction\n")
    found = {what: json.loads((results / f"{what}.json").read_text()) for what in STUDIES}
    for what, content in found.items():
        assert content["what"] == what
        assert content["command"] == f"fedveca reproduce {what} --seeds 2"
        assert list(content["studies"]) == [study.name for study in STUDIES[what]]
        assert content["environments"][0]["device"] == "cpu"
        assert sorted(s for e in content["environments"] for s in e["studies"]) == sorted(content["studies"])
        for claim in content["claims"]:
            assert set(claim) == {"claim", "holds", "evidence"}
            assert claim["holds"] in (True, False, "partly")
            assert claim["claim"].endswith(".")
            assert re.search(r"\d", claim["evidence"])
            assert claim["claim"].split()[0] in printed
        assert content["claims"]
        for name in content["figures"]:
            assert (results / name).read_text().startswith("<?xml")
        assert str(tmp_path) not in json.dumps(content)
    assert {path.name for path in results.iterdir()} == {
        *(f"{what}.json" for what in found),
        *(name for content in found.values() for name in content["figures"]),
    }
    assert [entry["task"] for entry in found["table1"]["results"]] == list(TASKS)
    check_table1(found["table1"], seeds=2)

    before, made = standing(results), {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rounds.jsonl")}
    half = tmp_path / "reproduction" / "svm-mnist-case2" / "scaffold-seed1"
    (half / "summary.json").unlink()
    assert main([*argv, "cases", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert standing(results) == before  # the same bytes for the same runs
    again = {p for p in tmp_path.rglob("rounds.jsonl") if p.stat().st_mtime_ns != made[p]}
    assert again == {half / "rounds.jsonl"}  # finished work is not repeated


@pytest.mark.slow
def test_some_of_it(shrink: Shrink, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "here"
    argv = ["reproduce", "all", "--tasks", "svm-mnist", "--seeds", "1", "--out", "here"]
    assert main([*argv, "--device", "cpu"]) == 0
    said = re.findall(r"run (\d) of 6: (\w+) seed 0  accuracy ", capsys.readouterr().err)
    assert [number for number, _ in said[:6]] == list("123456")  # in the order in which they end
    names = {"fedveca", "fedavg", "fedprox", "fednova", "scaffold", "centralised"}
    assert {method for _, method in said[:6]} == names
    assert {path.name for path in out.iterdir()} == {"results", "report.html", *SVM}
    content = json.loads((out / "results" / "table1.json").read_text())
    assert content["command"] == "fedveca reproduce table1 --seeds 1 --tasks svm-mnist"
    assert [entry["task"] for entry in content["results"]] == ["svm-mnist"]
    lead = content["results"][0]["rows"][1]["fedveca_minus_this"]["kept"]["test_loss"]
    assert lead["interval"] is None  # one seed has no spread


@pytest.mark.slow
def test_seeds_side_by_side_are_the_same(shrink: Shrink, tmp_path: Path, capsys: Capture) -> None:
    argv = ["reproduce", "instant", "--seeds", "2", "--device", "cpu"]
    assert main([*argv, "--out", "one"]) == 0
    assert main([*argv, "--out", "two", "--workers", "2"]) == 0
    assert "scaffold seed 1  accuracy" in capsys.readouterr().err
    assert (tmp_path / "one/results/instant.svg").read_bytes() == (tmp_path / "two/results/instant.svg").read_bytes()
    tables = [(tmp_path / out / "svm-mnist-case3" / "table.json").read_text() for out in ("one", "two")]
    assert tables[0] == tables[1]


def test_runs_that_stopped_make_no_result(shrink: Shrink, tmp_path: Path, capsys: Capture) -> None:
    shrink(lr=1e4, rounds=30)
    assert main(["reproduce", "instant", "--seeds", "1", "--device", "cpu", "--quiet"]) == 1
    assert "fedveca seed 0 stopped: round" in capsys.readouterr().err
    assert not (tmp_path / "reproduction" / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("curvs", "curvs is not known (did you mean curves?); it is one of table1, "),
        ("--seeds 0", "--seeds 0 is out of range; allowed: >= 1"),
        ("--workers 0", "--workers 0 is out of range; allowed: >= 1"),
        ("--tasks mnist", "--tasks mnist is not known; it names some of svm-mnist,cnn-mnist,cnn-cifar10"),
        ("cases --tasks cnn-mnist", "cases has no runs of cnn-mnist; its tasks are svm-mnist"),
        ("--out file", "file is a file; name a folder"),
    ],
)
def test_refused(shrink: Shrink, tmp_path: Path, capsys: Capture, words: str, said: str) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["reproduce", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedveca: {said}")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_runs_with_other_settings_are_refused(shrink: Shrink, capsys: Capture) -> None:
    argv = ["reproduce", "instant", "--seeds", "1", "--device", "cpu", "--quiet"]
    assert main(argv) == 0
    shrink(lr=0.02)
    assert main(argv) == 2
    assert "holds a run with other settings; name another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_study_is_the_same_command(tmp_path: Path) -> None:
    """`python -m studies.paper` in the clone, from the clone's root."""
    words = [sys.executable, "-m", "studies.paper", "curvs"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("fedveca: curvs is not known (did you mean curves?); it is one of table1, ")


def test_without_a_clone_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(study, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "table1"]) == 2
    assert capsys.readouterr() == (
        "",
        f"fedveca: reproduce needs a clone of the repository: {tmp_path} has no folder studies/paper\n",
    )
    shutil.copytree(ROOT / "studies", tmp_path / "studies")  # the working folder is a clone's root
    assert main(["reproduce", "curvs"]) == 2
    assert "curvs is not known" in capsys.readouterr().err
