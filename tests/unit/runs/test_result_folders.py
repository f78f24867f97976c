"""Which folders a comparison, a sweep and studies write: new ones and their own, whenever they were interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_runs import SMALL

from fedveca import Experiment, UserError, compare, sweep
from fedveca.cli import main
from fedveca.runs.result_folders import require_comparison, require_studies, require_sweep
from fedveca.runs.study import Study, run_study

E = Experiment(**(SMALL | {"rounds": 2, "method": "fedavg"}))
WORDS = ["model=svm", "rounds=1", "batch=8"]
STUDY = Study("s", "digits-case3", {"model": "svm", "rounds": 1}, ("fedavg",), 1)
CHECKS: dict[str, Callable[[Path], None]] = {
    "comparison": require_comparison,
    "sweep": require_sweep,
    "studies": require_studies,
}
OF = {"comparison": "a comparison", "sweep": "a sweep", "studies": "studies"}
CALLS: dict[str, Callable[[Path], Any]] = {
    "comparison": lambda out: compare(E, 1, out, methods=("fedavg",), device="cpu"),
    "sweep": lambda out: sweep(E, {"lr": (0.01, 0.1)}, 1, out, methods=("fedavg",), device="cpu"),
    "studies": lambda out: run_study([STUDY], out, device="cpu"),
}
COMMANDS = {
    "comparison": ["compare", *WORDS, "--methods", "fedavg", "--seeds", "1"],
    "sweep": ["sweep", *WORDS, "lr=0.01,0.1", "--methods", "fedavg", "--seeds", "1"],
    "studies": ["study", "s.toml"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of each kind."""
    home = tmp_path_factory.mktemp("made")
    for kind, call in CALLS.items():
        call(home / kind)
    return home


def put(file: Path, text: str = "my thesis") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("kind", CHECKS)
def test_a_users_folder_is_not_written(kind: str, tmp_path: Path) -> None:
    mine = put(tmp_path / "mine" / "report.html")
    said = f"{mine.parent} is not empty and is not a folder of {OF[kind]}: it holds report.html; name a new folder"
    with pytest.raises(UserError) as caught:
        CALLS[kind](mine.parent)
    assert str(caught.value) == said
    assert [path.name for path in mine.parent.iterdir()] == ["report.html"]
    assert mine.read_text() == "my thesis"


@pytest.mark.parametrize("kind", CHECKS)
def test_a_command_leaves_a_users_report(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "s.toml", "methods = ['fedavg']\nseeds = 1\n[settings]\nmodel = 'svm'\nrounds = 1\n")
    mine = put(tmp_path / "mine" / "report.html")
    assert main([*COMMANDS[kind], "--quiet", "--out", "mine"]) == 2
    assert capsys.readouterr().err.startswith(f"fedveca: mine is not empty and is not a folder of {OF[kind]}: ")
    assert mine.read_text() == "my thesis"
    assert main([*COMMANDS[kind], "--quiet", "--out", "new"]) == 0
    assert main([*COMMANDS[kind], "--quiet", "--out", "new"]) == 0  # with tables and reports that it wrote itself


@pytest.mark.parametrize("kind", CHECKS)
def test_only_a_folder_of_its_own_kind_is_resumed(kind: str, made: Path) -> None:
    CHECKS[kind](made / kind)
    for other in CHECKS:
        if other != kind:
            with pytest.raises(UserError, match=f"is not a folder of {OF[kind]}: it holds "):
                CHECKS[kind](made / other)


@pytest.mark.parametrize("name", [".lock", "environment.json", ".environment.json.12", "rounds.jsonl"])
@pytest.mark.parametrize(
    ("kind", "run"),
    [
        ("comparison", "fedavg-seed0"),
        ("sweep", "tuning/fedavg/lr=0.01-seed10000"),
        ("sweep", "reported/fedavg-seed0"),
        ("studies", "s/fedavg-seed0"),
    ],
)
def test_a_folder_that_was_killed_in_its_first_run_is_resumed(kind: str, run: str, name: str, tmp_path: Path) -> None:
    put(tmp_path / "out" / run / name, "")
    CHECKS[kind](tmp_path / "out")


@pytest.mark.parametrize("kind", CHECKS)
def test_folders_without_a_file_are_as_good_as_none(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tuning" / "fedavg" / "lr=0.01-seed10000").mkdir(parents=True)
    (tmp_path / "s" / "fedavg-seed0").mkdir(parents=True)
    CHECKS[kind](tmp_path)


@pytest.mark.parametrize("kind", CALLS)
def test_what_was_killed_early_is_completed(kind: str, tmp_path: Path) -> None:
    run = {"comparison": "fedavg-seed0", "sweep": "tuning/fedavg/lr=0.01-seed10000", "studies": "s/fedavg-seed0"}[kind]
    put(tmp_path / "out" / run / ".lock", "1")
    CALLS[kind](tmp_path / "out")
    assert (tmp_path / "out" / run / "summary.json").exists()


def test_more_seeds_and_a_users_notes_are_possible_in_its_own_folder(made: Path, tmp_path: Path) -> None:
    out = shutil.copytree(made / "comparison", tmp_path / "c")
    notes = put(out / "notes.txt")
    assert len(compare(E, 2, out, methods=("fedavg",), device="cpu")) == 2
    assert notes.read_text() == "my thesis"


def test_a_folder_of_all_runs_is_not_one_of_studies(made: Path, tmp_path: Path) -> None:
    out = shutil.copytree(made / "studies", tmp_path / "runs")
    shutil.copytree(made / "comparison" / "fedavg-seed0", out / "20261119-120000-digits-case3-fedavg")
    with pytest.raises(UserError, match="is not a folder of studies"):
        require_studies(out)


def test_no_study_runs_where_another_ones_folder_is_a_users(tmp_path: Path) -> None:
    mine = put(tmp_path / "out" / "b" / "table.json")
    put(tmp_path / "out" / "s" / "fedavg-seed0" / ".lock")
    with pytest.raises(UserError, match=r"b is not empty and is not a folder of a comparison: it holds table\.json"):
        run_study([STUDY, replace(STUDY, name="b")], tmp_path / "out", device="cpu")
    assert mine.read_text() == "my thesis"
    assert not (tmp_path / "out" / "s" / "fedavg-seed0" / "experiment.toml").exists()
