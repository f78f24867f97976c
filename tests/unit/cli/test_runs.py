"""runs, show, diff, rm: what lies in run folders, and what is never removed; and where reports go."""

from __future__ import annotations

import io
import json
import shutil
import time
import webbrowser
from pathlib import Path

import pytest

from fedveca import Experiment, run
from fedveca.cli import main
from fedveca.runs.folder import Run
from fedveca.runs.lock import lock_folder
from fedveca.views.terminal.runs import format_age, shorten_name

E = Experiment(model="svm", rounds=3, batch=16)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, a stopped one, one that diverged, and a folder that is not a run's."""
    home = tmp_path_factory.mktemp("made") / "runs"
    run(E, home / "20260101-120000-digits-case3-fedveca")
    run(Experiment(model="svm", rounds=7, batch=16, method="fedavg", seed=2), home / "study" / "fedavg-seed2")
    shutil.copytree(home / "study" / "fedavg-seed2", home / "stopped")
    (home / "stopped" / "summary.json").unlink()
    run(Experiment(model="svm", rounds=30, lr=1e4), home / "away")
    (home / "notes").mkdir()
    (home / "notes" / "todo.txt").write_text("mine")
    return home.parent


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made / "runs", tmp_path / "here" / "runs", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "110")
    return tmp_path / "here"


def rejected(capsys: Capture, *words: str) -> str:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedveca: ")
    assert err.count("\n") == 1
    return err.removeprefix("fedveca: ").rstrip()


def shown(capsys: Capture, *words: str) -> str:
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# runs


def test_runs_lists_what_was_run(capsys: Capture) -> None:
    lines = [line.split() for line in shown(capsys, "runs").splitlines()]
    assert lines[0] == ["run", "method", "data", "model", "rounds", "state", "score", "age"]
    rows = {line[0]: line[1:6] for line in lines[1:]}
    assert rows["study/fedavg-seed2"] == ["fedavg", "digits", "svm", "7/7", "finished"]
    assert rows["stopped"] == ["fedavg", "digits", "svm", "7/7", "inactive"]
    assert rows["away"][4] == "diverged"
    assert len(rows) == 4


def test_runs_in_other_orders_and_for_programs(capsys: Capture) -> None:
    def told(*words: str) -> list[dict[str, object]]:
        out = json.loads(shown(capsys, "runs", *words, "--json"))
        assert out["folder"] == "runs"
        rows: list[dict[str, object]] = out["runs"]
        return rows

    assert [row["id"] for row in told("--sort", "name")] == sorted(str(row["id"]) for row in told())
    scores = [row["score"] for row in told("--sort", "score")]
    assert scores == sorted(scores, key=lambda score: -float(str(score)))
    assert [row["rounds"] for row in told("--sort", "rounds")][-1] == min(int(str(row["rounds"])) for row in told())
    assert told("--sort", "state")[0]["state"] == "diverged"
    assert told("--sort", "method")[0]["method"] == "fedavg"


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_does_without_columns_but_cuts_no_number(
    columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    (here / "runs" / "stopped").rename(here / "runs" / "20260101-120000-a-very-long-name-of-a-study-that-was-stopped")
    monkeypatch.setenv("COLUMNS", str(columns))
    out = shown(capsys, "runs")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    assert out.count(" %") == 4
    assert out.count("finished") == 2
    assert "was-stopped " in out  # a name loses its middle, not its end
    missing = [name for name in ("method", "data", "model", "age") if name not in out.split("\n")[0].split()]
    assert f"Not shown at this width: {', '.join(missing)}." in out
    monkeypatch.delenv("COLUMNS")  # without a terminal and without COLUMNS all of it is shown
    whole = shown(capsys, "runs")
    assert whole.split("\n")[0].split() == ["run", "method", "data", "model", "rounds", "state", "score", "age"]
    assert "a-very-long-name-of-a-study-that-was-stopped " in whole
    assert not any(line.endswith(" ") for line in whole.splitlines())


def test_names_and_ages_are_short() -> None:
    assert shorten_name("2026-a-fedavg", 0, 20) == "2026-a-fedavg"
    assert shorten_name("2026-digits-fedavg", 5, 15) == "…digits-fedavg"
    assert shorten_name("2026-digits-fedavg-seed0", 5, 14) == "…digi…vg-seed0"
    assert [format_age(s) for s in (-1, 0.5, 59, 60, 7200, 200_000)] == ["0 s", "0 s", "59 s", "1 min", "2 h", "2 d"]


def test_runs_of_an_empty_place(capsys: Capture, here: Path) -> None:
    (here / "runs").rename(here / "elsewhere")
    assert shown(capsys, "runs") == "no runs in runs; `fedveca run` makes one\n"
    assert json.loads(shown(capsys, "runs", "--json")) == {"folder": "runs", "runs": []}
    assert "study/fedavg-seed2" in shown(capsys, "runs", "elsewhere")
    assert rejected(capsys, "runs", "nowhere") == "nowhere is not a folder; name the one that holds runs"
    assert not (here / "runs").exists()


# show and diff


def test_show_tells_all_of_a_run(capsys: Capture) -> None:
    out = shown(capsys, "show", "fedavg-seed2")
    assert out.startswith("runs/study/fedavg-seed2  finished\n")
    for said in ("method=fedavg", "seed=2", "test accuracy", "local steps in 7 rounds", "5 clients; rows per client: "):
        assert said in out
    assert "last 5 rounds of 7" in out
    assert out.endswith("for more rounds: fedveca run --resume runs/study/fedavg-seed2 rounds=14\n")
    assert "dp_noise" not in out
    assert "dp_noise=0.0" in shown(capsys, "show", "runs/study/fedavg-seed2", "--all")
    assert shown(capsys, "show", "stopped").endswith("to resume: fedveca run --resume runs/stopped\n")
    away = shown(capsys, "show", "away")
    assert away.startswith("runs/away  diverged\nround ")
    assert "--resume" not in away


def test_show_and_report_know_what_went_wrong(capsys: Capture, here: Path) -> None:
    why = "the loss is 788 times that of the first round"
    path = here / "runs" / "study" / "fedavg-seed2" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"warnings": [why]}))
    assert shown(capsys, "show", "fedavg-seed2").splitlines()[1] == f"warning: {why}"
    shown(capsys, "report", "runs/study/fedavg-seed2", "-o", "r.html", "-q")
    assert why in Path("r.html").read_text("utf-8")


def test_show_and_report_state_the_privacy_that_was_spent(capsys: Capture, here: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = Experiment(model="svm", rounds=2, batch=16, dp_noise=1.0)
    spent = run(private, here / "private").summary["epsilon"]
    said = f"differential privacy: epsilon {spent:.4g} at delta 1e-05, a client as the unit"
    assert said in shown(capsys, "show", "private").splitlines()
    shown(capsys, "report", "private", "-o", "r.html", "-q")
    sentence = f"<p>Differential privacy: ε = {spent:.4g} at δ = 1e-05, with a client as the unit.</p>"
    text = Path("r.html").read_text("utf-8")
    assert text.index('class="answer') < text.index(sentence) < text.index("Closing values")
    (here / "private" / "summary.json").unlink()  # of a run that was stopped, the last round has it
    shown(capsys, "report", "private", "-o", "r.html", "-q")
    assert "Differential privacy: ε = " in Path("r.html").read_text("utf-8")
    shown(capsys, "report", "runs/stopped", "-o", "r.html", "-q")
    assert "Differential privacy" not in Path("r.html").read_text("utf-8")


def test_show_for_programs_and_the_newest(capsys: Capture, here: Path) -> None:
    told = json.loads(shown(capsys, "show", "study/fedavg-seed2", "--json"))
    opened = Run.open(here / "runs" / "study" / "fedavg-seed2")
    assert (told["folder"], told["state"], told["rounds"]) == ("runs/study/fedavg-seed2", "finished", 7)
    assert told["summary"] == opened.summary
    assert told["settings"]["method"] == "fedavg"
    assert told["partition"]["all"] == 5
    newest = here / "runs" / "newest"
    shutil.copytree(here / "runs" / "study" / "fedavg-seed2", newest, copy_function=shutil.copy)
    assert json.loads(shown(capsys, "show", "last", "--json"))["folder"] == "runs/newest"


def test_a_run_that_is_not_there(capsys: Capture, here: Path) -> None:
    assert rejected(capsys, "show", "nothing") == "nothing is not a run; `fedveca runs` lists those in runs"
    assert rejected(capsys, "show", "stoped") == "stoped is not a run (did you mean stopped?); " + (
        "`fedveca runs` lists those in runs"
    )
    assert rejected(capsys, "show", "runs/notes") == "runs/notes is not a run folder: experiment.toml is missing"
    assert rejected(capsys, "show", "fed").startswith("fed is part of several runs' names: ")
    assert rejected(capsys, "show", "") == "'' is not a run; `fedveca runs` lists those in runs"
    (here / "runs" / "stopped" / "experiment.toml").write_text("rounds = 0\n")
    assert rejected(capsys, "show", "stopped").startswith(
        "runs/stopped is not a run folder: experiment.toml: rounds=0 is out of range"
    )


def test_diff_names_what_differs(capsys: Capture) -> None:
    out = shown(capsys, "diff", "case3-fedveca", "fedavg-seed2")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["method"] == ["fedveca", "fedavg"]
    assert rows["rounds"] in (["3", "7"], ["3", "7", "+4"])
    assert rows["seed"] == ["0", "2"]
    assert "lr" not in rows
    assert "points" in out
    told = json.loads(shown(capsys, "diff", "case3-fedveca", "fedavg-seed2", "--json"))
    assert told["settings"] == {"method": ["fedveca", "fedavg"], "rounds": [3, 7], "seed": [0, 2]}
    assert told["results"]["rounds"] == [3, 7]
    assert len(told["results"]["kept test_accuracy"]) == 2
    assert "no setting differs" in shown(capsys, "diff", "stopped", "fedavg-seed2")


# rm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rm_asks_first(capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = rejected(capsys, "rm", "runs/stopped")
    assert said.startswith("rm asks before it removes 1 run (")
    assert said.endswith("there is no terminal to ask on; --yes answers it")
    for answer in ("n\n", "", "\n", "yep\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert main(["rm", "runs/stopped"]) == 1
        err = capsys.readouterr().err
        assert "runs/stopped\nRemove 1 run (" in err
        assert err.endswith("nothing was removed\n")
        assert (here / "runs" / "stopped").is_dir()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(["rm", "runs/stopped"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 run (")
    assert not (here / "runs" / "stopped").exists()


def test_rm_of_several_by_name(capsys: Capture, here: Path) -> None:
    out = shown(capsys, "rm", "study/fedavg-seed2", "runs/away", "runs/away", "--yes", "--json")
    assert json.loads(out) == {"removed": ["runs/study/fedavg-seed2", "runs/away"]}
    assert sorted(path.name for path in (here / "runs").iterdir()) == [
        "20260101-120000-digits-case3-fedveca",
        "notes",
        "stopped",
        "study",
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("runs", "runs is not a run folder: experiment.toml is missing, so it is not removed"),
        ("runs/study", "runs/study is not a run folder: experiment.toml is missing"),
        ("runs/notes", "runs/notes is not a run folder: experiment.toml is missing"),
        ("runs/notes/todo.txt", "runs/notes/todo.txt is not a folder; name run folders"),
        ("runs/nothing", "runs/nothing is not a folder; name run folders"),
        ("fedavg", "fedavg is not a folder; name run folders"),  # a part of a name is not enough here
        ("link", "link is a link; name the run folder itself"),
        ("outer", "outer holds another run, inner, so it is not removed"),
        ("faked", "faked is not a run folder: experiment.toml is missing"),
    ],
)
def test_rm_removes_nothing_but_run_folders(word: str, said: str, capsys: Capture, here: Path) -> None:
    (here / "link").symlink_to(here / "runs" / "away")
    shutil.copytree(here / "runs" / "stopped", here / "outer")
    shutil.copytree(here / "runs" / "stopped", here / "outer" / "inner")
    (here / "faked").mkdir()
    (here / "faked" / "rounds.jsonl").touch()
    (here / "faked" / "experiment.toml").symlink_to(here / "runs" / "away" / "experiment.toml")
    before = sorted(here.rglob("*"))
    assert rejected(capsys, "rm", "runs/stopped", word, "--yes").startswith(said)
    assert sorted(here.rglob("*")) == before  # not the first one either


def test_rm_follows_no_link_and_leaves_what_runs(capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "precious").mkdir()
    (here / "precious" / "file").write_text("mine")
    (here / "runs" / "stopped" / "out").symlink_to(here / "precious")
    with lock_folder(here / "runs" / "away"):
        assert rejected(capsys, "rm", "runs/away", "--yes") == "runs/away is running; stop it first"
    assert (here / "runs" / "away" / "rounds.jsonl").exists()
    assert shown(capsys, "rm", "runs/stopped", "-y", "-q") == ""
    assert (here / "precious" / "file").read_text() == "mine"
    monkeypatch.chdir(here / "runs" / "away")
    assert rejected(capsys, "rm", ".", "--yes").startswith(". is the working folder, so it is not removed")


# reports


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", pages.append)
    return pages


def test_a_report_goes_into_the_folder_that_it_is_about(capsys: Capture, here: Path, opened: list[str]) -> None:
    assert shown(capsys, "report", "runs/study").startswith("report: runs/study/report.html (1 run, ")
    assert opened == []
    made = (here / "runs" / "study" / "report.html").stat().st_mtime_ns
    time.sleep(0.01)
    assert shown(capsys, "report", "runs/study", "--open")  # the same runs: made again
    assert (here / "runs" / "study" / "report.html").stat().st_mtime_ns > made
    assert opened == [(here / "runs" / "study" / "report.html").as_uri()]
    (here / "runs" / "study" / "report.html").write_text("<html>mine</html>")
    said = "runs/study/report.html exists and was not made by fedveca; name a file with -o FILE"
    assert rejected(capsys, "report", "runs/study") == said
    assert shown(capsys, "report", "runs/study", "-o", "runs/study/report.html")  # where it is named, it is replaced


def test_a_report_of_several_folders_replaces_none(capsys: Capture, here: Path) -> None:
    several = ("report", "runs/study", "runs/stopped")
    assert shown(capsys, *several).startswith("report: report.html (2 runs, ")
    said = "report.html exists; name another file with -o FILE, or replace it with -o report.html"
    assert rejected(capsys, *several) == said
    assert shown(capsys, *several, "-o", "report.html")


@pytest.mark.slow
def test_compare_opens_its_report(capsys: Capture, here: Path, opened: list[str]) -> None:
    words = ["model=svm", "rounds=1", "--methods", "fedavg", "--seeds", "1", "--out", "c", "-q", "--open"]
    assert main(["compare", *words]) == 0
    assert opened == [(here / "c" / "report.html").as_uri()]
