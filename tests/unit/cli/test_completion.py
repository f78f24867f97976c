"""Completion: what may come next, and the scripts in the shells that are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedveca.cli import main, make_parser
from fedveca.cli.completion import ASK_FILES, ASK_FOLDERS, SHELLS, find_candidates
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS

Capture = pytest.CaptureFixture[str]
PARSER = make_parser()


def complete(line: str) -> list[str]:
    *before, current = line.split(" ")
    return sorted(set(find_candidates(PARSER, before, current)))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("r", ["replay", "report", "reproduce", "rm", "run", "runs"]),
        ("--v", ["--version"]),
        ("run --d", ["--device"]),
        ("run --device ", ["auto", "cpu", "cuda"]),
        ("run method=sc", ["method=scaffnew", "method=scaffold"]),
        ("run model=l", ["model=lenet", "model=logistic", "model=lstm"]),
        ("run rounds=5 aggregate=m", ["aggregate=mean", "aggregate=median"]),
        ("run rounds=", []),
        ("run bogus=", []),
        ("run digits-case3 tau", ["tau_0=", "tau_all=", "tau_max="]),
        ("run track=tensorboard,", ["track=tensorboard,mlflow", "track=tensorboard,wandb"]),
        ("run --out ", [ASK_FOLDERS]),
        ("run --device cpu keep=l", ["keep=last"]),
        ("compare --methods fedavg,fedp", ["fedavg,fedprox"]),
        ("compare --seeds ", []),
        ("sweep --t", ["--trials", "--tuning-seeds"]),
        ("sweep --methods fedavg,fedp", ["fedavg,fedprox"]),
        ("run pat", ["patience="]),
        ("deploy ", ["add", "check", "init", "local", "pin", "renew", "revoke"]),
        ("deploy local engine=d", ["engine=debug"]),
        ("deploy init ", [ASK_FOLDERS]),
        ("deploy init folder wire=b", ["wire=bfloat16"]),
        ("data ", ["get"]),
        ("data get m", ["mnist"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("list parti", ["participation", "partition", "partitions"]),
        ("list alpha ", []),
        ("help com", ["compare", "completion"]),
        ("help deploy l", ["local"]),
        ("runs --sort s", ["score", "state"]),
        ("report ", [ASK_FOLDERS]),
        ("report -o ", [ASK_FILES]),
        ("figure --what t", ["tau"]),
        ("study ", [ASK_FILES]),
        ("bogus ", []),
    ],
)
def test_what_may_come_next(line: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete(line) == found


def test_a_preset_comes_first_and_each_setting_is_offered() -> None:
    assert set(complete("run ")) == {*presets(), *(f"{key}=" for key in FIELDS)}
    assert set(complete("run digits-case3 ")) == {f"{key}=" for key in FIELDS}


def test_runs_are_offered_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete("show ") == [ASK_FOLDERS]
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "experiment.toml").write_text("rounds = 1\n")
    assert complete("show ") == [ASK_FOLDERS, "last", "one"]
    assert complete("diff one l") == [ASK_FOLDERS, "last"]


def test_candidates_are_lines_and_an_error_is_silent(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["__complete", "run", "method=fedn"]) == 0
    assert capsys.readouterr() == ("method=fednova\n", "")
    monkeypatch.setenv("FEDVECA_PLUGINS", "nothing_of_this_name")
    assert main(["__complete", "run", "method="]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_of_the_shells_language(shell: str, capsys: Capture, tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    found = shutil.which(shell)
    if not found:
        pytest.skip(f"{shell} is not installed here")
    done = subprocess.run([found, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed here")
@pytest.mark.slow
def test_completion_in_bash(tmp_path: Path) -> None:
    """Where bash splits words at `=`, as it does by default, what is inserted is the part after it."""
    program = tmp_path / "fedveca"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedveca "$@"\n')
    program.chmod(0o755)
    (tmp_path / "folder").mkdir()
    script = """
eval "$(fedveca completion bash)"
compopt() { echo "compopt $2"; }  # bash has it only while a line is edited
complete -p fedveca
for COMP_LINE in "fedveca ru" "fedveca run method=fedn" "fedveca run tau_m" "fedveca run --out fo"; do
    COMP_POINT=${#COMP_LINE}
    _fedveca
    echo "${COMPREPLY[*]}"
done
"""
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -F _fedveca fedveca",
        "run runs",
        "fednova",
        "compopt nospace",
        "tau_max=",
        "compopt filenames",
        "folder",
    ]
