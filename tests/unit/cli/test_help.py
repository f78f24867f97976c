"""The command line explains itself: help, lists, and an end without noise; and it does so before PyTorch is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedveca.algorithms.registry import methods
from fedveca.cli import COMMAND_GROUPS, make_parser
from fedveca.cli import main as run_main
from fedveca.runs.experiment import Experiment, parse_settings
from fedveca.runs.presets import presets
from fedveca.runs.setting_checks import FIELDS
from fedveca.version import __version__

Capture = pytest.CaptureFixture[str]
COMMANDS = sorted(make_parser().commands.choices)
WAYS = ("local", "init", "pin", "check", "renew", "add", "revoke")


def main(*words: str) -> int:
    """The exit code, also where argparse ends the program."""
    try:
        return run_main(list(words))
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_without_a_command_the_help_is_shown_by_subject(capsys: Capture) -> None:
    assert main() == 0
    alone = capsys.readouterr()
    assert alone.err == ""
    for group in COMMAND_GROUPS:
        assert f"\n{group}:\n" in alone.out
    assert re.findall(r"(?m)^  ([a-z]+)  ", alone.out) == [n for each in make_parser().groups.values() for n in each]
    assert alone.out.count("\n  fedveca ") == 3  # examples
    for words in (("--help",), ("-h",), ("help",)):
        assert main(*words) == 0
        assert capsys.readouterr() == alone


@pytest.mark.parametrize("columns", ["60", "80", "110"])
def test_no_help_is_wider_than_the_terminal(columns: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("", *COMMANDS, *(f"deploy {way}" for way in WAYS)):
        assert main("help", *command.split()) == 0
        out = capsys.readouterr().out
        examples = out.partition("\nexamples:\n")[2].splitlines()
        wide = [line for line in out.splitlines() if len(line) > int(columns) and line not in examples]
        assert not wide, (command, wide)  # a command to copy stays on one line


@pytest.mark.parametrize("command", [*(c for c in COMMANDS if c != "help"), "deploy local"])
def test_each_command_has_examples_and_says_where_settings_are_explained(command: str, capsys: Capture) -> None:
    assert main("help", *command.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: fedveca {command} ")
    if command != "deploy local":
        assert re.search(rf"\nexamples:\n  # .+\n  .*fedveca {command}", out)
    assert ("key=value" in out) == ("`fedveca list`" in out)
    if "--quiet" in out:
        assert "-q, --quiet" in out


def test_the_version_and_the_module() -> None:
    for words in (["fedveca", "-V"], ["fedveca", "--version"], ["fedveca.cli", "-V"]):
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
        assert done.stdout == f"fedveca {__version__}\n"


def test_quick_commands_do_not_load_pytorch(here: Path) -> None:
    """In one process, one after another: none of them may have imported it."""
    lines = [
        ["--help"],
        ["list"],
        ["list", "settings"],
        ["list", "alpha"],
        ["list", "dirichlet"],
        ["run", "roundz=3"],
        ["run", "--rounds", "3"],
        ["run", "alpha"],
        ["run", "faults=drop:2"],
        ["compare", "--methods", "fedova"],
        ["compare", "--seeds", "0", "rounds=0"],
        ["rum"],
        ["data", "get", "imagenet"],
        ["completion", "bash"],
        ["__complete", "run", "method="],
        ["__complete", "show", ""],
        ["runs"],
        ["show", "nothing"],
        ["report", "nothing"],
    ]
    code = (
        "import sys\nfrom fedveca.cli import main\n"
        f"for words in {lines!r}:\n"
        "    try: main(words)\n    except SystemExit: pass\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "words", [["list"], *(pytest.param(words, marks=pytest.mark.slow) for words in (["--help"], ["list", "--json"]))]
)
def test_a_reader_that_leaves_early_is_not_an_error(words: list[str]) -> None:
    for text in (False, True):  # the pipe is closed before anything is written, and by a reader that has seen a line
        program = subprocess.Popen(
            [sys.executable, "-m", "fedveca", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert program.stdout is not None
        assert program.stderr is not None
        if text:
            program.stdout.read(1)
        program.stdout.close()
        assert program.stderr.read() == b""
        program.stderr.close()
        assert program.wait() in (0, 141)


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_cli import on_a_terminal

    monkeypatch.delenv("CI", raising=False)  # lines are plain there
    command = [sys.executable, "-m", "fedveca", "help", "run"]
    assert b"\x1b[" in on_a_terminal(command)
    assert b"\x1b[" not in on_a_terminal(command, NO_COLOR="1")
    plain = on_a_terminal(command, NO_COLOR="1", COLUMNS="80").replace(b"\r", b"").decode()
    coloured = on_a_terminal(command, COLUMNS="80").replace(b"\r", b"").decode()
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


# list


def test_list_shows_names_and_the_usual_settings_by_subject(capsys: Capture, here: Path) -> None:
    assert main("list") == 0
    out = capsys.readouterr().out
    words = out.split()
    assert {*methods(), *presets(), "dirichlet", "cnn", "mnist"} <= set(words)
    shown = set(re.findall(r"(?m)^  (\w+) ", out)) - {"also"}
    folded = set(re.findall(r"\w+", " ".join(re.findall(r"(?m)^  also  ((?:.*\n)(?:        .*\n)*)", out))))
    assert shown | folded == set(FIELDS)
    assert folded == {key for key, field in FIELDS.items() if field.metadata["rare"]}
    assert "\nlocal steps\n" in out
    assert re.search(r"(?m)^  lr +0.01 \(by model\)  learning rate", out)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_lists_fit_the_terminal_and_cut_no_name(columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (("list",), ("list", "settings"), ("list", "presets"), ("list", "partitions"), ("list", "faults")):
        assert main(*words) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= columns
        if words[-1] == "settings":
            assert set(FIELDS) == set(re.findall(r"(?m)^  (\w+) ", out))
    assert main("list", "settings") == 0
    assert "| standardised" in " ".join(capsys.readouterr().out.split())


def test_list_explains_one_setting_or_name(capsys: Capture) -> None:
    def told(*words: str) -> str:
        assert main("list", *words) == 0
        return " ".join(capsys.readouterr().out.split())

    alpha = told("alpha")
    assert alpha.startswith("alpha how far tau may rise, at most 1/(1-alpha) default 0.95 subject local steps")
    assert "allowed (0, 1) used by fedveca, corrected, fedveca_time presets " in alpha
    assert alpha.endswith("example fedveca run alpha=0.5")
    assert "used by every method" in told("lr")
    assert "dirichlet the shares of each label are drawn" in told("partition")
    assert "one of these, or package.module:factory" in told("model")
    assert "one of these, or package.module:Class" in told("method")
    assert "default auto" in (probe := told("probe"))
    assert "allowed auto or >= 0 used by every method" in probe
    assert "allowed some of tensorboard, mlflow, wandb, with commas between" in told("track")
    assert told("fedprox").endswith("kind method settings mu example fedveca run method=fedprox")
    assert "lr 0.05 example fedveca run digits-case3" in told("digits-case3")
    assert told("data").startswith("cifar10 60,000 photographs")
    assert "FedAvg (McMahan et al. 2017)" in told("methods")
    assert "optimizer=adam sgd stochastic gradient descent" in told("optimizer")
    assert "allowed off | on used by" in told("nesterov")  # nothing to say about each value
    for key in set(FIELDS) - {"data"}:  # each has an example, which is allowed and is not the default
        example = told(key).partition("example fedveca run ")[2].split()
        words = [word for word in example if re.match(r"[a-z_0-9]+=", word)]
        assert words[0].startswith(f"{key}="), key
        changed = getattr(Experiment(**parse_settings(words)), key)
        assert changed not in ("", "...", getattr(Experiment(), key)), key
    assert main("list", "alpa") == 2
    assert "alpa is not a setting or a name that one can have (did you mean alpha?)" in capsys.readouterr().err


def test_lists_for_programs(capsys: Capture) -> None:
    def told(*words: str) -> dict[str, object]:
        assert main("list", *words, "--json") == 0
        out: dict[str, object] = json.loads(capsys.readouterr().out)
        return out

    assert told("methods") == {"methods": list(methods())}
    assert set(told("settings")["settings"]) == set(FIELDS)  # type: ignore[call-overload]
    about = told("alpha")["alpha"]
    assert isinstance(about, dict)
    assert (about["default"], about["group"]) == (0.95, "local steps")
    assert about["methods"] == ["fedveca", "corrected", "fedveca_time"]
    example = "fedveca run partition=iid"
    assert told("iid") == {"iid": {"kind": "partition", "text": "rows at random", "example": example}}
    assert main("list", "-q") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_plugins_method_is_listed(here: Path) -> None:
    (here / "plugged.py").write_text(
        "from dataclasses import dataclass\nfrom fedveca import FedAvg, method\n"
        '@method("plugged")\n@dataclass(frozen=True)\nclass Plugged(FedAvg):\n    """Plugged in."""\n'
    )
    env = os.environ | {"FEDVECA_PLUGINS": "plugged"}
    completed = (["__complete", "run", "method=pl"], "method=plugged")
    for words, said in ((["list", "plugged"], "plugged  Plugged in."), completed):
        done = subprocess.run([sys.executable, "-m", "fedveca", *words], capture_output=True, text=True, env=env)
        assert done.stdout.startswith(said), done.stderr
