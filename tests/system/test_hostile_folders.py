"""Run folders made by someone else: a report or a figure of them is made, or rejected in one sentence, and soon."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedveca.cli import main
from fedveca.runs import files
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import DEEPEST, OBJECT_BYTES, read_inside, read_object, require_inside
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.views.paths import find_runs

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
Damage = Callable[[Path], object]
SECRET = "TOPSECRET"
FIGURES = ("curves", "tau", "instant", "partition")
READ_BY = {  # what is drawn of a damaged file; of the others everything
    "environment.json": ("report",),
    "partition.json": ("report", "tau", "partition"),
    "partition": ("report",),
    "method": ("report", "curves"),
    "model": ("report", "curves"),
    "summary": ("report", "curves"),
    "lines": ("report", "curves", "tau", "instant"),
}
LISTS = ("tau", "beta", "delta", "A")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "run"
    run(Experiment(model="svm", rounds=7, batch=16, clients=3), folder, device="cpu")
    return folder


@contextmanager
def bounds(seconds: int = 60, room: int = 1 << 30) -> Iterator[None]:
    """What waits for ever fails, and so does what takes all memory."""

    def late(*_: object) -> None:
        pytest.fail(f"no end after {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    limits, former = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, limits[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
        resource.setrlimit(resource.RLIMIT_AS, limits)


# what is done to a folder


def put(name: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def link(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def instead(name: str, make: Callable[[Path], object]) -> Damage:
    """Something that is not a file where a file belongs."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def listen(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10 * 2**30)


def lines(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Every line of rounds.jsonl changed."""

    def damage(folder: Path) -> None:
        path = folder / "rounds.jsonl"
        new = [json.dumps(change(json.loads(line))) for line in path.read_text().splitlines()]
        path.write_text("".join(line + "\n" for line in new))

    return damage


def setting(key: str, value: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "experiment.toml"
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} = ")]
        path.write_text("\n".join([*kept, f"{key} = {json.dumps(value)}"]) + "\n")

    return damage


def ends(**values: Any) -> Damage:
    """The summary's kept and last model with other values."""

    def damage(folder: Path) -> None:
        told = json.loads((folder / "summary.json").read_text())
        told |= {which: told[which] | values for which in ("kept", "last")}
        (folder / "summary.json").write_text(json.dumps(told))

    return damage


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def without(*names: str) -> Damage:
    return lines(lambda line: {name: v for name, v in line.items() if name not in names})


def all_of(value: Any, *names: str) -> Damage:
    return lines(lambda line: line | dict.fromkeys(names or (n for n in line if n.startswith(("te", "tr"))), value))


def each_of(value: Any) -> Damage:
    """One value for every number of every client."""
    return lines(lambda line: line | {n: [value] * len(line["ids"]) for n in LISTS if n in line})


def partition(**values: Any) -> Damage:
    told = {"all": 3, "clients": [0, 1, 2], "sizes": [1, 1, 1], "labels": [[1, 0], [0, 1], [1, 0]]}
    return put("partition.json", json.dumps(told | values))


DEEP = "[" * 3000 + "]" * 3000
MANY = list(range(20_000))
DAMAGES: dict[str, Damage] = {
    **{
        f"{name}: {what}": damage
        for name in ("environment.json", "partition.json", "summary.json", "rounds.jsonl", "experiment.toml")
        for what, damage in {
            "a link out of the folder": link(name, "../secret.json"),
            "a pipe": instead(name, os.mkfifo),
            "a link to a device": link(name, "/dev/zero"),
            "a folder": instead(name, Path.mkdir),
            "not UTF-8": put(name, b"\xff\xfe\x00"),
            "nested 3,000 deep": put(name, '{"a": ' + DEEP + "}\n"),
            "empty": put(name, ""),
        }.items()
    },
    **{
        f"{name}: {what}": damage
        for name in ("environment.json", "partition.json")
        for what, damage in {
            "a socket": instead(name, listen),
            "10 GB of nothing": instead(name, sparse),
            "a link to itself": link(name, name),
            "a link to nothing": link(name, "nothing"),
            "nested 900 deep": put(name, '{"a": ' + "[" * 900 + "]" * 900 + "}"),
            "a list": put(name, "[1, 2]"),
            "NaN": put(name, '{"all": NaN}'),
            "5,000 digits": put(name, "9" * 5000),
            "400 digits": put(name, '{"all": 1' + "0" * 400 + "}"),
        }.items()
    },
    "environment.json: a lone surrogate": put("environment.json", '{"python": "\\ud800", "\\udfff": 1}'),
    "environment.json: a script": put("environment.json", '{"</pre><script>": "\\u0000\\u001b[2J"}'),
    "partition.json: ragged": partition(labels=[[1], [0, 1], [1, 0, 4]]),
    "partition.json: no labels": partition(labels=[[], [], []]),
    "partition.json: labels that are not lists": partition(labels=[1, 2, 3]),
    "partition.json: labels as text": partition(labels=["ab", "cd", "ef"]),
    "partition.json: fewer sizes": partition(sizes=[1]),
    "partition.json: negative": partition(sizes=[-1, 0, 1], labels=[[-1, 0], [0, -5], [1, 0]]),
    "partition.json: 1.7e308": partition(labels=[[1.7e308, 1.7e308], [0, 1.7e308], [1, 0]]),
    "partition.json: nothing but zeros": partition(sizes=[0, 0, 0], labels=[[0, 0], [0, 0], [0, 0]]),
    "partition.json: clients as text": partition(clients=["a", "b", "c"]),
    "partition.json: tables": partition(clients={"0": 0}, sizes={"0": 0}),
    "partition.json: 50,000 labels": partition(labels=[[1] * 50_000] * 3),
    "partition.json: 5 million labels": partition(labels=[[1] * 5_000_000] * 3),
    "partition: {0}": setting("partition", "custom:{0}"),
    "partition: {nope}": setting("partition", "custom:{nope}"),
    "partition: {": setting("partition", "custom:{"),
    "partition: 3 GB of blanks": setting("partition", "custom:{clients:>3000000000}"),
    "partition: a class": setting("partition", "custom:{method.__class__.__mro__}"),
    "clients and rounds: the most": both(setting("clients", 2**31 - 1), setting("rounds", 2**31 - 1)),
    "clients: negative": setting("clients", -1),
    "clients: 30 digits": setting("clients", 10**30),
    "method: formulas and control characters": setting("method", "custom:$\\frac{\\frac{$ \x1b[2J\x00 {0} %s"),
    "method: a long name": setting("method", "custom:" + "x" * 100_000),
    "model: control characters": setting("model", "a:\x1b]0;evil\x07\n" + "y" * 10_000),
    "lines: without ids": without("ids"),
    "lines: without tau": without("tau"),
    "lines: empty lists": lines(lambda line: line | {name: [] for name in ("ids", *LISTS)}),
    "lines: lists of null": each_of(None),
    "lines: lists of zero": each_of(0),
    "lines: lists of -3": each_of(-3),
    "lines: lists of 2^62": each_of(2**62),
    "lines: lists from 5e-324 to 1e99": lines(
        lambda line: line | {n: [5e-324, 1.0, 1e99] for n in LISTS if n in line and n != "tau"}
    ),
    "lines: null": all_of(None),
    "lines: 1.7e308": all_of(1.7e308),
    "lines: 1.7e308 with both signs": lines(
        lambda line: (
            line
            | {
                "test_loss": 1.7e308 * (-1) ** line["round"],
                "seconds": 1.7e308,
                "bytes_up": 10**308,
                "tau_k": 10**308,
            }
        )
    ),
    "lines: 1e99 with both signs": lines(lambda line: line | {"test_loss": 1e99 * (-1) ** line["round"]}),
    "lines: a constant 1e30": all_of(1e30),
    "lines: 5e-324": all_of(5e-324),
    "lines: 300 digits": all_of(10**300, "test_loss", "test_accuracy", "bytes_up", "bytes_down", "train_loss"),
    "lines: other types": lines(lambda line: line | {"test_mse": "x", "test_r2": [1], "test_f1": {}, "faults": 3}),
    "lines: types that differ": lines(lambda line: line | {"test_mse": 1.0 if line["round"] % 2 else "x"}),
    "lines: infinity": lines(lambda line: line | {"test_mse": 1.5 if line["round"] else -1.5e308}),
    "lines: a lone surrogate in a name": lines(lambda line: line | {"test_\ud800": 1.0}),
    "lines: odd names": lines(lambda line: line | {"test_$x_{": 1.0, "test_</script>\x00": 2.0, "test_漢字": 3.0}),
    "lines: a long name": lines(lambda line: line | {"test_" + "x" * 100_000: 1.0}),
    "lines: 3,000 names": lines(lambda line: line | {f"test_{i}": i for i in range(3000)}),
    "lines: another name each": lines(lambda line: line | {f"test_{line['round']}": 1.0}),
    "lines: 20,000 clients": lines(lambda line: line | dict.fromkeys(("ids", *LISTS), MANY)),
    "lines: clients far apart": lines(lambda line: line | {"ids": [-(2**62), 0, 2**62]}),
    "summary: 1.7e308": ends(test_loss=1.7e308, test_accuracy=-1.7e308),
    "summary: 300 digits": ends(test_loss=10**300, test_accuracy=10**308),
    "summary: null": ends(test_loss=None, test_accuracy=None),
    "summary: other names": ends(**{"test_\ud800": 1.0, "x" * 10_000: 2}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_hostile_folder_is_shown_or_rejected_in_one_sentence(
    name: str, good: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "secret.json").write_text(json.dumps({"all": SECRET, "python": SECRET}))
    folder, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(good, folder)
    out.mkdir()
    DAMAGES[name](folder)
    before = sorted(tmp_path.rglob("*"))
    codes = []
    with bounds():
        for what in READ_BY.get(name.partition(": ")[0], ("report", *FIGURES)):
            made = out / (f"{what}.html" if what == "report" else f"{what}.svg")
            words = ["report"] if what == "report" else ["figure", "--what", what]
            codes.append(main([*words, str(folder), "-o", str(made), "--quiet"]))
            said = capsys.readouterr()
            assert said.out == ""
            assert codes[-1] in (0, 2)
            assert [path.name for path in out.iterdir()] == ([made.name] if codes[-1] == 0 else [])
            if codes[-1] == 0:
                assert said.err == ""
                assert SECRET not in made.read_text("utf-8")
                made.unlink()
            else:
                assert said.err.startswith("fedveca: ")
                assert 20 < len(said.err) < 1000
                assert said.err.count("\n") == 1
                assert said.err.strip().isprintable()
                assert not any(word in said.err for word in ("encode", "JSON compliant", "arange", "array", "Errno"))
        if codes[0] == 0:
            shown = Run.open(folder)._repr_html_()
            assert "<script" not in shown
            shown.encode()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["environment.json", "partition.json"])
def test_a_report_names_no_word_of_a_file_outside_the_folder(name: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    told = json.loads((good / name).read_text())
    (tmp_path / "outside.json").write_text(
        json.dumps(
            dict.fromkeys(told, 777777777)
            | {
                "clients": [777_777_777] * 3,
                "sizes": [777_777_777] * 3,
                "labels": [[777_777_777]] * 3,
            }
        )
    )
    link(name, "../outside.json")(folder)
    assert main(["report", str(folder), "-o", str(tmp_path / "r.html"), "--quiet"]) == 0
    assert "777777777" not in (tmp_path / "r.html").read_text("utf-8")
    (folder / "kept.json").write_bytes((tmp_path / "outside.json").read_bytes())
    link(name, "kept.json")(folder)  # within the folder a link is as good as the file
    assert main(["report", str(folder), "-o", str(tmp_path / "r.html"), "--quiet"]) == 0
    assert "777777777" in (tmp_path / "r.html").read_text("utf-8")


@pytest.mark.parametrize("word", ["{0}", "{nope}", "{", "}", "{clients:>3000000000}", "{method.__class__.__mro__}"])
def test_the_name_of_a_partition_is_no_template(word: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    setting("partition", f"custom:{word}")(folder)
    assert main(["report", str(folder), "-o", str(tmp_path / "r.html"), "--quiet"]) == 0
    text = unescape((tmp_path / "r.html").read_text("utf-8"))
    assert f"3 clients, custom:{word}: FedVeca" in text
    assert f"3 clients; partition=custom:{word}." in text


def test_runs_are_found_in_folders_of_any_depth(good: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shutil.copytree(good, tmp_path / "a" / "run")
    deep = [tmp_path / "a"]
    try:
        for _ in range(1500):
            os.mkdir(deep[-1] / "d")
            deep.append(deep[-1] / "d")
        (tmp_path / "a" / "link").symlink_to(good.parent)
        found, skipped = find_runs([tmp_path / "a"])
    finally:
        for path in reversed(deep[1:]):
            path.rmdir()
    assert [run.folder for run in found] == [tmp_path / "a" / "run"]
    assert skipped == []


def test_one_hostile_run_does_not_hide_the_others(good: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("good", "names", "deep"):
        shutil.copytree(good, tmp_path / name)
    DAMAGES["lines: 3,000 names"](tmp_path / "names")
    DAMAGES["rounds.jsonl: nested 3,000 deep"](tmp_path / "deep")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["runs"] == 1
    first, second = said.err.splitlines()
    assert first.startswith(f"skipped: {tmp_path}/deep is not a run folder: line 1 of rounds.jsonl is not JSON")
    assert second == (
        f"skipped: {tmp_path}/names cannot be shown: rounds.jsonl has 3002 names of test values; "
        "at most 50 can be shown"
    )


@pytest.mark.parametrize("words", [["report"], ["figure"]])
def test_nothing_but_a_file_is_written_over(
    words: list[str], good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    os.mkfifo(tmp_path / "pipe.svg")
    (tmp_path / "link.svg").symlink_to("pipe.svg")
    for out, said in {
        "": ". is a folder; name a file",
        "folder.svg": "folder.svg is a folder; name a file",
        "pipe.svg": "pipe.svg is not a regular file; name another",
        "link.svg": "link.svg is not a regular file; name another",
    }.items():
        assert main([*words, str(good), "-o", out]) == 2
        assert capsys.readouterr().err.startswith(f"fedveca: {said}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.svg", "link.svg", "pipe.svg"]
    assert main([*words, str(good), "-o", "\udcff.svg"]) == 0  # a name of bytes that are not UTF-8
    assert capsys.readouterr().out.startswith(f"{words[0]}: \\udcff.svg")


def test_numbers_beyond_what_a_run_can_have_are_rejected(good: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    both(all_of(1.7e308), ends(test_loss=1.7e308, test_accuracy=0.5))(folder)
    with pytest.raises(ValueError, match=r"is not a run folder: .* invalid value for "):
        Run.open(folder)
    for command, name in (("report", "r.html"), ("figure", "f.svg")):
        assert main([command, str(folder), "-o", str(tmp_path / name), "--quiet"]) == 2
        assert "invalid value for " in capsys.readouterr().err
        assert not (tmp_path / name).exists()


# the reader itself


def test_what_is_opened_is_a_regular_file_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "out.json").write_text("{}")
    (folder / "a.json").write_text('{"a": [1]}')
    (folder / "within.json").symlink_to("a.json")
    (folder / "out.json").symlink_to("../out.json")
    (folder / "absolute.json").symlink_to(tmp_path / "out.json")
    (folder / "outer").symlink_to("..")
    os.mkfifo(folder / "pipe.json")
    (folder / "to-pipe.json").symlink_to("pipe.json")
    listen(folder / "socket.json")
    sparse(folder / "sparse.json")
    with bounds(20):
        assert read_inside(folder, "a.json", OBJECT_BYTES) == b'{"a": [1]}'
        assert read_object(folder, "within.json") == {"a": [1]}
        for name, said in {
            "out.json": "is a link that leads out",
            "absolute.json": "is a link that leads out",
            "outer/out.json": "is a link that leads out",
            "pipe.json": "is not a file",
            "to-pipe.json": "is not a file",
            "socket.json": "is not a file",
            "below": "is not a file",
            "none.json": "is missing",
            "sparse.json": f"is too large: .* at most {OBJECT_BYTES} are allowed",
        }.items():
            with pytest.raises(ValueError, match=f"^{name} {said}"):
                read_object(folder, name)


def test_what_was_replaced_after_the_look_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "a.json")
    monkeypatch.setattr(files, "find_inside", lambda folder, name: folder / name)  # it was a file a moment ago
    with bounds(20), pytest.raises(OSError, match=r"a\.json is not a file$"):
        read_inside(tmp_path, "a.json", OBJECT_BYTES)


def test_bytes_and_depth_are_bounded_to_the_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}" + " " * 8)
    assert read_inside(tmp_path, "a.json", 10) == b"{}" + b" " * 8
    with pytest.raises(ValueError, match=r"^a\.json is too large: 10 bytes, at most 9 are allowed$"):
        read_inside(tmp_path, "a.json", 9)
    for depth, good in ((DEEPEST - 1, True), (DEEPEST, False), (900, False), (100_000, False)):
        (tmp_path / "a.json").write_text('{"a": ' + "[" * depth + "]" * depth + "}")
        if good:
            assert read_object(tmp_path, "a.json").keys() == {"a"}
        else:
            with pytest.raises(ValueError, match=r"^a\.json is (nested|not JSON: nested)"):
                read_object(tmp_path, "a.json")


def test_a_place_to_write_holds_no_way_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "board" / "below").mkdir(parents=True)
    (folder / "board" / "a").write_text("")
    (folder / "board" / "latest").symlink_to("below")  # as W&B makes them
    require_inside(folder, "board")
    require_inside(folder, "none")
    (folder / "linked").symlink_to("board")
    with pytest.raises(ValueError, match=r"^linked in the run folder is a link$"):
        require_inside(folder, "linked")
    for target in ("../../a", "/", "../../../nothing", str(tmp_path)):
        (folder / "board" / "below" / "x").symlink_to(target)
        with pytest.raises(ValueError, match=r"^board/below/x in the run folder is a link that leads out of board$"):
            require_inside(folder, "board")
        (folder / "board" / "below" / "x").unlink()
    (folder / "board" / "below" / "x").symlink_to("/")
    require_inside(folder, "board", "x")
    (folder / "board" / "below" / "x").unlink()
    os.mkfifo(folder / "board" / "\x1bpipe")
    with pytest.raises(ValueError, match=r"^board/\\x1bpipe in the run folder is neither a file nor a folder$"):
        require_inside(folder, "board")
