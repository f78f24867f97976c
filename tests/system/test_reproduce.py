"""The paper's evaluation from one command: what it leaves, that it goes on, and that the committed results add up."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from shrunken_studies import Shrink, shrink  # noqa: F401 (a fixture)

from fedveca.algorithms.registry import paper_methods
from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.reproduce import STUDIES, TASKS, reproduce
from fedveca.runs.run import run
from fedveca.views.measures import clear, grid, handed_out, median, paired, reached, roughness, said
from fedveca.views.paper import PAPER

DOCS = Path(__file__).parents[2] / "docs"
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


def test_some_of_it(shrink: Shrink, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "here"
    argv = ["reproduce", "all", "--tasks", "svm-mnist", "--seeds", "1", "--out", "here"]
    assert main([*argv, "--device", "cpu"]) == 0
    assert "centralised seed 0  round 14/14" in capsys.readouterr().err
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
    assert "svm-mnist-case3: scaffold seed 1  accuracy" in capsys.readouterr().err
    assert (tmp_path / "one/results/instant.svg").read_bytes() == (tmp_path / "two/results/instant.svg").read_bytes()
    tables = [(tmp_path / out / "svm-mnist-case3" / "table.json").read_text() for out in ("one", "two")]
    assert tables[0] == tables[1]


def test_watchers_are_told(shrink: Shrink, tmp_path: Path) -> None:
    ran, ended = [], []
    runs = reproduce(
        "alpha",
        1,
        tmp_path / "r",
        device="cpu",
        started=lambda e: ran.append(e.alpha),
        ended=lambda study, run: ended.append(study.name),
    )
    assert ran == [0.95] * 6 + [0.5, 0.995]
    assert ended == [study for study, mine in runs.items() for _ in mine]


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


def test_runs_with_other_settings_are_refused(shrink: Shrink, capsys: Capture) -> None:
    argv = ["reproduce", "instant", "--seeds", "1", "--device", "cpu", "--quiet"]
    assert main(argv) == 0
    shrink(lr=0.02)
    assert main(argv) == 2
    assert "holds a run with other settings; name another folder" in capsys.readouterr().err


# what is read off runs


def invented(*losses: float, accepted: str = "", kept: int = 0) -> Run:
    lines = [
        {"round": k, "test_loss": v, "test_accuracy": 1 - v, "accepted": (accepted or "1" * len(losses))[k] == "1"}
        for k, v in enumerate(losses)
    ]
    return Run(Experiment(), lines, {"kept": {"round": kept}})


def test_rounds_until_a_level() -> None:
    runs = [invented(0.5, 0.3, 0.2), invented(0.5, 0.4, 0.35), invented(0.3, 0.9, 0.9)]
    assert reached(runs, "test_loss", 0.3) == [2, math.inf, 1]
    assert reached(runs, "test_accuracy", 0.5) == [1, 1, 1]
    assert median([2, math.inf, 1]) == 2
    assert median([1, 2]) == 1.5
    assert math.isinf(median([1, math.inf]))
    assert said([1, 2]) == "1.5"
    assert said([math.inf]) == "never in half of the seeds"
    assert roughness(runs[:1], "test_loss", 2) == pytest.approx(0.15)
    assert roughness(runs[:1], "test_loss", 1) == pytest.approx(0.1)


def test_the_model_handed_out_is_the_last_accepted_one() -> None:
    # w_1 is judged on line 1, w_2 on line 2, w_3 in the summary; line 0 judges w_0
    for accepted, kept, curve in (("110", 3, [0.5, 0.5, 0.2]), ("111", 2, [0.5, 0.7, 0.7])):
        seen = handed_out(invented(0.5, 0.7, 0.2, accepted=accepted, kept=kept))
        assert grid([seen], "test_loss").tolist() == [curve]


def test_the_kept_curve_ends_at_the_kept_model() -> None:
    done = run(Experiment(rounds=12, batch=8), device="cpu")
    for name in ("test_loss", "test_accuracy"):
        assert handed_out(done).rounds[-1][name] == done.summary["kept"][name]


def test_paired_differences() -> None:
    found = paired([3.0, 4.0, 5.0], [1.0, 3.0, 2.0])
    assert found["mean"] == 2
    assert found["interval"] == pytest.approx([2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5], rel=1e-6)
    assert not clear(found, "test_accuracy")
    assert clear({"mean": 1, "interval": [0.5, 1.5]}, "test_accuracy")
    assert clear({"mean": -1, "interval": [-1.5, -0.5]}, "test_loss")
    assert clear(paired([2.0], [1.0]), "test_accuracy")
    assert not clear(paired([2.0], [1.0]), "test_loss")


# what is committed


def check_table1(content: dict[str, Any], seeds: int) -> None:
    """Every aggregate is what its own values give."""
    for entry in content["results"]:
        rows = {row["method"]: row for row in entry["rows"]}
        assert list(rows) == list(paper_methods())
        for method, row in rows.items():
            assert row["paper"] == PAPER[entry["task"]][method]
            for which in ("last", "kept"):
                for name in ("test_loss", "test_accuracy"):
                    cell, ours = row[which][name], rows["fedveca"][which][name]
                    assert len(cell["values"]) == seeds == len(row["seeds"])
                    assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"]), rel=1e-6)
                    assert cell["std"] == pytest.approx(statistics.stdev(cell["values"]), rel=1e-6)
                    if method != "fedveca":
                        lead = row["fedveca_minus_this"][which][name]
                        again = paired(ours["values"], cell["values"])
                        assert lead["mean"] == pytest.approx(again["mean"], rel=1e-4, abs=1e-9)
                        assert lead["interval"] == pytest.approx(again["interval"], rel=1e-4, abs=1e-9)


def test_committed_table_adds_up() -> None:
    content = json.loads((DOCS / "results" / "table1.json").read_text())
    assert [entry["task"] for entry in content["results"]] == list(TASKS)
    check_table1(content, seeds=10)
    for entry in content["results"]:
        fedveca, *rivals = entry["rows"]
        kept = fedveca["kept"]["test_accuracy"]
        assert fedveca["reaches_paper"]
        assert kept["mean"] >= fedveca["paper"]["test_accuracy"] - kept["std"]
        ahead = {row["method"]: row["fedveca_minus_this"]["kept"]["test_accuracy"] for row in rivals}
        for rival in ("fedavg", "fedprox", "fednova"):
            assert ahead[rival]["ahead"]
            assert ahead[rival]["interval"][0] > 0


def test_committed_pages_show_every_figure() -> None:
    pages = (page.read_text("utf-8") for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"))
    shown = {name for page in pages for name in re.findall(r"results/([\w-]+\.svg)", page)}
    assert shown == {path.name for path in (DOCS / "results").glob("*.svg")}
    assert {path.stem for path in (DOCS / "results").glob("*.json")} >= set(STUDIES)


def test_committed_pages_name_what_exists() -> None:
    """Every `file.py: name` of the method's page is there."""
    source = Path(__file__).parents[2] / "src" / "fedveca"
    named = re.findall(r"`(?!tests/)([\w/]+\.py)`(?:: `([\w.]+)`)?", (DOCS / "method.md").read_text())
    assert len(named) > 20
    for file, name in named:
        text = (source / file).read_text()
        for part in name.split(".") if name else ():
            assert re.search(rf"\b(def|class) {part}\b|^{part}\b.*=", text, re.MULTILINE), f"{file}: {name}"
