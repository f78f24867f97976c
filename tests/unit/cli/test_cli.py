"""The command line: what it prints and leaves, and refusals in one sentence that leave nothing."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import require_number

from fedveca.algorithms.registry import methods, paper_methods
from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.setting_checks import FIELDS
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.partition import label_counts, partition
from fedveca.version import __version__
from fedveca.views.series import find_look

FAST = ["model=svm", "rounds=3", "batch=8", "lr=0.01"]
COMMAND = [sys.executable, "-m", "fedveca.cli"]
IMAGES = "train-images-idx3-ubyte"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and cache, and nowhere to fetch from."""
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVECA_DATA", raising=False)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def standing(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, except for what was compiled for this machine."""
    names = {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
    return {
        name: content for name, content in names.items() if not name.startswith("cache/kernels") and name != "cache"
    }


def refused(argv: list[str], capsys: Capture, folder: Path) -> str:
    """The one sentence with which a command is refused, nothing printed or written besides."""
    before = standing(folder)
    code = main(argv)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("fedveca: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert standing(folder) == before
    return err.removeprefix("fedveca: ").rstrip("\n")


# refusals


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        # unknown names, with the nearest
        ("roundz=3", "roundz is not a setting; did you mean rounds?"),
        ("digits-case4", "preset digits-case4 is not known (did you mean digits-case3?)"),
        ("missing.toml", "missing.toml does not exist"),
        ("data=minst", "data=minst is not known (did you mean mnist?)"),
        ("model=ccn", "model=ccn is not known (did you mean cnn?)"),
        ("method=fedova", "method=fedova is not known (did you mean fednova?)"),
        ("partition=case7", "partition=case7 is not known (did you mean "),
        ("keep=worst", "keep=worst is not known"),
        # wrong types
        ("rounds=ten", "rounds=ten is not a whole number; allowed: >= 1"),
        ("rounds=2.5", "rounds=2.5 is not a whole number; allowed: >= 1"),
        ("lr=fast", "lr=fast is not a number; allowed: > 0"),
        ("digits-case3 rounds", "rounds is a setting: rounds="),
        ("digits-case3 20", "'20' is not key=value"),
        ("alpha", "alpha is a setting: alpha=0.95; `fedveca list alpha` explains it"),
        ("track", "track is a setting: track=tensorboard; "),
        ("fedavg rounds=3", "fedavg is a value of the setting method: method=fedavg"),
        ("cnn", "cnn is a value of the setting model: model=cnn"),
        ("digits-case3 svm-mnist-case1", "svm-mnist-case1 is a preset; one preset comes first"),
        # out of range
        ("alpha=0", "alpha=0.0 is out of range; allowed: (0, 1)"),
        ("alpha=1", "alpha=1.0 is out of range; allowed: (0, 1)"),
        ("alpha=-0.5", "alpha=-0.5 is out of range; allowed: (0, 1)"),
        ("alpha=nan", "alpha=nan is out of range; allowed: (0, 1)"),
        ("lr=0", "lr=0.0 is out of range; allowed: > 0"),
        ("lr=1e999", "lr=inf is out of range; allowed: > 0"),
        ("batch=0", "batch=0 is out of range; allowed: >= 1"),
        ("clients=0", "clients=0 is out of range; allowed: >= 1"),
        ("rounds=-1", "rounds=-1 is out of range; allowed: >= 1"),
        ("tau_max=1", "tau_max=1 is out of range; allowed: [2, 100000]"),
        ("tau_0=99999999999999999999", "tau_0=99999999999999999999 is out of range; at most 2147483647"),
        ("participation=1.5", "participation=1.5 is out of range; allowed: (0, 1]"),
        ("seed=-1", "seed=-1 is out of range; allowed: [0, 2147483647]"),
        # what does not fit the data
        ("clients=1439 partition=iid", "clients=1439 is more than the 1438 training rows"),
        ("clients=1 partition=case3", "clients=1 does not fit partition=case3; it needs at least 2"),
        ("partition=writer", "partition=writer needs data that know who wrote each row"),
        ("clients=400 partition=shards shards=9", "clients=400 with shards=9 asks for more pieces than 1438 rows"),
        ("data=synthetic pixels=standardised", "pixels=standardised needs images; rows of synthetic have"),
        ("data=synthetic model=cnn", "model=cnn needs images [channels, height, width]"),
        ("model=mine:misfit", "model=mine:misfit does not fit rows of shape [1, 8, 8]: mat1 and mat2"),
        ("model=mine:narrow", "model=mine:narrow gives scores [2, 3] for 2 rows"),
        ("model=mine:batchnorm", "model=mine:batchnorm: 1 has momentum=None"),
        ("model=mine:absent", "model=mine:absent cannot be imported: "),
        ("model=torn:f", "model=torn:f cannot be imported: "),
        # an empty client
        ("partition=dirichlet concentration=0.001 clients=50", "partition=dirichlet leaves "),
        ("partition=case2 clients=1438", "partition=case2 leaves "),
        # data that cannot be trusted
        ("data=mnist data_dir=truncated", "truncated/mnist/train-images-idx3-ubyte.gz: broken gzip file"),
        ("data=mnist data_dir=corrupt", "corrupt/mnist/train-images-idx3-ubyte for mnist: 16 bytes where the "),
        ("data=mnist data_dir=nowhere", "nowhere, named by data_dir, is not a folder"),
        # a place that cannot be written
        ("--out file", "file is a file; name a folder"),
        ("--out file/below", "file/below"),
        ("--out /proc/nothing", "/proc/nothing"),
        ("--out former", "former already holds a run; name another folder"),
        pytest.param(
            "--device cuda",
            "device=cuda: there is no CUDA device; use cpu or auto",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is at hand"),
        ),
    ],
)
def test_refused(command: str, words: str, said: str, capsys: Capture, here: Path) -> None:
    (here / "mine.py").write_text(
        "from torch import nn\n"
        "def misfit(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
        "def narrow(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def batchnorm(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, classes))\n"
    )
    (here / "torn.py").write_text("def f(:\n")
    for folder, file, content in (
        ("truncated", f"{IMAGES}.gz", gzip.compress(bytes(9999))[:-5]),
        ("corrupt", IMAGES, bytes(16)),
    ):
        (here / folder / "mnist").mkdir(parents=True)
        (here / folder / "mnist" / file).write_bytes(content)
    (here / "file").touch()
    (here / "former").mkdir()
    (here / "former" / "experiment.toml").write_text(Experiment().toml())
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    sys.modules.pop("mine", None)
    try:
        assert refused([command, *words.split()], capsys, here.parent).startswith(said)
    finally:
        sys.dont_write_bytecode = before


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this process may not write, beside a data file that it may not read: root steps down for it."""
    assert main(["run", *FAST, "rounds=1", "--quiet", "--out", "warm"]) == 0  # what is imported late, is
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "locked"
        monkeypatch.setenv("FEDVECA_CACHE", base)
        (Path(base) / "mnist").mkdir()
        (Path(base) / "mnist" / IMAGES).touch(0o000)
        folder.mkdir()
        os.chmod(base, 0o755)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield folder
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_no_permission(command: str, locked: Path, capsys: Capture) -> None:
    said = refused([command, *FAST, "--out", f"{locked}/deep/run"], capsys, locked)
    assert said.startswith(f"{locked}/deep/run")
    assert "cannot be written: " in said
    assert "ermission" in said


def test_no_permission_to_read_data(locked: Path, capsys: Capture) -> None:
    said = refused(["partition", "data=mnist", f"data_dir={locked.parent}"], capsys, locked)
    assert said == f"{locked.parent}/mnist/{IMAGES}: cannot be read (Permission denied)"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["compare", "--seeds", "0"], "--seeds 0 is out of range; allowed: >= 1"),
        (["compare", "seed=2147483647", "--seeds", "2"], "seed=2147483648 is out of range; at most 2147483647"),
        (["partition", "partition=case7"], "partition=case7 is not known"),
        (["data", "get", "imagenet"], "there are no files to get for 'imagenet'; allowed: "),
        (["data", "get", "minst"], "there are no files to get for 'minst' (did you mean mnist?); allowed: "),
        (["data", "get", "mnist", "--data-dir", "nowhere"], "nowhere, named by data_dir, is not a folder"),
    ],
)
def test_refused_elsewhere(argv: list[str], said: str, capsys: Capture, here: Path) -> None:
    assert refused(argv, capsys, here.parent).startswith(said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["walk"], "walk is not a command; `fedveca help` lists them"),
        (["rum"], "rum is not a command (did you mean run?); `fedveca help` lists them"),
        (["rmn"], "rmn is not a command (did you mean run?); "),  # never a command that removes
        (["rounds=3"], "rounds=3 is not a command (did you mean `fedveca run rounds=3`?)"),
        (["digits-case3"], "digits-case3 is not a command (did you mean `fedveca run digits-case3`?)"),
        (["help", "rnu"], "rnu is not a command (did you mean run?)"),
        (["--bogus"], "--bogus is not an option of `fedveca`; see `fedveca --help`"),
        (["run", "--rounds", "5"], "--rounds is not an option: settings are key=value: rounds=5"),
        (["run", "--rounds=5"], "settings are key=value: rounds=5"),
        (["run", "--tau-max", "9", "--quiet"], "settings are key=value: tau_max=9"),
        (["run", "--rounds", "--quiet"], "settings are key=value: rounds=..."),
        (["run", "--seeds", "3"], "--seeds is not an option (did you mean seed=3?); settings are key=value"),
        (["compare", "--seed", "3"], "--seed is not an option: settings are key=value: seed=3"),  # not --seeds
        (["compare", "--worker", "3"], "--worker is not an option of `fedveca compare` (did you mean --workers?)"),
        (
            ["run", "rounds=3", "--quiet", "--bogus"],
            "--bogus is not an option of `fedveca run`; see ",
        ),
        (["runs", "--rounds", "3"], "--rounds is not an option of `fedveca runs`"),
        (["list", "alpha", "rounds"], "rounds is one argument too many for `fedveca list`"),
        (["compare", "--seeds", "x"], "argument --seeds: invalid int value: 'x'"),
        (["run", "--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["run", "--out"], "argument --out: expected one argument"),
        (["data", "put", "mnist"], "invalid choice: 'put'"),
        (["data", "get"], "the following arguments are required: NAME"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: Capture, here: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert said in err.splitlines()[-1]
    assert err.startswith("fedveca: ")
    assert len(err.splitlines()) == 1
    assert standing(here) == {}


# run


def test_run_prints_its_rounds_and_leaves_its_folder(capsys: Capture, here: Path) -> None:
    assert main(["run", "digits-case3", "model=svm", "--out", "a", "rounds=3", "--device", "cpu", "lr=0.01"]) == 0
    out, err = capsys.readouterr()
    done = Run.open(here / "a")
    assert (done.experiment.rounds, done.experiment.lr, done.experiment.batch) == (3, 0.01, 32)  # words on both sides
    assert (
        err.splitlines()[0]
        == "FedVeca, svm on digits, 5 clients, case3, 3 rounds, batch 32, probe 64, lr 0.01, seed 0, on CPU"
    )
    assert err.splitlines()[-4:] == ["next:", "  fedveca report a", "  fedveca show a", "  fedveca board ."]
    rounds = [line for line in err.splitlines() if "  round " in line]
    assert [line.split("  ")[:2] for line in rounds] == [["fedveca seed 0", f"round {k}/3"] for k in (1, 2, 3)]
    for said, line in zip(rounds, done.rounds, strict=True):
        assert f"accuracy {100 * require_number(line, 'test_accuracy'):5.2f} %" in said
        assert f"loss {line['test_loss']:.4f}" in said
        assert f"tau {line['tau']}" in said
        assert said.endswith(" s left") == (line["round"] > 1)  # two rounds say too little about the pace
    words = [line.split() for line in out.splitlines()]
    for which in ("kept", "last"):
        s = done.summary[which]
        accuracy = f"{100 * require_number(s, 'test_accuracy'):.2f}"
        assert [which, str(s["round"]), accuracy, "%", f"{s['test_loss']:.4f}"] in words
    assert out.splitlines()[-1] == "run folder: a"
    assert f"{done.summary['tau_all']} local steps in 3 rounds" in out


def test_run_alone_makes_a_folder_of_its_own(here: Path, capsys: Capture) -> None:
    for _ in range(2):
        assert main(["run", *FAST, "method=fedavg", "--quiet"]) == 0
    folders = sorted((here / "runs").iterdir())
    assert len(folders) == 2
    assert all("-digits-case3-fedavg" in folder.name for folder in folders)
    assert [Run.open(folder).summary["rounds"] for folder in folders] == [3, 3]
    assert capsys.readouterr() == ("", "")


def test_a_users_file_and_a_users_model(here: Path, capsys: Capture) -> None:
    (here / "wide[1].toml").write_text('model = "beside:wide"\nrounds = 2\n')
    (here / "beside.py").write_text(
        "from torch import nn\ndef wide(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    assert main(["run", "wide[1].toml", "lr=0.1", "--out", "odd [/name]"]) == 0
    assert capsys.readouterr().out.endswith("run folder: odd [/name]\n")
    assert Run.open("odd [/name]").experiment == Experiment(model="beside:wide", rounds=2, lr=0.1)


def test_a_run_that_runs_away_ends_with_1(here: Path, capsys: Capture) -> None:
    for quiet in ([], ["--quiet"]):
        out = f"away{len(quiet)}"
        assert main(["run", *FAST, "rounds=30", "lr=1e4", "--out", out, *quiet]) == 1
        said = capsys.readouterr()
        stopped = Run.open(here / out).summary["stopped"]
        assert f"fedveca seed 0 stopped: {stopped}" in " ".join(said.err.split())
        assert (said.out == "") == bool(quiet)
    assert (here / "away0" / "model.safetensors").exists()


# compare, list, partition, data


@pytest.mark.slow
def test_compare_prints_its_table_and_leaves_its_figure(here: Path, capsys: Capture) -> None:
    argv = ["compare", *FAST, "--seeds", "2", "--out", "c"]
    assert main(argv) == 0
    first = capsys.readouterr()
    rows = [line.replace(" ±", "±").split() for line in first.out.splitlines()]  # no terminal: 80 columns
    for row in json.loads((here / "c" / "table.json").read_text()):
        share, loss = row["kept"]["test_accuracy"], row["kept"]["test_loss"]
        cells = [f"{100 * share['mean']:.2f}±{100 * share['std']:.2f}", f"{loss['mean']:.4f}±{loss['std']:.4f}"]
        cells.append(f"{row['tau_all']:.0f}")
        assert find_look(row["method"])[0] in [line[0] for line in rows if {*cells} <= {*line}]
    titles = [find_look(method)[0] for method in paper_methods()]
    assert [row[0] for row in rows if row and row[0] in titles][:12] == 2 * titles  # results, and costs until targets
    paths = ["report: c/report.html", "figure: c/curves.svg", "table: c/table.json"]
    others = ", ".join(name for name in methods() if name not in paper_methods())
    assert first.out.splitlines()[-4:] == [f"not shown: {others} (add with --methods all)", *paths]
    assert "run 12 of 12: centralised seed 1  accuracy " in first.err
    assert {path.name for path in (here / "c").iterdir() if path.is_file()} == {
        "table.json",
        "curves.svg",
        "curves.png",
        "report.html",
    }

    assert main(argv) == 0  # all is there already
    second = capsys.readouterr()
    assert second.out == first.out
    assert " seed 0" not in second.err  # nothing was run again
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert "other settings" in refused([*argv, "rounds=4"], capsys, here)


@pytest.mark.slow
def test_compare_tells_of_runs_that_stopped(here: Path, capsys: Capture) -> None:
    assert main(["compare", *FAST, "lr=1e4", "rounds=30", "--seeds", "1", "--quiet", "--out", "c"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    stopped = [m for m in paper_methods() if "stopped" in Run.open(here / "c" / f"{m}-seed0").summary]
    assert "fedveca" in stopped
    assert all((f"{m} seed 0 stopped: round" in said) == (m in stopped) for m in paper_methods())
    assert (here / "c" / "curves.svg").exists()


def test_partition_prints_label_counts(capsys: Capture, here: Path) -> None:
    assert main(["partition", "clients=4", "partition=case2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    y = load("digits").y
    counts = label_counts(partition("case2", y, 10, 4), y, 10).tolist()
    assert rows[0] == ["client", *map(str, range(10)), "rows"]
    assert [[int(cell.replace("·", "0")) for cell in row] for row in rows[1:]] == [
        [i, *row, sum(row)] for i, row in enumerate(counts)
    ]
    assert main(["partition", "clients=50", "partition=iid"]) == 0
    assert capsys.readouterr().out.endswith("... and 10 more clients\n")
    assert standing(here) == {}


def test_data_get_prints_where_it_is(mnist_dir: str, capsys: Capture, here: Path) -> None:
    assert main(["data", "get", "mnist", "--data-dir", mnist_dir]) == 0
    said = "mnist was already there: 4 files, 55.0 MB, every byte verified"
    assert capsys.readouterr() == (f"{said}\n{Path(mnist_dir) / 'mnist'}\n", "")
    assert main(["data", "get", "mnist", "--data-dir", mnist_dir, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["folder"], told["downloaded"]) == ("mnist", str(Path(mnist_dir) / "mnist"), False)
    assert len(told["files"]) == 4
    assert standing(here) == {}


# for machines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["run", *FAST, "--out", "a"], {"folder", "summary"}),
        (
            ["compare", *FAST, "rounds=2", "--seeds", "2", "--out", "c"],
            {"folder", "report", "table", "differences", "targets", "fair", "totals"},
        ),
        (["partition", "clients=4"], {"clients", "labels"}),
        (["list"], {"methods", "data", "models", "partitions", "presets", "settings"}),
    ],
)
def test_json_is_one_object_and_nothing_else(argv: list[str], names: set[str], capsys: Capture, here: Path) -> None:
    assert main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (set(told), out.count("\n"), err) == (names, 1, "")
    if "summary" in told:
        assert told["summary"] == Run.open(told["folder"]).summary
    if "table" in told:
        assert told["table"] == json.loads((here / "c" / "table.json").read_text())
        assert (here / told["report"]).exists()
        assert {gap["seeds"] for gap in told["differences"]} == {2}
        assert {gap["model"] for gap in told["differences"]} == {"kept", "last"}
    if "labels" in told:
        assert sum(map(sum, told["labels"])) == 1438
    if "settings" in told:
        assert set(told["settings"]) == set(FIELDS)


# as a program


@pytest.mark.slow
def test_without_a_terminal_lines_are_plain(here: Path) -> None:
    done = subprocess.run([*COMMAND, "run", *FAST, "--out", "a"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "loading ..."
    rounds = [line.split("  ")[1] for line in lines if line.startswith("fedveca seed")]
    assert rounds == ["round 1/3", "round 2/3", "round 3/3"]
    assert done.stdout.endswith("run folder: a\n")


def test_a_refusal_has_no_traceback(here: Path) -> None:
    done = subprocess.run([*COMMAND, "run", "roundz=3"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith("loading ...")]
    assert said == ["fedveca: roundz is not a setting; did you mean rounds?"]
    assert standing(here) == {}


def on_a_terminal(words: list[str], **env: str) -> bytes:
    """What a program shows where both its streams are a terminal."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        words, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "150"} | env
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        shown += part
        if not part:
            break
    os.close(ours)
    assert program.wait(timeout=120) == 0
    return shown


@pytest.mark.slow
def test_with_a_terminal_one_line_lives(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    shown = on_a_terminal([*COMMAND, "run", *FAST, "rounds=40", "--out", "a"])
    assert "━".encode() in shown
    assert b"round 40/40" in shown
    assert b"\x1b[2K" in shown  # drawn over, and gone at the end
    assert b"\x1b]8;" in shown  # the folder is a link
    assert b"fedveca board ." in shown.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"CI": "true"}])
def test_a_terminal_that_wants_plain_lines_gets_them(env: dict[str, str], here: Path) -> None:
    shown = on_a_terminal([*COMMAND, "run", *FAST, "--out", "a"], **env)
    assert b"\x1b" not in shown
    rounds = [line.split(b"  ")[1] for line in shown.splitlines() if line.startswith(b"fedveca seed")]
    assert rounds == [b"round 1/3", b"round 2/3", b"round 3/3"]


@pytest.mark.slow
def test_a_stream_without_unicode_still_gets_its_table(here: Path) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "partition"], capture_output=True, text=True, timeout=120, env=env)
    assert (done.returncode, re.sub(r"loading \.\.\.( \d+ s)?\n", "", done.stderr)) == (0, "")
    assert done.stdout.splitlines()[1].split()[-2:] == ["?", "245"]  # a dot for none, elsewhere


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fedveca {__version__}\n"
