"""Logs of a bounded size: rotated while a process writes, and no more of them than were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.deploy.logs import LOG_LIMIT, LogLimit, read_log_limit, rotate_log
from fedveca.errors import UserError

SMALL = LogLimit(100 / 2**20, 2)


def test_a_log_is_rotated_under_the_process_that_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with open(path, "ab", buffering=0) as log:
        for n in range(5):
            log.write(b"%d" % n * 100)
            assert not rotate_log(path, SMALL)  # it is as long as it may be
            log.write(b"\n")
            assert rotate_log(path, SMALL)
            assert path.read_bytes() == b""
        log.write(b"more")
    found = {p.name: p.read_bytes()[:1] for p in tmp_path.iterdir()}
    assert found == {"a.log": b"m", "a.log.1": b"4", "a.log.2": b"3"}


def test_without_former_files_the_log_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 101)
    assert rotate_log(path, SMALL._replace(files=0))
    assert [p.name for p in tmp_path.iterdir()] == ["a.log"]
    assert path.stat().st_size == 0


def test_a_log_that_is_not_there_or_a_link_is_left_alone(tmp_path: Path) -> None:
    assert not rotate_log(tmp_path / "none.log", SMALL)
    (tmp_path / "target").write_bytes(b"x" * 200)
    (tmp_path / "a.log").symlink_to(tmp_path / "target")
    assert not rotate_log(tmp_path / "a.log", SMALL)
    assert (tmp_path / "target").stat().st_size == 200


def test_the_limit_travels_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_LIMIT, LogLimit(0.25, 7).encode())
    assert read_log_limit() == LogLimit(0.25, 7)
    for wrong in ("", "1", "x 2", "1 2 3", "0 1", "nan 1", "1 -1"):
        monkeypatch.setenv(LOG_LIMIT, wrong)
        assert read_log_limit() == LogLimit()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--log-mb", "0"], "--log-mb 0 is out of range"),
        (["--log-mb", "nan"], "--log-mb nan is out of range"),
        (["--log-files", "-1"], "--log-files -1 is out of range; allowed: 0 to 1000"),
    ],
)
def test_limits_out_of_range(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "kit"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "kit").exists()


def test_init_writes_the_limits_into_both_kinds_of_scripts(tmp_path: Path) -> None:
    words = ["--nodes", "1", "--log-mb", "0.5", "--log-files", "3"]
    assert main(["deploy", "init", str(tmp_path / "kit"), *words]) == 0
    for name in ("server", "node-0"):
        assert "--log-mb 0.5 --log-files 3" in (tmp_path / "kit" / name / "start.sh").read_text()
    with pytest.raises(UserError, match="out of range"):
        LogLimit(-1, 3).check()
