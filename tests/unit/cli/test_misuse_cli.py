"""Bad command lines: each ends with one sentence that names what is wrong, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zygote import Zygote, zygote

from fedveca.cli import SHORT_OF_MEMORY, main
from fedveca.runs import resources as room
from fedveca.runs.experiment import Experiment
from fedveca.runs.interrupt import is_out_of_memory
from fedveca.runs.settings import KNOWN_MODELS

Capture = pytest.CaptureFixture[str]
LONG = "x" * 5000
OBJECT = "is an object that was given from Python; here allowed: "
LINE = "holds a control character or the end of a line"
FAST = ["model=svm", "rounds=1", "batch=8"]
ROOM = 4 << 30  # bytes of address space where a command may ask for too many
PRESETS = {  # what they hold, and what is said of it
    "newline": (r'data = "custom:x\ntouch PWN\n#"', f"data=custom:x\\ntouch PWN\\n# {OBJECT}"),
    "escape": (r'method = "custom:\u001b[2J"', f"method=custom:\\x1b[2J {OBJECT}"),
    "quote": ("model = 'a\"b:f'", f'model=a"b:f is not known; it is {KNOWN_MODELS}'),
    "model": (r'model = "a\nb:f"', f"model='a\\nb:f' {LINE}"),
    "track": (r'track = "wandb\n"', f"track='wandb\\n' {LINE}; allowed: some of "),
    "faults": (r'faults = "drop:0.1\r"', f"faults='drop:0.1\\r' {LINE}"),
    "partition": ('partition = "custom:mine"', f"partition=custom:mine {OBJECT}"),
    "loss": ('loss = "custom:mine"', f"loss=custom:mine {OBJECT}auto | "),
    "metric": ('metric = "custom:mine"', f"metric=custom:mine {OBJECT}some of auto, accuracy, "),
    "augment": ('augment = "custom:mine"', f"augment=custom:mine {OBJECT}crop:PIXELS | flip | "),
    "date": ("rounds = 1979-05-27", "rounds=datetime.date(1979, 5, 27) is not int; allowed: >= 1"),
    "tables": ("[[rounds]]\na = 1", "rounds=[{'a': 1}] is not int; allowed: >= 1"),
    "section": ("[experiment]\nrounds = 1", "experiment is not a setting"),
    "text": ("rounds = '1'", "rounds='1' is not int; allowed: >= 1"),
    "truth": ("lr = true", "lr=True is not float; allowed: > 0"),
    "list": ("track = ['wandb']", "track=['wandb'] is not str; allowed: some of "),
    "twice": ("rounds = 1\nrounds = 2", "twice.toml is not TOML: Cannot overwrite a value"),
    "infinite": ("lr = inf", "lr=inf is out of range; allowed: > 0"),
    "nan": ("mu = nan", "mu=nan is out of range; allowed: >= 0"),
    "huge": ("batch = 0x" + "f" * 5000, "batch is out of range: a number of more than 30 digits; allowed: >= 1"),
    "digits": ("batch = [0x" + "f" * 9000 + "]", "batch=(list) is not int; allowed: >= 1"),
    "deep": ("rounds" + ".a" * 3000 + " = 1", "rounds=(dict) is not int; allowed: >= 1"),
    "dots": ("rounds" + ".a" * 30000 + " = 1", "dots.toml is not a table of settings: it holds more than 4096 dots"),
    "long": ("#" * 2**20 + "\n", "long.toml cannot be read: it is longer than 1048576 bytes"),
    "empty-key": ('"" = 1', "'' is not a setting; `fedveca list` shows all"),
    "null-key": (r'"\u0000" = 1', "\\x00 is not a setting"),
    "mark": ("\ufeffrounds = 1", "mark.toml is not TOML: "),
    "binary": ("\0\1\2", "binary.toml is not TOML: "),
}


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of one round."""
    folder = tmp_path_factory.mktemp("former") / "done"
    assert main(["run", *FAST, "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: Path) -> Path:
    """A working folder with a finished run, files that are no presets, and an empty cache beside it."""
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVECA_DATA", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copytree(former, folder / "done")
    for name, (text, _) in PRESETS.items():
        (folder / f"{name}.toml").write_text(text, "utf-8")
    (folder / "latin.toml").write_bytes(b"rounds = 1 # \xff")
    (folder / "folder.toml").mkdir()
    (folder / "file").touch()
    (folder / "loop.toml").symlink_to("loop.toml")
    (folder / "torn").mkdir()
    (folder / "torn" / "experiment.toml").write_text("rounds = ")
    (folder / "torn" / "rounds.jsonl").touch()
    return folder


def standing(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder, links as they are, except for kernels that the first run of a process compiles."""
    cache = folder / "cache"
    found = {
        path: path.lstat() for path in folder.rglob("*") if path != cache and cache / "kernels" not in path.parents
    }
    found.pop(cache / "kernels", None)
    return {str(path): (0 if path.is_dir() else info.st_size, info.st_mode) for path, info in found.items()}


def rejected(argv: list[str], capsys: Capture, folder: Path) -> str:
    """The sentence with which a command ends, exit code 2, nothing printed or written besides."""
    before = standing(folder.parent)
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert standing(folder.parent) == before
    check_sentence(err)
    return err.removeprefix("fedveca: ")


def check_sentence(err: str) -> None:
    assert err.startswith("fedveca: ")
    assert err.endswith("\n")
    assert all(c.isprintable() for c in err[:-1]), err
    assert len(err) < 4100


@pytest.mark.parametrize("name", PRESETS)
def test_presets_rejected(name: str, capsys: Capture, here: Path) -> None:
    assert rejected(["run", f"{name}.toml"], capsys, here).startswith(PRESETS[name][1])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        # words that are no settings
        (["run", "="], "'' is not a setting; `fedveca list` shows all"),
        (["run", "=", "="], "'' is not a setting"),
        (["run", " =3"], "' ' is not a setting"),
        (["run", "rounds =3"], "'rounds ' is not a setting; did you mean rounds?"),
        (["run", "\n=3"], "'\\n' is not a setting"),
        (["run", "\x1b[2J=3"], "\\x1b[2J is not a setting"),
        (["run", "é=3"], "é is not a setting"),
        (["run", f"{LONG}=3"], "x" * 120 + "... is not a setting"),
        (["run", "rounds==3"], "rounds==3 is not a whole number"),
        (["run", ""], "preset '' is not known; it is one of "),
        (["run", " "], "preset ' ' is not known"),
        (["run", "\n"], "preset '\\n' is not known"),
        (["run", LONG], "preset " + "x" * 120 + "... is not known"),
        (
            ["run", "digits-case3", "digits-case3"],
            "digits-case3 is a preset; one preset comes first, and then settings as key=value",
        ),
        (["run", "--", "--x"], "preset --x is not known"),
        # numbers that cannot be
        (["run", "rounds=1", "rounds=0"], "rounds=0 is out of range; allowed: >= 1"),
        (["run", "rounds=1e1"], "rounds=1e1 is not a whole number"),
        (["run", "batch=0x10"], "batch=0x10 is not a whole number"),
        (["run", f"rounds={'9' * 5000}"], "rounds=" + "9" * 120 + "... is not a whole number; allowed: >= 1"),
        (["run", "clients=-2147483648"], "clients=-2147483648 is out of range; allowed: >= 1"),
        (["run", "mu=-inf"], "mu=-inf is out of range; allowed: >= 0"),
        (["run", "lr=1e308"], "lr=1e+308 is out of range; at most 1e+38"),
        (["run", "heterogeneity=1e308", "data=synthetic"], "heterogeneity=1e+308 is out of range; at most 1e+38"),
        (["run", "concentration=1e308", "partition=dirichlet"], "concentration=1e+308 is out of range; at most 1e+38"),
        (["run", "dp_noise=1e308"], "dp_noise=1e+308 is out of range; at most 1e+38"),
        (["run", "dp_noise=1e-300"], "dp_noise=1e-300 is out of range; allowed: 0 or >= 1e-30"),
        (["run", "dp_noise=1", "dp_bound=1e308"], "dp_bound=1e+308 is out of range; at most 1e+38"),
        (["run", "dp_noise=1", "dp_delta=1"], "dp_delta=1.0 is out of range; allowed: (0, 1)"),
        (["run", "faults=scale:0.5:1e308"], "faults=scale:0.5:1e308: a factor is a number in [-1e+38, 1e+38], not 1e"),
        (["run", "faults=scale:0.5:-1e39"], "faults=scale:0.5:-1e39: a factor is a number in [-1e+38, 1e+38]"),
        (["run", "faults=drop:nan"], "faults=drop:nan: 'drop:nan' is not drop:P with a share in [0, 1]"),
        (["run", f"faults=drop:0.5:{LONG}"], "faults=drop:0.5:xxx"),
        (["run", "faults=dr\x1bop:0.5"], f"faults='dr\\x1bop:0.5' {LINE}"),
        (["run", "faults=,"], "faults=,: '' is not known"),
        (["run", "hidden=2147483647"], "hidden=2147483647 needs 2,577.0 GB of memory or more, and "),
        # objects that only Python gives, and names that are none
        *(
            (["run", f"{key}=custom:x"], f"{key}=custom:x {OBJECT}")
            for key in ("data", "model", "method", "loss", "metric", "partition", "augment")
        ),
        (["compare", "--methods", "fedavg,custom:x"], "method=custom:x is an object that was given from Python"),
        (["run", "metric=absolute_error"], "metric=absolute_error does not fit the targets of these data; accuracy "),
        (["compare", "metric=absolute_error"], "metric=absolute_error does not fit the targets of these data"),
        (["run", "loss=squared_error"], "loss (squared_error) cannot take scores [2, 10] and targets [2]"),
        (["run", "model=:f"], f"model=:f is not known; it is {KNOWN_MODELS}"),
        (["run", "model=a:"], "model=a: is not known"),
        (["run", "model=..:f"], "model=..:f cannot be imported: "),
        (["run", "model=a/b:f"], "model=a/b:f is not known"),
        (["run", "model=json:loads"], "model=json:loads cannot be built for rows of shape [1, 8, 8] and 10 classes: "),
        (["run", "track=wandb,"], "track=wandb,: '' is not known; allowed: some of "),
        (["run", "data_dir=a\nb", "data=mnist"], "a\\nb, named by data_dir, is not a folder"),
        (["run", "data_dir=\0", "data=mnist"], "\\x00, named by data_dir, is not a folder"),
        # files that are no presets
        (["run", "latin.toml"], "latin.toml cannot be read: "),
        (["run", "folder.toml"], "folder.toml cannot be read: [Errno 21] Is a directory"),
        (["run", "loop.toml"], "loop.toml cannot be read: "),
        (["run", "nowhere/a.toml"], "nowhere/a.toml does not exist\n"),
        (["run", f"{LONG}.toml"], "x" * 120 + "... cannot be read: "),
        (["run", "a\0b.toml"], "a\\x00b.toml cannot be read: "),
        # resuming
        (["run", "--resume", "nowhere"], "nowhere is not a run folder: experiment.toml is missing"),
        (["run", "--resume", "done", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["run", "--resume", "file"], "file is not a run folder"),
        (["run", "--resume", "torn"], "torn is not a run folder: experiment.toml is not TOML"),
        (["run", "--resume", "done"], "done is finished: 1 rounds are done; name more, rounds=N"),
        (["run", "--resume", "done", "rounds=0"], "rounds=0 is out of range; allowed: >= 1"),
        (["run", "--resume", "done", "lr=3"], "--resume takes the run as it is; only rounds=N and data_dir=DIR"),
        (["run", "--resume", "done", "--out", "b", "rounds=2"], "--resume takes the run as it is"),
        (
            ["run", "--resume", "done", "digits-case3"],
            "'digits-case3' is not key=value",
        ),
        (["run", "--out", "done", *FAST], "done already holds a run; name another folder"),
        # compare and reproduce
        (["compare", "--seeds", "1000000000", "--methods", "fedavg"], "--seeds 1000000000 is out of range; at most "),
        (["compare", "--seeds", "2", "--seeds", "-5"], "--seeds -5 is out of range; allowed: >= 1"),
        (["compare", "--workers", "0"], "--workers 0 is out of range; allowed: >= 1"),
        (["compare", "--workers", "2147483647"], "--workers 2147483647 is out of range; at most 1024"),
        (["compare", "--methods", ","], "method= is not known; allowed: fedveca | "),
        (["compare", "--methods", "fedavg,fedavg"], "methods are named twice: fedavg, fedavg"),
        (["compare", "--methods", "\n"], f"method='\\n' {LINE}; allowed: fedveca | "),
        (["reproduce", ""], "'' is not known; it is one of table1, "),
        (["reproduce", "a\nb"], "'a\\nb' is not known"),
        (["reproduce", LONG], "x" * 120 + "... is not known"),
        (["reproduce", "table1", "--tasks", ","], "--tasks '' is not known; it names some of svm-mnist,"),
        (["reproduce", "table1", "--tasks", "x\x1b"], "--tasks x\\x1b is not known"),
        (["reproduce", "clients", "--tasks", "cnn-mnist"], "clients has no runs of cnn-mnist; its tasks are svm-mnist"),
        (["reproduce", "--seeds", "0"], "--seeds 0 is out of range; allowed: >= 1"),
        (["reproduce", "--seeds", "1000000000"], "--seeds 1000000000 is out of range; at most 10000"),
        (["reproduce", "--workers", "1000000000"], "--workers 1000000000 is out of range; at most 1024"),
        (["reproduce", "table1", "--data-dir", "nowhere"], "nowhere, named by data_dir, is not a folder"),
        (["reproduce", "table1", "--out", "file"], "file is a file; name a folder"),
        # partition, data
        (["partition", "clients=2147483647"], "clients=2147483647 is more than the 1438 training rows"),
        (["partition", "partition=shards", "shards=2147483647"], "clients=5 with shards=2147483647 asks for more "),
        (["partition", "--json", "--quiet", "roundz=1"], "roundz is not a setting; did you mean rounds?"),
        (["partition", "data=custom:x"], "data=custom:x is an object that was given from Python"),
        (["partition", "newline.toml"], "data=custom:x\\ntouch PWN\\n# is an object that was given from Python"),
        (["data", "get", ""], "there are no files to get for ''"),
        (["data", "get", "../x"], "there are no files to get for '../x'"),
        (["data", "get", "mnist\0"], "there are no files to get for 'mnist\\x00' (did you mean mnist?); allowed: "),
        (["data", "get", "digits"], "there are no files to get for 'digits'"),
        (["data", "get", "mnist", "--data-dir", "file"], "file, named by data_dir, is not a folder"),
        (["data", "get", "mnist", "--data-dir", "a\0b"], "a\\x00b, named by data_dir, is not a folder"),
        # deploy
        (["deploy", "init", "k", "--nodes", "0"], "clients=0 is out of range; allowed: >= 1"),
        (["deploy", "init", "k", "--nodes", "2147483647"], "--nodes 2147483647 is out of range; at most 10000 nodes"),
        (["deploy", "init", "k", "clients=10001"], "clients=10001 is out of range; at most 10000 nodes"),
        (
            ["deploy", "init", "k", "newline.toml"],
            "data=custom:x\\ntouch PWN\\n# is an object that was given from Python",
        ),
        (["deploy", "init", "k", "escape.toml"], "method=custom:\\x1b[2J is an object that was given from Python"),
        (["deploy", "init", "k", "--port", "-1"], "port=-1 is out of range"),
        (["deploy", "init", "done"], "done already exists and is not empty; name another folder"),
        (["deploy", "init", "k", "method=centralised"], "method=centralised has no clients"),
        (["deploy", "local", "--nodes", "-3"], "clients=-3 is out of range; allowed: >= 1"),
        (["deploy", "local", "--nodes", "2147483647"], "--nodes 2147483647 is out of range; at most 10000 nodes"),
        (["deploy", "local", "model=custom:x"], "model=custom:x is an object that was given from Python"),
        (["deploy", "local", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["deploy", "local", "--resume", "done", "lr=3"], "--resume takes the run as it is; only rounds=N"),
        (["deploy", "local", "--out", "done"], "done already holds a run"),
        # board, report, figure
        (["board", "file"], "file is not a folder; name the one that holds runs: fedveca board RUNS_DIR"),
        (["board", ".", "--port", "70000"], "--port 70000 is out of range; allowed: 0 to 65535"),
        (["board", ".", "--port", "0", "--host", "ü" * 100], "--host " + "ü" * 100 + " --port 0 cannot be used: "),
        (["board", ".", "--port", "0", "--host", "\x1b"], "--host \\x1b --port 0 cannot be used: "),
        (["report", "nowhere"], "nowhere is not a folder; name run folders, or folders of them"),
        (["report", "file"], "file is not a folder"),
        (["figure", "folder.toml"], "folder.toml holds no run folder"),
        (["figure", "a\0b"], "a\\x00b is not a folder"),
    ],
)
def test_rejected(argv: list[str], said: str, capsys: Capture, here: Path) -> None:
    assert rejected(argv, capsys, here).startswith(said)


@pytest.mark.parametrize("command", [["run"], ["compare"], ["reproduce", "table1"], ["deploy", "local"]])
@pytest.mark.parametrize("name", ["", "a\0b", "y" * 300, f"deep/{'y' * 300}"])
def test_out_is_a_name(command: list[str], name: str, capsys: Capture, here: Path) -> None:
    wrong_usage([*command, "--out", name], "argument --out: ", capsys, here)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "--resume", ""], "argument --resume: '' cannot be the name of a folder"),
        (["deploy", "local", "--resume", ""], "argument --resume: '' cannot be the name of a folder"),
        (["deploy", "init", ""], "argument DIR: '' cannot be the name of a folder"),
        (["deploy"], "the following arguments are required: local | init"),
        (["deploy", "up"], "invalid choice: 'up'"),
        (["deploy", "local", "--nodes", "two"], "argument --nodes: invalid int value: 'two'"),
        (["compare", "--seeds", "nan"], "argument --seeds: invalid int value: 'nan'"),
        (["compare", "--workers", "1e3"], "argument --workers: invalid int value: '1e3'"),
        (["reproduce", "table1", "table1"], "table1 is one argument too many for `fedveca reproduce`"),
        (["partition", "--out", "x"], "--out is not an option of `fedveca partition`"),
        (["board", "a\0b"], "argument RUNS_DIR: 'a\\x00b' cannot be the name of a folder"),
        (["board", ".", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["figure", "done", "--what", "all"], "argument --what: invalid choice: 'all'"),
        (["report"], "the following arguments are required: RUN"),
        ([""], "'' is not a command"),
        (["\x1b"], "\\x1b is not a command"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: Capture, here: Path) -> None:
    wrong_usage(argv, said, capsys, here)


def wrong_usage(argv: list[str], said: str, capsys: Capture, folder: Path) -> None:
    before = standing(folder.parent)
    with pytest.raises(SystemExit) as caught:
        main(argv)
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert standing(folder.parent) == before


@pytest.mark.parametrize(
    ("argv", "modules", "said"),
    [
        (["run", "engine=ray"], ["ray", "fedveca.cohorts.ray.cohort"], "engine=ray needs the extra fedveca[ray]"),
        (["run", "dp_noise=1"], ["dp_accounting"], "dp_noise needs the extra fedveca[privacy]"),
        (["board", "."], ["starlette", "fedveca.views.board.app"], "fedveca board needs the extra fedveca[board]"),
        (["deploy", "local"], ["flwr"], "deploy needs the extra fedveca[flower]"),
        (["deploy", "init", "k"], ["flwr"], "deploy needs the extra fedveca[flower]"),
    ],
)
def test_extras_that_are_missing(
    argv: list[str], modules: list[str], said: str, capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == modules[0] or name in modules[1:]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, modules[0], None)
    assert rejected(argv, capsys, here).startswith(said)


def test_an_unreadable_preset(capsys: Capture, here: Path) -> None:
    assert main(["run", *FAST, "--quiet", "--out", "warm"]) == 0  # what is imported late, is
    (here / "text.toml").chmod(0)
    user = os.geteuid()
    for folder in (here, *here.parents[:3]):
        with contextlib.suppress(PermissionError):
            folder.chmod(0o755)
    if user == 0:
        os.seteuid(65534)
    try:
        code = main(["run", "text.toml"])
    finally:
        if user == 0:
            os.seteuid(0)
    err = capsys.readouterr().err
    assert code == 2
    assert "cannot be read: [Errno 13] Permission denied" in err
    check_sentence(err)


# what may take memory or time without end: in a process with little room, ended when it takes too long


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    folder = tmp_path_factory.mktemp("confined")
    (folder / "here").mkdir()
    os.mkfifo(folder / "pipe.toml")
    (folder / "endless.toml").symlink_to("/dev/zero")
    with contextlib.chdir(folder / "here"), zygote(folder) as made:
        resource.prlimit(made.process.pid, resource.RLIMIT_AS, (ROOM, ROOM))
        yield made


def confined_run(made: Zygote, argv: list[str], seconds: float = 60) -> tuple[int, str]:
    pid = made.start(*argv)
    try:
        code = made.wait(pid, seconds)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    assert list((made.said.parent / "here").iterdir()) == []
    return code, made.said.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["run", "method=fedavg", "tau_all=2147483647", "batch=1", "model=svm", "rounds=1"],
            "tau_all=2147483647 gives a client 639167594 local steps per round; at most 100000000: take more rounds",
        ),
        (["run", "data=synthetic", "clients=2147483647"], "clients=2147483647 of data=synthetic needs 12,"),
        (["compare", "data=synthetic", "clients=2147483647"], "clients=2147483647 of data=synthetic needs 12,"),
        (["partition", "data=synthetic", "clients=2147483647"], "clients=2147483647 of data=synthetic needs 12,"),
        (["partition", "hidden=100000000"], "hidden=100000000 needs 120.0 GB of memory or more, and 4.3 GB are there"),
        (["run", "../pipe.toml"], "../pipe.toml cannot be read: it is not a regular file"),
        (["run", "../endless.toml"], "../endless.toml cannot be read: it is not a regular file"),
        (["deploy", "init", "k", "--nodes", "1000000"], "--nodes 1000000 is out of range; at most 10000 nodes"),
        (["compare", "--workers", "5000", "--seeds", "5000"], "--workers 5000 is out of range; at most 1024"),
    ],
)
def test_rejected_in_limited_memory(argv: list[str], said: str, confined: Zygote) -> None:
    code, err = confined_run(confined, argv)
    assert code == 2, err
    assert err.startswith(f"fedveca: {said}")
    check_sentence(err)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["run"], ["compare", "--methods", "fedavg", "--seeds", "1"]])
def test_memory_that_runs_out_leaves_nothing(argv: list[str], confined: Zygote) -> None:
    """The model fits, the steps of the first round do not."""
    code, err = confined_run(confined, [*argv, "hidden=1500000", "rounds=1", "--quiet"])
    assert (code, err) == (1, f"fedveca: {SHORT_OF_MEMORY}\n")


# the parts


def test_capacity_is_what_the_process_may_have() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    whole = room.capacity()
    assert 2**28 < whole <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
    try:
        assert room.capacity() == min(whole, used + 2**28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_memory_mb_is_bounded_by_what_the_clients_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveca.runs.build import build

    e = Experiment(method="scaffold", model="svm", memory_mb=2**31 - 1)
    assert len(build(e).shares.sizes) == 5  # five rows of 64 floats: all fit
    monkeypatch.setattr(room, "capacity", lambda: 1000)
    with pytest.raises(ValueError, match=r"^memory_mb=2147483647 needs .* for what 5 clients keep; at most 0 fit"):
        build(e)


def test_a_folder_with_rounds_stays_and_one_without_goes(here: Path) -> None:
    for rounds in ("", "{}\n"):
        with pytest.raises(RuntimeError), room.discard_unbegun(here / "new" / "run"):  # noqa: PT012
            (here / "new" / "run").mkdir(parents=True)
            (here / "new" / "run" / "rounds.jsonl").write_text(rounds)
            raise RuntimeError
        assert (here / "new").exists() == bool(rounds)
    with pytest.raises(RuntimeError), room.discard_unbegun(here / "file"):
        raise RuntimeError
    assert (here / "file").exists()


def test_what_says_that_memory_ran_out() -> None:
    import numpy as np
    import torch

    for ask in (lambda: torch.empty(2**60), lambda: np.empty(2**58), lambda: bytearray(2**62)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            ask()
        assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shape '[359]' is invalid for input of size 3590"))
    assert not is_out_of_memory(None)
