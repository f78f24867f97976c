"""Reports as files: what they say, what they reject, and that words from a folder stay words."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from html import unescape
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from recorded import require_number

from fedveca.algorithms.registry import methods, paper_methods
from fedveca.cli import main
from fedveca.cli.arguments import parse_experiment
from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.theory import count_conditions
from fedveca.views.paths import find_runs
from fedveca.views.report.plotly_bundle import pack_script, plotly_script
from fedveca.views.report.report import write_report

Capture = pytest.CaptureFixture[str]
SETTINGS: dict[str, Any] = {"model": "svm", "rounds": 6, "batch": 16, "lr": 0.01}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    compare(Experiment(**SETTINGS), 2, folder, methods=("fedveca", "fedavg"))
    return folder


def reported(folder: Path, *more: str) -> str:
    """The report's text without Plotly's."""
    assert main(["report", str(folder), "-o", str(folder / "report.html"), "--quiet", *more]) == 0
    text = (folder / "report.html").read_text("utf-8")
    return text.replace(pack_script(), "")


def data(text: str) -> Any:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])


def words(text: str) -> str:
    """What a reader reads."""
    shown = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_a_report_asks_answers_and_tells_how_to_run_it_again(runs: Path) -> None:
    text = reported(runs)
    said = words(text)
    assert "Which of FedVeca and FedAvg trains the best squared SVM on digits? 5 clients; half of the clients " in said
    assert "6 rounds, mini-batches of 16, learning rate 0.01. 2 seeds each." in said
    values = {
        m: [require_number(Run.open(runs / f"{m}-seed{s}").summary["kept"], "test_accuracy") for s in (0, 1)]
        for m in ("fedveca", "fedavg")
    }
    best = max(values, key=lambda m: sum(values[m]))
    assert f"{ {'fedveca': 'FedVeca', 'fedavg': 'FedAvg'}[best] } has the best test accuracy of the kept models" in said
    for pair in values.values():
        assert f"{50 * sum(pair):.2f} ±" in said
    expected = "fedveca compare digits-case3 model=svm rounds=6 batch=16 lr=0.01 --methods fedveca,fedavg --seeds 2"
    assert expected in said
    assert "torch: " in said


ANY_MODEL = [name for name, entry in methods().items() if not entry.algorithm.has_loss]  # the SVM too


def printed(text: str) -> list[str]:
    """The commands of "Run it again"."""
    return unescape(re.findall(r"Run it again .*?<pre[^>]*>(.*?)</pre>", text, re.S)[0]).splitlines()


def experiments_in(folder: Path) -> dict[str, Experiment]:
    """Every run's settings by its folder's name."""
    return {path.parent.name: Run.open(path.parent).experiment for path in folder.glob("*/experiment.toml")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (paper_methods(), {"seed": 3}, "digits-case3 model=svm rounds=2 batch=16 lr=0.01 seed=3 --seeds 2"),
        (("fedveca", "fedprox", "scaffold"), {}, "--methods fedveca,fedprox,scaffold --seeds 2"),
        (tuple(ANY_MODEL), {}, f"--methods {','.join(ANY_MODEL)} --seeds 2"),
        (("fedveca",), {}, "--methods fedveca --seeds 2"),
        (("corrected", "fedavg", "fedveca"), {"rounds": 4}, "--methods corrected,fedveca,fedavg --seeds 2"),
        (("fedavg", "fednova", "fedveca"), {"tau_all": 40}, "tau_all=40 --methods fedavg,fednova,fedveca --seeds 2"),
    ],
)
def test_a_printed_comparison_makes_the_same_runs(
    methods: tuple[str, ...], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """The printed command is run, and leaves runs with the same methods, seeds and settings."""
    compare(Experiment(**SETTINGS | {"rounds": 2} | settings), 2, tmp_path / "first", methods=methods)
    (command,) = printed(reported(tmp_path / "first"))
    assert command.startswith("fedveca compare digits-case3 ")
    assert command.endswith(words)
    assert main([*shlex.split(command)[1:], "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert experiments_in(tmp_path / "again") == experiments_in(tmp_path / "first")
    assert len(experiments_in(tmp_path / "first")) == 2 * len(methods)


@pytest.mark.parametrize(
    "settings",
    [
        [{"method": "corrected", "seed": 1}],
        [{"seed": 0}, {"seed": 2}, {"method": "fedavg", "seed": 0}, {"method": "fedavg", "seed": 2}],
        [{"alpha": 0.9}, {"alpha": 0.5}],
        [{}, {"method": "fedavg", "tau_all": 7}, {"method": "fedprox", "tau_all": 8}],
        [{"tau_all": 9}, {"method": "fedavg", "tau_all": 9}],
        [{}, {"method": "fedavg", "test_every": 2}],
        [{"seed": 0}, {"method": "fedavg", "seed": 1}],
    ],
)
def test_other_runs_are_printed_one_by_one(settings: list[dict[str, Any]], tmp_path: Path) -> None:
    for i, mine in enumerate(settings):
        run(Experiment(**SETTINGS | {"rounds": 1} | mine), tmp_path / str(i))
    lines = printed(reported(tmp_path))
    assert all(line.startswith("fedveca run ") for line in lines)
    again = [parse_experiment(shlex.split(line)[2:])[1] for line in lines]
    expected = experiments_in(tmp_path).values()
    assert sorted(again, key=str) == sorted(expected, key=str)


def hits(outputs: Any, labels: Any) -> Any:
    return (outputs.argmax(-1) == labels).float()


def test_runs_with_custom_objects_are_made_again_from_python(tmp_path: Path) -> None:
    e = Experiment(**SETTINGS | {"rounds": 1, "model": "mlp"})
    run(e, tmp_path / "a", metric=hits)
    run(e, tmp_path / "b")
    text = reported(tmp_path)
    assert [line.split()[:2] for line in printed(text)] == [["fedveca", "run"], ["#", "started"]]
    assert (
        printed(text)[1]
        == "# started from Python with custom objects: 1 runs; make them again there, with the same objects"
    )
    shutil.rmtree(tmp_path / "b")
    assert [line[:9] for line in printed(reported(tmp_path))] == ["# started"]
    assert "fedveca run" not in words(reported(tmp_path))


def test_the_budget_is_an_upper_bound(tmp_path: Path) -> None:
    """Each rival's steps are rounded down, so that it takes at most as many as the method that set the total."""
    runs = compare(Experiment(**SETTINGS | {"rounds": 2}), 1, tmp_path, methods=("fedveca", "fedavg", "corrected"))
    steps = [done.summary["tau_all"] for done in runs]
    assert steps[1] <= steps[0]
    sentence = "may take at most as many local steps as FedVeca took: the paper's fair protocol."
    assert sentence in words(reported(tmp_path))
    set_total = tmp_path / "fedavg-seed0" / "experiment.toml"
    set_total.write_text(set_total.read_text().replace("tau_all = ", "tau_all = 1"))
    assert "fair protocol" not in words(reported(tmp_path))


@pytest.mark.parametrize(("better", "best"), [(None, None), ("higher", "FedVeca"), ("lower", "FedAvg")])
def test_a_custom_metric_has_a_best_only_where_it_states_its_direction(
    better: str | None, best: str | None, runs: Path, tmp_path: Path
) -> None:
    for method, value in (("fedveca", 0.68), ("fedavg", 0.54)):
        folder = tmp_path / f"{method}-seed0"
        shutil.copytree(runs / folder.name, folder)
        lines = [line | {"test_within_half": value} for line in Run.open(folder).rounds]
        for line in lines:
            del line["test_accuracy"]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {which: {"round": 6, "test_loss": 0.5, "test_within_half": value} for which in ("kept", "last")}
        (folder / "summary.json").write_text(json.dumps(summary))
        environment = json.loads((folder / "environment.json").read_text())
        if better:
            environment["better"] = {"test_within_half": better}
        (folder / "environment.json").write_text(json.dumps(environment))
    text = reported(tmp_path)
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', text)
    leaders = {label for label, cells in rows if re.search(r"data-value[^>]*>best<", cells)}
    assert leaders == ({best} if best else set())
    assert 'class="best"' not in text  # one seed decides nothing
    answer = words(re.findall(r'<p class="answer">(.*?)</p>', text)[0])
    assert ("best test within half" in answer) == bool(better)
    if better == "higher":
        assert answer.startswith("FedVeca has the best test within half of the kept models, 0.6800")


def test_a_run_that_diverged_is_left_out_of_the_means_and_counted(runs: Path, tmp_path: Path) -> None:
    for path in runs.glob("*-seed*"):
        shutil.copytree(path, tmp_path / path.name)
    summary = json.loads((tmp_path / "fedavg-seed1" / "summary.json").read_text())
    summary |= {"stopped": "round 3: not finite", "kept": {"round": 3, "test_loss": 99.0, "test_accuracy": 0.001}}
    (tmp_path / "fedavg-seed1" / "summary.json").write_text(json.dumps(summary))
    text = reported(tmp_path)
    assert "FedAvg (1 diverged)" in words(text)
    kept = Run.open(runs / "fedavg-seed0").summary["kept"]
    row = re.findall(r'<tr><th scope="row">FedAvg.*?</tr>', text)[0]
    assert f">{100 * require_number(kept, 'test_accuracy'):.2f} %<" in row
    assert f">{kept['test_loss']:.4f}<" in row
    assert "Runs that diverged are left out." in words(text)
    for seed in (0, 1):
        summary = json.loads((tmp_path / f"fedavg-seed{seed}" / "summary.json").read_text())
        (tmp_path / f"fedavg-seed{seed}" / "summary.json").write_text(json.dumps(summary | {"stopped": "x"}))
    row = re.findall(r'<tr><th scope="row">FedAvg.*?</tr>', reported(tmp_path))[0]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row)[:-1] == ["-"] * 6


def test_every_figure_has_words_instead(runs: Path) -> None:
    text = reported(runs)
    plots = re.findall(
        r'<div class="plot" id="[\w-]+" role="group" aria-label="([^"]*)"></div><figcaption>(.+?)<', text
    )
    assert len(plots) == text.count("<figure") == 3 + 4 + 6 + 1  # two seeds have no interval to draw
    last = [require_number(Run.open(runs / f"fedveca-seed{seed}").rounds[-1], "test_loss") for seed in (0, 1)]
    assert f"FedVeca ends at {sum(last) / 2:.4f}" in plots[0][0]
    assert all(len(alternative) > 40 for alternative, _ in plots)


def test_the_numbers_drawn_are_those_recorded(runs: Path) -> None:
    section = data(reported(runs))["sections"][0]
    lines = Run.open(runs / "fedveca-seed0").rounds
    assert [run["label"] for run in section["runs"]] == ["FedVeca, seed 0", "FedVeca, seed 1"]
    tau, A, beta, delta = section["runs"][0]["maps"]
    assert [m["name"] for m in (tau, A, beta, delta)] == ["tau", "A", "beta", "delta"]
    assert tau["z"] == [[line["tau"][i] for line in lines] for i in range(5)]
    assert A["z"][4][0] == pytest.approx(lines[1]["A"][4], rel=1e-3)
    assert A["rounds"] == [2, 3, 4, 5, 6]
    bounds = {line["name"]: line["bound"] for line in section["runs"][0]["lines"]}
    conditions = {"premise": 1, "condition_alpha": 1, "condition_step": 0, "condition_drift": 1}
    assert bounds == {"tau_k": None, "L": None, **conditions}
    drift = section["runs"][0]["lines"][-1]
    assert drift["y"] == pytest.approx([require_number(line, "condition_drift") for line in lines[1:]], rel=1e-3)
    assert section["runs"][0]["partition"] == 0
    assert len(section["partitions"]) == 1  # case3 does not depend on the seed
    mean = section["curves"][0]["metrics"]["test_accuracy"]["mean"]
    both = [require_number(Run.open(runs / f"fedveca-seed{s}").rounds[5], "test_accuracy") for s in (0, 1)]
    assert mean[5] == pytest.approx(sum(both) / 2, rel=1e-5)


def test_what_a_folder_lacks_is_said(runs: Path, tmp_path: Path) -> None:
    for name in ("fedveca-seed0", "fedavg-seed0"):
        shutil.copytree(runs / name, tmp_path / name)
        for gone in ("partition.json", "summary.json", "environment.json"):
            (tmp_path / name / gone).unlink()
    (tmp_path / "fedavg-seed0" / "rounds.jsonl").write_text("")
    text = reported(tmp_path)
    said = words(text)
    assert "These run folders have no partition.json that can be read, so the partition cannot be drawn." in said
    assert "The label mix is not drawn: this run folder has no partition.json that can be read." in said
    assert said.count("(1 not ended)") == 2
    assert data(text)["sections"][0]["runs"][0]["partition"] is None
    shutil.rmtree(tmp_path / "fedveca-seed0")
    assert "No model was tested yet." in words(reported(tmp_path))


def test_a_metric_of_its_own_and_no_accuracy(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedavg-seed0", tmp_path / "a")
    lines = [line | {"test_mse": 1 / (k + 1)} for k, line in enumerate(Run.open(tmp_path / "a").rounds)]
    for line in lines:
        del line["test_accuracy"]
    (tmp_path / "a" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    summary |= {which: {"round": 6, "test_loss": 0.5, "test_mse": 0.125} for which in ("kept", "last")}
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary))
    said = words(reported(tmp_path))
    assert "test mse" in said
    assert "0.1250" in said
    assert "accuracy" not in said


def test_tasks_that_cannot_be_compared_stand_apart(runs: Path, tmp_path: Path) -> None:
    run(Experiment(**SETTINGS | {"model": "mlp", "rounds": 2}), tmp_path / "mlp")
    made = write_report([*find_runs([runs])[0], Run.open(tmp_path / "mlp")], tmp_path / "r.html")
    assert (made["runs"], made["sections"]) == (5, 2)
    assert made["bytes"] == (tmp_path / "r.html").stat().st_size
    assert re.findall(r'<a href="#(s\d)">([^<]*)', (tmp_path / "r.html").read_text("utf-8")) == [
        ("s0", "squared SVM on digits, 5 clients, Case 3: 2 methods compared"),
        ("s1", "MLP on digits, 5 clients, Case 3: FedVeca"),
    ]


def test_many_clients_and_rounds_keep_within_bounds(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedveca-seed0", tmp_path / "a")
    numbers = [1.25] * 150
    line = dict.fromkeys(("beta", "delta", "A"), numbers) | {"ids": list(range(150)), "tau": [2] * 150, "tau_k": 2.0}
    text = "".join(json.dumps(line | {"round": k, "test_loss": 1 / (k + 1)}) + "\n" for k in range(600))
    (tmp_path / "a" / "rounds.jsonl").write_text(text)
    text = reported(tmp_path)
    assert len(text) < 2_500_000
    assert "100 of 150 clients are drawn, evenly spaced." in words(text)
    assert [len(m["rounds"]) for m in data(text)["sections"][0]["runs"][0]["maps"]] == [500] * 4


def test_a_report_of_four_small_runs_can_be_mailed(runs: Path) -> None:
    reported(runs)
    assert (runs / "report.html").stat().st_size < 1_200_000


def test_a_repeated_run_is_not_another_seed(runs: Path, tmp_path: Path) -> None:
    for name in ("fedveca-seed0", "fedveca-seed1", "fedavg-seed0", "fedavg-seed1"):
        shutil.copytree(runs / name, tmp_path / name)
    before = words(reported(tmp_path))
    shutil.copytree(runs / "fedveca-seed0", tmp_path / "again")
    after = words(reported(tmp_path))
    assert "1 run repeats a seed with identical results and is not counted again." in after
    answers = [re.findall(r"trains the best .*? Results", said)[0] for said in (before, after)]
    assert answers[0] == answers[1]
    assert "from 5 run folders" in after


def test_a_report_has_contents_and_a_date(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    text = reported(runs)
    assert "Made on 2023-11-14 by fedveca" in words(text)
    contents = re.findall(r'<li><a href="#([^"]+)">', text)
    assert contents == ["s0-results", "s0-costs", "s0-curves", "s0-inside", "s0-rows", "s0-again"]
    assert all(f'id="{name}"' in text for name in contents)
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_each_condition_of_the_theory_has_a_conclusion(runs: Path) -> None:
    lines = Run.open(runs / "fedveca-seed0").rounds
    said = [unescape(text) for text in re.findall(r'<span class="conclusion">(.*?)</span>', reported(runs))]
    assert said == [count.describe() for count in count_conditions(lines).values()]
    alphas = [v for line in lines if (v := line.get("condition_alpha")) is not None]
    met = sum(v < 1 for v in alphas)
    assert f"Theorem 2's condition held in {met} of {len(alphas)} rounds." in said


def test_a_run_of_version_0_1_has_the_premise_only(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedveca-seed0", tmp_path / "old")
    path = tmp_path / "old" / "rounds.jsonl"
    old = [
        {k: v for k, v in json.loads(line).items() if "condition" not in k} for line in path.read_text().splitlines()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    (run,) = data(reported(tmp_path))["sections"][0]["runs"]
    assert [line["name"] for line in run["lines"]] == ["tau_k", "L", "premise"]


def test_each_run_is_found_once_and_what_is_not_one_is_skipped(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(runs / "fedavg-seed0", tmp_path / "deep" / "er" / "a")
    (tmp_path / "deep" / "torn").mkdir()
    (tmp_path / "deep" / "torn" / "experiment.toml").write_text("bogus = 1\n")
    found, skipped = find_runs([tmp_path, tmp_path / "deep", tmp_path / "deep" / "er" / "a"])
    assert [run.folder for run in found] == [tmp_path / "deep" / "er" / "a"]
    assert len(skipped) == 2
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"] == 1
    assert err.startswith(f"skipped: {tmp_path}/deep/torn is not a run folder: experiment.toml: bogus is not a setting")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["report", "none"], "none is not a folder; name run folders, or folders of them"),
        (["report", "empty"], "empty holds no run folder"),
        (["report", "torn"], "torn is not a run folder: "),
        (["report", "above"], "above holds no run that can be read: "),
        (["report", "RUNS", "-o", "file/r.html"], "file/r.html cannot be written: the folder file is not a folder"),
        (["figure", "RUNS", "-o", "f.jpg"], "f.jpg is not the name of a figure; it ends in .svg, .pdf, .png"),
        (
            ["figure", "RUNS", "-o", "nowhere/f.svg"],
            "nowhere/f.svg cannot be written: the folder nowhere does not exist",
        ),
        (["figure", "RUNS/fedavg-seed0", "--what", "tau"], "the figure tau needs a run of FedVeca"),
    ],
)
def test_rejected(
    argv: list[str], said: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "torn", "above/torn"):
        (tmp_path / folder).mkdir(parents=True)
        if "torn" in folder:
            (tmp_path / folder / "experiment.toml").write_text("rounds = 'x'\n")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main([word.replace("RUNS", str(runs)) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedveca: {said}")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("what", ["curves", "tau", "instant", "partition"])
def test_figures_for_papers(what: str, runs: Path, tmp_path: Path, capsys: Capture) -> None:
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    for suffix, first in begins.items() if what == "tau" else [("svg", b"<?xml")]:
        made = [tmp_path / f"{name}.{suffix}" for name in ("one", "two")]
        for path in made if what == "tau" else made[:1]:
            assert main(["figure", str(runs), "-o", str(path), "--what", what]) == 0
        assert made[0].read_bytes().startswith(first)
        assert what != "tau" or made[0].read_bytes() == made[1].read_bytes()
    text = (tmp_path / "one.svg").read_text("utf-8")
    for word in {"curves": ("test loss", "FedAvg"), "tau": ("client", "label"), "instant": ("client 4",)}.get(what, ()):
        assert word in text


def test_the_vendored_script_is_the_one_that_its_readme_names() -> None:
    files = resources.files("fedveca.views.report") / "page"
    readme = (files / "README.md").read_text("utf-8")
    assert hashlib.sha256((files / "plotly.min.js").read_bytes()).hexdigest() in readme
    version = re.findall(r"version ([\d.]+),", readme)[0]
    assert f"plotly.js (cartesian - minified) v{version}" in plotly_script()[:100]
    assert "MIT License" in (files / "plotly.LICENSE.txt").read_text("utf-8")


@pytest.mark.parametrize(("method", "keep"), [("fedavg", "best"), ("corrected", "best"), ("fedavg", "last")])
def test_a_run_that_diverges_says_so_on_screen_in_the_record_and_in_the_report(
    method: str, keep: str, tmp_path: Path, capsys: Capture
) -> None:
    """Within three rounds of the first model whose loss is above ten times that of the first one."""
    out = tmp_path / "run"
    words_of_run = ["model=svm", "partition=iid", "batch=8", "lr=1", "rounds=8", f"method={method}", f"keep={keep}"]
    main(["run", *words_of_run, "--out", str(out), "--device", "cpu"])
    rounds = Run.open(out).rounds
    name = "train_loss" if keep == "best" else "test_loss"
    losses = [record[name] for record in rounds]  # type: ignore[literal-required]
    at = 0 if keep == "best" else 1  # the training loss is that of the model before the round
    first = next(k for k, loss in enumerate(losses) if loss is None or loss > 10 * losses[0])
    warned = next(k for k, record in enumerate(rounds) if "warning" in record)
    assert warned - (first - 1 + at) <= 3
    sentence = rounds[warned]["warning"]
    assert sentence.endswith(("guard=on", "aggregate=clip or a smaller lr may help"))
    shown = " ".join(capsys.readouterr().err.split())
    assert sentence in shown
    assert sentence in words(reported(out))


def test_a_report_says_what_the_guard_did(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words_of_run = ["model=svm", "partition=iid", "batch=8", "lr=1", "rounds=8", "method=fedavg", "guard=on"]
    main(["run", *words_of_run, "--out", str(out), "--device", "cpu", "--quiet"])
    back = [record["round"] + 1 for record in Run.open(out).rounds if "guarded" in record]
    times = {1: "once", 2: "twice"}.get(len(back), f"{len(back)} times")
    said = f"FedAvg, seed 0: the guard returned to the best model {times}, first in round {back[0]}"
    assert said in words(reported(out))
