"""Files that a user names: no command writes over a file of a run, and none makes a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveca import Experiment, Run, UserError, report
from fedveca.cli import main
from fedveca.runs.folder_writer import FILES
from fedveca.runs.output_file import require_file, write_file
from fedveca.runs.run import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(Experiment(model="svm", rounds=1, batch=8), tmp_path_factory.mktemp("runs") / "k", device="cpu")


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*FILES, "memory.rows", ".lock", ".summary.json.12", "deployment/nodes.json"])
def test_a_file_of_a_run_is_not_an_output(name: str, done: Run, tmp_path: Path) -> None:
    (home := tmp_path / "k" / "deployment").mkdir(parents=True)
    (home.parent / "experiment.toml").touch()
    for path in (tmp_path / "k" / name, home / ".." / name):
        if path.parent.is_dir():
            with pytest.raises(UserError, match=r"is a file of the run in .*; name another file$"):
                require_file(path)
    (tmp_path / "link").symlink_to(home.parent)
    with pytest.raises(UserError, match="is a file of the run in "):
        require_file(tmp_path / "link" / name)
    (home.parent / "experiment.toml").unlink()
    require_file(tmp_path / "k" / name)  # it is not a run folder


def test_other_files_may_be_written_into_a_run_folder(done: Run) -> None:
    assert done.folder
    for name in ("report.html", "figure.svg", "k.safetensors", ".notes"):
        require_file(done.folder / name)


@pytest.mark.parametrize(
    "words",
    [
        ["export", "K", "--format", "torchscript", "--out", "K/rounds.jsonl"],
        ["export", "K", "-o", "K/model.safetensors"],
        ["report", "K", "-o", "K/summary.json"],
        ["predict", "K", "--data", "test", "-o", "K/environment.json"],
        ["predict", "K", "--data", "test", "-o", "K/summary.json"],
    ],
)
def test_no_command_writes_over_a_file_of_a_run(words: list[str], done: Run, capsys: Capture) -> None:
    assert done.folder
    before = read_all(done.folder)
    argv = [word.replace("K", str(done.folder)) for word in words]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"fedveca: {argv[-1]} is a file of the run in {done.folder}; name another file\n")
    assert read_all(done.folder) == before


@pytest.mark.parametrize(
    "words",
    [
        ["export", "K", "-o", "nope/x.pt"],
        ["report", "K", "-o", "nope/x.html"],
        ["figure", "K", "-o", "nope/x.svg"],
        ["devices", "K", "-o", "nope/x.toml"],
        ["predict", "K", "--data", "test", "-o", "nope/x.json"],
    ],
)
def test_no_command_makes_a_folder(
    words: list[str], done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("K", str(done.folder)) for word in words]) == 2
    said = f"fedveca: {words[-1]} cannot be written: the folder nope does not exist\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_python_follows_the_same_rules(done: Run, tmp_path: Path) -> None:
    assert done.folder
    before = read_all(done.folder)
    for call in (done.report, lambda path: report(done, path), lambda path: write_file(path, b"")):
        with pytest.raises(UserError, match=r"the folder .*nope does not exist"):
            call(tmp_path / "nope" / "x.html")
        with pytest.raises(UserError, match="is a file of the run in "):
            call(done.folder / "rounds.jsonl")
    with pytest.raises(UserError, match=r"the folder .*nope does not exist"):
        done.plot(tmp_path / "nope" / "x.svg")
    assert read_all(done.folder) == before
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written: the folder .*file is not a folder"):
        require_file(tmp_path / "file" / "x.html")
