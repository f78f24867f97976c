"""Files of a run folder that grow while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedveca.errors import UserError
from fedveca.runs.files import LineTail, write_atomic


def test_a_tail_reads_each_complete_line_once(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", LineTail(tmp_path, "lines", 10)
    assert (tail.read(), tail.count) == ([], 0)  # there is no file yet
    path.write_bytes(b"one\ntw")
    assert (tail.read(), tail.count) == (["one\n"], 1)
    assert (tail.read(), tail.count) == ([], 1)
    with open(path, "r+b") as file:
        file.write(b"ONE")  # what was read is not read again
        file.seek(0, os.SEEK_END)
        file.write(b"o\nthree\n")
    assert (tail.read(), tail.count) == (["two\n", "three\n"], 3)
    with open(path, "ab") as file:
        file.write(b"x" * 11)
    with pytest.raises(UserError, match="line 4 of lines is too long: at most 10 bytes are allowed"):
        tail.read()


def test_a_tail_begins_again_where_the_file_was_replaced_or_cut(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", LineTail(tmp_path, "lines", 10)
    path.write_bytes(b"one\ntwo\n")
    tail.read()
    write_atomic(path, b"uno\ndos\ntres\n")  # longer, so that its size does not tell
    assert (tail.read(), tail.count) == (["uno\n", "dos\n", "tres\n"], 3)
    os.truncate(path, 4)
    assert (tail.read(), tail.count) == (["uno\n"], 1)


def test_a_tail_does_not_leave_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").write_bytes(b"secret\n")
    (tmp_path / "run" / "lines").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="lines is a link that leads out of it"):
        LineTail(tmp_path / "run", "lines", 10).read()
