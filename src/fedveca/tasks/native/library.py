"""Compiles the C files of this folder on the machine where they run, and loads them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from fedveca.tasks.datasets.download import cache

_log = logging.getLogger(__name__)

SWITCH = "FEDVECA_KERNELS"  # "off": PyTorch's operations, as where there is no compiler
PYTORCH = "PyTorch"  # what computes where nothing was compiled
SOURCES = Path(__file__).parent
# No option lets a compiler change the order of sums or what NaN and infinity mean.
FLAGS = ("-std=c11", "-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC")
_plainly: ContextVar[bool] = ContextVar("plainly", default=False)
_SECONDS = 120  # that a compiler may take


def load_kernels(name: str) -> ctypes.CDLL | None:
    """The functions of the file `name`.c; None where it cannot be compiled here, or is not wanted.

    Calls of its functions release Python's lock, so that threads compute side by side.
    """
    return None if _plainly.get() or os.environ.get(SWITCH) == "off" else _load_once(name)


@contextlib.contextmanager
def use_pytorch() -> Iterator[None]:
    """While it lasts, this thread computes with PyTorch's operations."""
    before = _plainly.set(True)
    try:
        yield
    finally:
        _plainly.reset(before)


def find_compiler() -> str | None:
    """The C compiler that CC names, or cc; None on systems on which the files were not tried."""
    return shutil.which(os.environ.get("CC") or "cc") if sys.platform == "linux" else None


def describe_compiler() -> str:
    """The compiler's name and version, in its own words; "PyTorch" without one."""
    compiler = find_compiler()
    return _ask_version(compiler).partition("\n")[0].strip() if compiler else PYTORCH


def describe_machine(compiler: str) -> bytes:
    """What a compiled file depends on: the compiler, and the processor that it was compiled for."""
    about = Path("/proc/cpuinfo").read_bytes().partition(b"\n\n")[0]
    wanted = (b"vendor_id", b"cpu family", b"model", b"stepping", b"flags", b"CPU", b"Features")
    return (
        compiler.encode()
        + _ask_version(compiler).encode()
        + b"\n".join(line for line in about.splitlines() if line.startswith(wanted))
    )


@functools.cache
def _load_once(name: str) -> ctypes.CDLL | None:
    compiler = find_compiler()
    if not compiler:
        return None
    try:
        sources = [file.read_bytes() for file in (SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h")))]
        about = b"\0".join([*sources, " ".join(FLAGS).encode(), describe_machine(compiler)])
        return _load(compiler, SOURCES / f"{name}.c", f"{name}-{hashlib.sha256(about).hexdigest()[:32]}.so")
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        first = said.strip().partition("\n")[0]
        _log.warning("%s.c was not compiled (%s); PyTorch's operations are used", name, first)
        return None


@functools.cache
def _ask_version(compiler: str) -> str:
    asked = [compiler, "--version"]
    return subprocess.run(asked, capture_output=True, check=True, text=True, timeout=_SECONDS).stdout


def _load(compiler: str, source: Path, name: str) -> ctypes.CDLL:
    """From the cache, or compiled into it; for this process only where no folder is this user's alone."""
    folder = cache() / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = _is_private(folder)
    except OSError:
        usable = False
    if not usable:
        with tempfile.TemporaryDirectory(prefix="fedveca-") as alone:
            return ctypes.CDLL(str(_compile(compiler, source, Path(alone) / name)))  # stays mapped without its name
    path = folder / name
    if path.is_file() and _is_private(path):
        with contextlib.suppress(OSError):  # it is damaged
            return ctypes.CDLL(str(path))
    return ctypes.CDLL(str(_compile(compiler, source, path)))


def _is_private(path: Path) -> bool:
    """Whether nobody else can have written there: what is loaded runs with this user's rights."""
    about = path.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _compile(compiler: str, source: Path, path: Path) -> Path:
    """Next to its place, then renamed: several processes may do it at once, and each finds a whole file."""
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *FLAGS, str(source), "-o", str(made), "-lm"]
        subprocess.run(command, capture_output=True, check=True, text=True, timeout=_SECONDS)
        made.chmod(0o600)
        os.replace(made, path)
    return path
