"""C files are compiled once, kept where nobody else can write, and never required."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedveca.tasks.native import convolution, library, perceptron, squared_svm
from fedveca.tasks.native.library import PYTORCH, describe_compiler, find_compiler, load_kernels

SOURCE = "int add(int a, int b) { return a + b; }\n"
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a folder with the file sum.c."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "sum.c").write_text(SOURCE)
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVECA_KERNELS", raising=False)
    forget()
    yield tmp_path / "cache" / "kernels"
    forget()


def forget() -> None:
    """As a new process."""
    library._load_once.cache_clear()
    library._ask_version.cache_clear()


def add(found: ctypes.CDLL | None) -> int:
    assert found is not None
    result: int = found.add(2, 3)
    return result


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise AssertionError("it is compiled again")

    monkeypatch.setattr(library, "_compile", fail)


@needs_compiler
def test_a_file_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert add(load_kernels("sum")) == 5
    (made,) = cache.iterdir()
    assert made.name.startswith("sum-")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    forget()
    with monkeypatch.context() as patch:
        forbid_compiling(patch)
        assert add(load_kernels("sum")) == 5
    forget()
    (library.SOURCES / "sum.c").write_text(SOURCE.replace("a + b", "a + b + 1"))
    assert add(load_kernels("sum")) == 6  # another text is another file
    assert len(list(cache.iterdir())) == 2


@needs_compiler
def test_another_header_is_another_file(cache: Path) -> None:
    (library.SOURCES / "one.h").write_text("#define ONE 1\n")
    (library.SOURCES / "sum.c").write_text('#include "one.h"\n' + SOURCE.replace("a + b", "a + b + ONE"))
    assert add(load_kernels("sum")) == 6
    forget()
    (library.SOURCES / "one.h").write_text("#define ONE 2\n")
    assert add(load_kernels("sum")) == 7


@needs_compiler
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the options are those of x86")
@pytest.mark.parametrize("flag", ["-mno-avx512f", "-mno-avx", "-mno-fma"])
@pytest.mark.parametrize("module", [convolution, perceptron, squared_svm], ids=["convolution", "perceptron", "svm"])
def test_on_older_processors_each_file_agrees_with_pytorch(
    module: Any, flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, flag))
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path))
    monkeypatch.delenv("FEDVECA_KERNELS", raising=False)
    forget()
    try:
        assert module._find_checked.__wrapped__(load_kernels(module.__name__.rpartition(".")[2])) is not None
    finally:
        forget()


@needs_compiler
def test_another_processor_or_compiler_has_a_file_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_kernels("sum")
    forget()
    monkeypatch.setattr(library, "describe_machine", lambda _: b"another one")
    load_kernels("sum")
    assert len(list(cache.iterdir())) == 2


def start_process() -> subprocess.Popen[str]:
    """Another process, which prints a sum."""
    code = "import test_library as t; t.library.SOURCES = t.Path(t.sys.argv[1]); print(t.add(t.load_kernels('sum')))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    words = [sys.executable, "-c", code, str(library.SOURCES)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


@needs_compiler
@pytest.mark.slow
def test_two_processes_at_once(cache: Path) -> None:
    both = [start_process() for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["5\n", "5\n"]
    assert len(list(cache.iterdir())) == 1  # and nothing half done


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("text", [b"", b"not a library"])
def test_a_damaged_file_is_compiled_anew(cache: Path, text: bytes) -> None:
    """By another process than one that has it in its memory."""
    assert start_process().communicate()[0] == "5\n"
    (made,) = cache.iterdir()
    made.write_bytes(text)
    assert start_process().communicate()[0] == "5\n"
    assert list(cache.iterdir()) == [made]
    assert made.stat().st_size > len(text)


@needs_compiler
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_is_not_used(cache: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert add(load_kernels("sum")) == 5  # compiled for this process
    assert list(cache.iterdir()) == []


@needs_compiler
def test_a_file_that_others_can_write_to_is_not_loaded(cache: Path) -> None:
    load_kernels("sum")
    (made,) = cache.iterdir()
    before = made.stat().st_ino
    made.chmod(0o666)
    forget()
    assert add(load_kernels("sum")) == 5
    assert made.stat().st_ino != before
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


@needs_compiler
def test_a_folder_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_kernels("sum")
    (made,) = cache.iterdir()
    made.unlink()
    forget()
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    assert add(load_kernels("sum")) == 5
    assert list(cache.iterdir()) == []


@needs_compiler
def test_a_cache_that_cannot_be_written(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert add(load_kernels("sum")) == 5


@pytest.mark.parametrize("compiler", ["no-such-compiler", "/no/such/compiler"])
def test_without_a_compiler(
    cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert load_kernels("sum") is None
    assert describe_compiler() == PYTORCH
    assert not cache.exists()
    assert not caplog.records  # nothing is wrong


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems(cache: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert load_kernels("sum") is None


def test_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    assert load_kernels("sum") is None
    assert not cache.exists()
    monkeypatch.setenv("FEDVECA_KERNELS", "on")
    assert (load_kernels("sum") is None) == (find_compiler() is None)  # at any time in a process


@needs_compiler
def test_a_source_that_does_not_compile(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (library.SOURCES / "sum.c").write_text("int add(int a, int b) { return a + ; }\n")
    with caplog.at_level(logging.WARNING):
        assert load_kernels("sum") is None
        assert load_kernels("sum") is None
    (record,) = caplog.records  # said once
    assert "sum.c was not compiled" in record.getMessage()
    assert list(cache.iterdir()) == []


def test_a_compiler_that_fails(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    assert load_kernels("sum") is None


@needs_compiler
def test_the_compiler_in_its_own_words() -> None:
    said = subprocess.run([shutil.which("cc") or "cc", "--version"], capture_output=True, text=True, check=True).stdout
    if "CC" not in os.environ:
        assert describe_compiler() == said.splitlines()[0].strip()
