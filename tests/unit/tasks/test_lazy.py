"""Rows that are read when they are needed: the bytes, the results and the sentences of rows in memory."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedveca.algorithms import FedAvg
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.rows import ClientRows, LazyClientRows
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run
from fedveca.tasks.custom import from_arrays, from_torch
from fedveca.tasks.datasets.dataset import Dataset
from fedveca.tasks.datasets.lazy import FileReader, LazyRows, open_array_file
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

E = Experiment(model="mlp", clients=4, partition="iid", rounds=2, batch=8, tau_0=4, lr=0.05, probe=20)
IMAGES = np.random.default_rng(0).integers(0, 256, (120, 1, 8, 8), dtype=np.uint8)
TABLE = np.random.default_rng(1).normal(size=(120, 6))
LABELS = np.random.default_rng(2).integers(0, 3, 120)


class Pairs(torch.utils.data.Dataset[tuple[NDArray[np.generic], int]]):
    """Counts which rows were read."""

    def __init__(self, x: NDArray[np.generic], y: NDArray[np.int64] = LABELS) -> None:
        self.x, self.y, self.reads, self.inside = x, y, list[int](), 0

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[NDArray[np.generic], int]:
        self.inside += 1
        assert self.inside == 1, "two calls at the same time"
        self.reads.append(i)
        self.inside -= 1
        return self.x[i], int(self.y[i])


def save(folder: Path, x: NDArray[np.generic]) -> str:
    np.save(folder / "x.npy", x)
    return str(folder / "x.npy")


def lazy_rows(data: Dataset) -> LazyRows:
    assert isinstance(data.x, LazyRows)
    return data.x


def same(a: Run, b: Run) -> None:
    """All records and the kept model, to the last bit."""
    known = [{k: v for k, v in r.items() if "seconds" not in k and k != "time"} for r in a.rounds]
    assert known == [{k: v for k, v in r.items() if "seconds" not in k and k != "time"} for r in b.rounds]
    assert all(torch.equal(v, b.model[name]) for name, v in a.model.items())


# results


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "debug"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pixels": "standardised"},
        {"sampling": "shuffle", "augment": "flip"},
        pytest.param({"model": "cnn"}, marks=pytest.mark.slow),
        {"pixels": "as-is", "lr": 0.0001},
        {"model": "svm", "method": "scaffold", "probe": 0},
        {"feature_noise": 0.3, "keep": "rollback"},
        {"method": "centralised", "feature_noise": 0.3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "unit",
)
def test_a_run_on_lazy_images_is_that_on_images_in_memory(
    settings: dict[str, object], engine: str, tmp_path: Path
) -> None:
    e = E.replace(**settings, engine=engine)
    eager = run(e, data=from_arrays(IMAGES, LABELS))
    same(eager, run(e, data=from_arrays(save(tmp_path, IMAGES), LABELS, lazy=True)))
    same(eager, run(e, data=from_torch(Pairs(IMAGES), lazy=True, name="arrays")))


@pytest.mark.parametrize("dtype", [">f8", "<f4", "f2", "?", "u1", "u2", "i8"])
def test_every_kind_of_number_has_the_bytes_of_rows_in_memory(dtype: str, tmp_path: Path) -> None:
    x = (100 * np.abs(TABLE)).astype(dtype)
    for tokens in (False, True) if dtype in ("u1", "u2", "i8") else (False,):
        eager = from_arrays(x, LABELS, tokens=tokens)
        lazy = from_arrays(save(tmp_path, x), LABELS, tokens=tokens, lazy=True)
        assert (lazy.pixels, lazy.classes, lazy.x.dtype) == (eager.pixels, eager.classes, eager.x.dtype)
        for a, b in ((eager.x, lazy.x), (eager.x_test, lazy.x_test)):
            assert isinstance(b, LazyRows)
            assert torch.equal(a, b.read(torch.arange(len(b))))
        assert torch.equal(eager.y, lazy.y)


def test_tokens_and_test_rows_of_their_own(tmp_path: Path) -> None:
    text = np.random.default_rng(3).integers(0, 20, (60, 5))
    e = Experiment(model="lstm", hidden=4, layers=1, clients=3, partition="iid", rounds=2, batch=4, tau_0=2)
    held = text[:10], np.roll(text[:10], 1, 1)
    y = np.roll(text, 1, 1)
    eager = run(e, data=from_arrays(text, y, tokens=True, test=held))
    path = save(tmp_path, text)
    for x_test in (held[0], np.load(path, mmap_mode="r")[:10]):
        same(eager, run(e, data=from_arrays(path, y, tokens=True, test=(x_test, held[1]), lazy=True)))


@given(st.lists(st.integers(0, 119), max_size=40), st.integers(0, 100), st.integers(1, 100))
def test_any_rows_of_a_part_of_a_file(index: list[int], first: int, count: int) -> None:
    """Rows that follow one another, rows that do not, the same row twice; through a memmap of a part of the file."""
    mapped = np.load(PATH, mmap_mode="r")
    reader = open_array_file(mapped[first : first + count], "x")
    at = torch.tensor([i % reader.shape[0] for i in index], dtype=torch.int64)
    assert np.array_equal(reader.read(at).numpy(), np.asarray(mapped[first : first + count])[at.numpy()])


PATH = ""


@pytest.fixture(autouse=True, scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> None:
    global PATH
    PATH = save(tmp_path_factory.mktemp("rows"), TABLE)


def test_only_the_rows_of_a_step_are_read() -> None:
    """By counting: a round of tau steps on batches of B reads N tau B rows, and the probe its own."""
    pairs = Pairs(IMAGES)
    data = from_torch(pairs, lazy=True, targets=LABELS)
    assert pairs.reads == [0]  # for the shape: labels were given
    built = build(E.replace(keep="last", method="fedavg"), data=data)
    pairs.reads.clear()
    ids, tau = torch.arange(4), torch.tensor([3, 1, 2, 2])
    built.cohort(0, built.algorithm.order(built.state), ids, tau)
    assert len(pairs.reads) == 8 * E.batch
    built = build(E.replace(keep="best", method="fedavg"), data=data)
    pairs.reads.clear()
    built.cohort(0, built.algorithm.order(built.state), ids, torch.zeros(4, dtype=torch.int64))
    assert len(pairs.reads) == 4 * E.probe


def test_rows_of_the_next_steps_are_read_while_one_is_computed(tmp_path: Path) -> None:
    """The reads of steps 2 and 3 begin although step 1 has not been given back yet."""
    began = [threading.Event() for _ in range(5)]

    class Watched(FileReader):
        def read(self, index: Tensor) -> Tensor:
            began[int(index[0])].set()
            return super().read(index)

    known = open_array_file(save(tmp_path, TABLE), "x")
    rows = LazyRows(Watched(known.path, known.offset, known.kind, known.shape), torch.float32, "x")
    mine = LazyClientRows(rows, torch.tensor(LABELS), torch.arange(120), "as-is", torch.device("cpu"))
    steps = mine.batches(torch.arange(5)[:, None, None])
    next(steps)
    assert all(event.wait(30) for event in began[:3])
    assert not began[3].is_set()  # and no more than two, so that memory is bounded


@pytest.mark.parametrize("pixels", ["unit", "standardised", "as-is"])
def test_batches_and_blocks_have_the_same_bytes(pixels: str, tmp_path: Path) -> None:
    order, cpu = torch.randperm(120, generator=torch.Generator().manual_seed(0)), torch.device("cpu")
    y = torch.tensor(LABELS)
    lazy = LazyRows(open_array_file(save(tmp_path, IMAGES), "x"), torch.uint8, "x")
    a, b = ClientRows(torch.tensor(IMAGES), y, order, pixels, cpu), LazyClientRows(lazy, y, order, pixels, cpu)
    assert (a.numel, a.kind, a.unit) == (b.numel, b.kind, b.unit)
    index = torch.randint(0, 120, (5, 3, 4), generator=torch.Generator().manual_seed(1))
    for (x1, y1), (x2, y2) in zip(a.batches(index), b.batches(index), strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)
    for size, count in ((50, 50), (50, 17)):
        for one, two in zip(a.blocks(7, size, count, 8), b.blocks(7, size, count, 8), strict=True):
            assert torch.equal(one[0], two[0])
            assert torch.equal(one[1], two[1])
    for first, second in zip(a.pick(index), b.pick(index), strict=True):
        assert torch.equal(first, second)


def test_a_run_is_resumed_with_the_same_rows_and_not_with_others(tmp_path: Path) -> None:
    out, path = tmp_path / "run", save(tmp_path, IMAGES)
    run(E.replace(rounds=2), str(out), data=from_arrays(path, LABELS, lazy=True))
    whole = run(E.replace(rounds=4), data=from_arrays(path, LABELS, lazy=True))
    other = save(tmp_path_of(tmp_path, "other"), 255 - IMAGES)
    with pytest.raises(UserError):
        resume(str(out), rounds=4, data=from_arrays(other, LABELS, lazy=True))
    moved = save(tmp_path_of(tmp_path, "moved"), IMAGES)
    same(whole, resume(str(out), rounds=4, data=from_arrays(moved, LABELS, lazy=True)))


def tmp_path_of(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_what_travels_to_a_worker_is_a_path_and_row_numbers(tmp_path: Path) -> None:
    big = np.memmap(tmp_path / "big", np.uint8, "w+", shape=(1000, 3, 64, 64))
    big[7] = 9
    rows = lazy_rows(from_arrays(big, np.arange(1000) % 3, lazy=True, test=(big[:2], [0, 1])))
    content = pickle.dumps(rows[torch.tensor([7, 8])])
    assert len(content) < 2000
    there = pickle.loads(content)
    assert torch.equal(there.read(torch.tensor([0, 1])), torch.tensor(np.asarray(big[7:9])))
    items = pickle.loads(pickle.dumps(lazy_rows(from_torch(Pairs(IMAGES), lazy=True))))
    assert items.read(torch.tensor([0])).shape == (1, 1, 8, 8)


def test_a_sparse_file_larger_than_memory_is_opened_and_trained_on(tmp_path: Path) -> None:
    """50 GB that take no place on the disk: rows of zeros but for the first and the last."""
    rows, path = 50 * 10**9 // 12288, tmp_path / "x.bin"
    with open(path, "wb") as file:
        file.truncate(rows * 12288)
    mapped = np.memmap(path, np.uint8, "r", shape=(rows, 3, 64, 64))
    with open(path, "r+b") as file:
        file.seek((rows - 1) * 12288)
        file.write(bytes([200]) * 12288)
    x = LazyRows(open_array_file(mapped, "x"), torch.uint8, "x")
    assert x.read(torch.tensor([rows - 1])).unique().tolist() == [200]
    y = torch.arange(2000) % 10
    problem = model("logistic", (3, 64, 64), 10)
    mine = x[torch.arange(2000) * (rows - 1) // 1999]
    cohort = LocalCohort(FedAvg(0.1), problem, mine, y, partition("iid", y, 10, 4), batch=16, pixels="unit", probe=8)
    order = FedAvg(0.1).order(FedAvg(0.1).init(problem.init(), torch.full((4,), 3)))
    _, report = cohort(0, order, torch.arange(4), torch.full((4,), 3))
    assert all(bool(v.isfinite().all()) for v in report.mean.values())
    path.unlink()


def test_one_row_and_several(tmp_path: Path) -> None:
    rows = LazyRows(open_array_file(save(tmp_path, TABLE), "x"), torch.float32, "x")
    assert (len(rows), rows.dim(), rows.shape, rows.shape[1:]) == (120, 2, (120, 6), (6,))
    expected = torch.tensor(TABLE, dtype=torch.float32)
    for at in (0, 5, -1, -120):
        assert torch.equal(rows[at], expected[at])
    part = rows[10:20][torch.tensor([3, 1])]
    assert torch.equal(part.read(torch.arange(2)), expected[[13, 11]])


# sentences


def test_a_row_that_is_not_finite_is_named_when_it_is_read(tmp_path: Path) -> None:
    x = TABLE.copy()
    x[17, 2] = np.nan
    data = from_arrays(save(tmp_path, x), LABELS, lazy=True, test=(TABLE, LABELS))
    with pytest.raises(UserError, match=r"^x is not finite in row 17$"):
        run(E.replace(probe=0), data=data)


def test_a_token_below_zero_is_named_when_it_is_read(tmp_path: Path) -> None:
    x = np.ones((120, 4), np.int64)
    x[30] = -1
    rows = lazy_rows(
        from_arrays(save(tmp_path, x), LABELS, tokens=True, lazy=True, test=(np.ones((2, 4), int), [0, 1]))
    )
    with pytest.raises(UserError, match=r"^x holds a number below 0 in row 30; tokens are from 0 up$"):
        rows.read(torch.arange(120))


def test_a_file_that_becomes_shorter_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    path = save(tmp_path, TABLE)
    rows = lazy_rows(from_arrays(path, LABELS, lazy=True))
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"x\.npy has become shorter: it ends before byte \d+$"):
        rows.read(torch.arange(len(rows)))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (TABLE, "x is ndarray, and lazy=True reads from a file: give the path of an .npy file or a memmap"),
        ("missing.npy", "x='missing.npy' is not an .npy file of numbers: No such file or directory"),
        ({"a": TABLE}, "x has several inputs, which lazy=True cannot read; put them side by side into one array"),
    ],
)
def test_rejected(x: object, said: str) -> None:
    with pytest.raises(UserError) as caught:
        from_arrays(x, LABELS, lazy=True)
    assert str(caught.value) == said


def test_files_that_are_not_rows_are_rejected(tmp_path: Path) -> None:
    for array, said in (
        (np.asfortranarray(TABLE), "x does not lie row by row in its file"),
        (np.arange(5.0), r"x has the shape \[5\]; it needs a row for each example"),
        (np.array([["a"], ["b"]]), "x holds <U1, not numbers"),
    ):
        with pytest.raises(UserError, match=said):
            from_arrays(save(tmp_path, array), LABELS, lazy=True)
    (tmp_path / "x.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"x=.*x\.npy.* is not an \.npy file of numbers: "):
        from_arrays(str(tmp_path / "x.npy"), LABELS, lazy=True)
    with pytest.raises(UserError, match=r"x is torch\.float64; tokens are whole numbers from 0 up"):
        from_arrays(save(tmp_path, TABLE), LABELS, lazy=True, tokens=True)
    with pytest.raises(UserError, match="x and y do not fit: 120 rows and 3 targets"):
        from_arrays(save(tmp_path, TABLE), [0, 1, 2], lazy=True)


def test_a_path_is_read_into_memory_without_lazy(tmp_path: Path) -> None:
    path = save(tmp_path, TABLE)
    assert torch.equal(from_arrays(path, LABELS).x, from_arrays(TABLE, LABELS).x)


def test_a_data_set_whose_rows_differ_is_named() -> None:
    class Uneven(Pairs):
        def __getitem__(self, i: int) -> tuple[NDArray[np.generic], int]:
            x, y = super().__getitem__(i)
            if i == 9:
                raise OSError("the disk is gone")
            return (x[:, :4] if i == 5 else x), y

    rows = lazy_rows(from_torch(Uneven(IMAGES), lazy=True, targets=LABELS, test=Pairs(IMAGES)))
    with pytest.raises(UserError, match=r"x of row 5 is torch.uint8 \[1, 4, 8\], of row 0 torch.uint8 \[1, 8, 8\]"):
        rows.read(torch.tensor([5]))
    with pytest.raises(UserError, match=r"the data set \(Uneven\) fails at row 9: .*the disk is gone"):
        rows.read(torch.tensor([9]))
    with pytest.raises(UserError, match="targets goes with lazy=True only"):
        from_torch(Pairs(IMAGES), targets=LABELS)
    with pytest.raises(UserError, match="lazy='yes' is neither True nor False"):
        from_torch(Pairs(IMAGES), lazy="yes")  # type: ignore[arg-type]


def test_a_node_reads_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveca.deploy.node_process import make_node_cohort

    path = save(tmp_path, IMAGES)
    (tmp_path / "lazynode.py").write_text(
        f"import numpy as np\nfrom fedveca import from_arrays\n\ndef load():\n"
        f"    return from_arrays({path!r}, np.load({path!r})[:, 0, 0, 0] % 3, lazy=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDVECA_NODE_DATA", "lazynode:load")
    cohorts = []
    e = replace(E, feature_noise=0.2)
    for lazy in (True, False):
        make_node_cohort.cache_clear()
        cohorts.append(make_node_cohort(e, 1, 3, "unit"))
        assert isinstance(cohorts[-1].rows, LazyClientRows if lazy else ClientRows)
        (tmp_path / "lazynode.py").write_text((tmp_path / "lazynode.py").read_text().replace("True", "False"))
        monkeypatch.delitem(__import__("sys").modules, "lazynode")
    make_node_cohort.cache_clear()
    w = cohorts[0].problem.init()
    order = cohorts[0].algorithm.order(cohorts[0].algorithm.init(w, torch.tensor([1, 3])))
    a, b = (cohort(0, order, torch.tensor([1]), torch.tensor([3]))[1] for cohort in cohorts)
    assert all(torch.equal(v, b.mean[name]) for name, v in a.mean.items())
